"""Options that do not exist, or have no effect where they are written, are refused with the valid ones."""

from collections.abc import Callable
from typing import Any

import pytest

from tenuto import SagaBuilder, approval, compensation_step, external_step, group, handler, saga, signal, step, wait
from tenuto.authoring.document import read_document
from tenuto.authoring.settings import SagaOptions, StepOptions
from tenuto.errors import DefinitionError


async def work() -> None:
    return None


def builder() -> Any:
    return SagaBuilder("s").step("a", work)


CALLS: dict[str, tuple[str, Callable[..., object]]] = {
    "@saga": ("version", lambda **given: saga("s", **given)),
    "@step": ("retry", step),
    "@external_step": ("saga", lambda **given: external_step(**given)),
    "@compensation_step": ("for_step", lambda **given: compensation_step(**given)),
    "@handler": ("tenants", lambda **given: handler("h", **given)),
    "approval": ("deadline", approval),
    "wait": ("until", lambda **given: wait(**given)),
    "signal": ("payload", lambda **given: signal("go", **given)),
    "group": ("max_visits", lambda **given: group("a", **given)),
    "SagaBuilder": ("timeout", lambda **given: SagaBuilder("s", **given)),
    "SagaBuilder.step": ("timeout", lambda **given: builder().step("b", work, **given)),
    "SagaBuilder.approval": ("permission", lambda **given: builder().approval("b", **given)),
    "SagaBuilder.wait": ("duration", lambda **given: builder().wait("b", **given)),
    "SagaBuilder.signal": ("deadline", lambda **given: builder().signal("b", "go", **given)),
    "SagaBuilder.group": ("repeat_until", lambda **given: builder().group("b", "a", **given)),
}


@pytest.mark.parametrize("called", CALLS)
def test_an_unknown_option_is_refused_with_the_one_that_was_meant(called: str) -> None:
    option, call = CALLS[called]
    with pytest.raises(DefinitionError) as refused:
        call(**{f"{option}s": 1})
    (problem,) = refused.value.problems
    assert (problem.path, problem.code) == (called, "unknown_option")
    assert f"no option `{option}s`: did you mean `{option}`? Options are: " in problem.message


def test_an_unknown_option_that_resembles_none_is_refused_with_all() -> None:
    with pytest.raises(DefinitionError) as refused:
        step(colour="red")  # type: ignore[call-overload]
    (problem,) = refused.value.problems
    options = ", ".join(["id", *StepOptions.__annotations__])
    assert problem.message == f"it has no option `colour`. Options are: {options}"


def test_every_option_is_accepted() -> None:
    """The names that are checked are those of the settings."""
    every_step: dict[str, Any] = dict.fromkeys(StepOptions.__annotations__, ())
    step(**every_step)
    every_saga: dict[str, Any] = dict.fromkeys(SagaOptions.__annotations__)
    saga("s", **every_saga)


@pytest.mark.parametrize(
    ("options", "where", "text"),
    [
        ({"repeat_until": "true", "max_rounds": 2}, "max_rounds", "set `max_visits`"),
        ({"max_rounds": 2}, "max_rounds", 'only `failure_mode="retry"` has rounds'),
        ({"max_visits": 2}, "max_visits", "Set `repeat_until`"),
    ],
)
def test_an_option_of_a_group_without_effect_is_refused(options: dict[str, Any], where: str, text: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        builder().group("g", "a", **options).build()
    (problem,) = refused.value.problems
    assert (problem.path, problem.code) == (f"group 'g', {where}", "not_allowed")
    assert text in problem.message


@pytest.mark.parametrize(
    ("options", "where"),
    [({"partial_effect": True}, "partial_effect"), ({"reconcile": work}, "reconcile")],
)
def test_an_option_of_a_step_without_effect_is_refused(options: dict[str, Any], where: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        SagaBuilder("s").step("a", work, **options).build()
    assert (f"step 'a', {where}", "not_allowed") in [(each.path, each.code) for each in refused.value.problems]


LOG = {"step_id": "a", "handler": "log", "type": "notify"}


def document(**more: Any) -> dict[str, Any]:
    return {"name": "d", "mode": "sequence", "steps": [LOG], **more}


def refusals(given: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(DefinitionError) as refused:
        read_document(given)
    return {problem.path: problem.message for problem in refused.value.problems}


@pytest.mark.parametrize(
    ("given", "at", "meant"),
    [
        (document(stepz=[]), "/stepz", "steps"),
        (document(policies={"max_round": 2}), "/policies/max_round", "max_rounds"),
        (document(policies={"escalation": {"error": 2}}), "/policies/escalation/error", "errors"),
        (document(steps=[{**LOG, "retry_polcy": {}}]), "/steps/0/retry_polcy", "retry_policy"),
        (
            document(steps=[{**LOG, "retry_policy": {"attempts": 2}}]),
            "/steps/0/retry_policy/attempts",
            "max_attempts",
        ),
        (
            document(steps=[{"type": "scope", "step_id": "g", "children": [LOG], "max_vists": 2}]),
            "/steps/0/max_vists",
            "max_visits",
        ),
        (
            document(steps=[{"type": "scope", "step_id": "g", "children": [{**LOG, "handlr": "x"}]}]),
            "/steps/0/children/0/handlr",
            "handler",
        ),
    ],
)
def test_an_unknown_field_is_refused_with_the_one_that_was_meant(given: dict[str, Any], at: str, meant: str) -> None:
    assert f"is not a field here: did you mean `{meant}`? Fields are: " in refusals(given)[at]


def test_an_unknown_field_of_a_wait_is_refused_with_those_that_it_has() -> None:
    wait_step = {"step_id": "w", "type": "wait", "with": {"duration_ms": 5, "seconds": 5}}
    assert "duration_ms, until, signal" in refusals(document(steps=[wait_step]))["/steps/0/with/seconds"]


@pytest.mark.parametrize(
    ("given", "at"),
    [
        (document(policies={"max_rounds": 2}), "/policies/max_rounds"),
        (document(policies={"retry_budget": 2}), "/policies/retry_budget"),
        (document(policies={"max_children": 2}), "/policies/max_children"),
        (document(steps=[{**LOG, "max_visits": 2}]), "/steps/0/max_visits"),
        (document(steps=[{**LOG, "reconcile_timeout_ms": 2}]), "/steps/0/reconcile_timeout_ms"),
        (
            document(steps=[{"type": "scope", "step_id": "g", "children": [LOG], "max_replans": 1}]),
            "/steps/0/max_replans",
        ),
    ],
)
def test_a_field_without_effect_is_refused(given: dict[str, Any], at: str) -> None:
    assert refusals(given)[at].startswith("it has no effect: ")


def test_fields_with_effect_are_accepted() -> None:
    read_document(document(policies={"failure_mode": "retry", "max_rounds": 2, "retry_budget": 2}))
    loop = {"type": "scope", "step_id": "g", "children": [LOG], "repeat_until": "true", "max_visits": 2}
    read_document(document(steps=[loop]))
    read_document(document(mode="flow", steps=[{**LOG, "max_visits": 2}]))
