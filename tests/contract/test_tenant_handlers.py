"""Handlers and limits of the deployment: documents that a tenant published name only what is open to that tenant."""

from types import ModuleType
from typing import Any

import pytest

from tenuto import Engine, handler
from tenuto.errors import DefinitionError, InvalidInput
from tenuto.handlers.settings import HandlerSettings

from .conftest import MakeEngine
from .doubles import Stage, until_blocked

SAFE = {"idempotency_strategy": "SAFE_TO_RETRY"}


def of(engine: Engine, tenant: str) -> Engine:
    return engine.scoped(tenant=tenant, actor=f"author of {tenant}")


def document(name: str = "mine", **fields: Any) -> dict[str, Any]:
    step = {"step_id": "work", "type": "task", "handler": "refund", **SAFE, **fields}
    return {"name": name, "version": 1, "steps": [step]}


async def refused(engine: Engine, given: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(DefinitionError) as error:
        await engine.apply(given)
    return [(found.path, found.code) for found in error.value.problems]


async def test_a_handler_is_the_deployments_own_unless_it_is_opened(engine: Engine) -> None:
    stage = Stage()
    engine.handler("refund", stage.does("refund"))
    assert await refused(of(engine, "acme"), document()) == [("/steps/0/handler", "handler_denied")]

    await engine.apply(document("shared"))
    assert (await of(engine, "acme").execute("shared")).succeeded, "what the deployment published, all may start"
    assert stage.log == ["refund"]


@pytest.mark.parametrize(
    ("tenants", "permitted"), [(["acme"], ["acme"]), (["*"], ["acme", "other"]), ("acme", ["acme"])]
)
async def test_it_is_open_to_those_that_it_names(engine: Engine, tenants: Any, permitted: list[str]) -> None:
    stage = Stage()
    engine.handler("refund", stage.does("refund"), tenants=tenants)
    for tenant in ("acme", "other"):
        if tenant in permitted:
            await of(engine, tenant).apply(document())
            assert (await of(engine, tenant).execute("mine")).succeeded
        else:
            assert await refused(of(engine, tenant), document()) == [("/steps/0/handler", "handler_denied")]
    assert stage.count("refund") == len(permitted)


async def test_drafts_and_checks_say_it_too(engine: Engine) -> None:
    engine.handler("refund", Stage().does("refund"))
    acme = of(engine, "acme").catalog
    with pytest.raises(DefinitionError):
        await acme.draft(document())
    checked = await acme.check(document())
    assert (checked["valid"], [error["code"] for error in checked["errors"]]) == (False, ["handler_denied"])


async def test_what_was_closed_since_it_was_drafted_is_not_published(engine: Engine) -> None:
    engine.handler("refund", Stage().does("refund"), tenants=["acme"])
    acme = of(engine, "acme").catalog
    await acme.draft(document())
    engine.handler("refund", Stage().does("refund"))
    assert not (await acme.validate("mine", 1))["valid"]
    with pytest.raises(DefinitionError):
        await acme.publish("mine", 1)


GUARDED = {"idempotency_strategy": "SAFE_TO_RETRY_WITH_GUARD", "guard_handler": "closed"}
UNSAFE = {"idempotency_strategy": "NOT_SAFE_TO_RETRY", "reconcile_handler": "closed"}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"handler": "closed"}, "handler"),
        (GUARDED, "guard_handler"),
        (UNSAFE, "reconcile_handler"),
        ({"compensation_handler": "closed"}, "compensation_handler"),
    ],
)
async def test_wherever_it_is_named(engine: Engine, fields: dict[str, Any], field: str) -> None:
    engine.handler("refund", Stage().does("refund"), tenants=["acme"])
    engine.handler("closed", Stage().does("closed"))
    assert await refused(of(engine, "acme"), document(**fields)) == [(f"/steps/0/{field}", "handler_denied")]


async def test_planners_and_inner_steps_are_handlers_too(engine: Engine) -> None:
    engine.handler("closed", Stage().does("closed"))
    inner = {"step_id": "work", "type": "task", "handler": "closed", **SAFE}
    group = {"step_id": "group", "type": "scope", "mode": "dag", "planner": "closed", "children": [inner]}
    assert sorted(
        await refused(of(engine, "acme"), {"name": "mine", "version": 1, "mode": "dag", "steps": [group]})
    ) == [
        ("/steps/0/children/0/handler", "handler_denied"),
        ("/steps/0/planner", "handler_denied"),
    ]


async def test_a_worker_asks_before_it_runs_it(make_engine: MakeEngine) -> None:
    """A service that has no handlers publishes what it cannot judge. The worker does not call what is closed; opened,
    the step runs."""
    stage = Stage()
    engine = await make_engine()
    acme = of(engine, "acme")
    await acme.apply(document())
    engine.handler("refund", stage.does("refund"))
    handle = await acme.start("mine")
    blocked = await until_blocked(handle, "no_worker")
    assert (blocked["waiting_for"], stage.log) == ("refund", [])
    engine.handler("refund", stage.does("refund"), tenants=["acme"])
    assert ((await handle.result()).status, stage.log) == ("succeeded", ["refund"])


async def test_a_task_worker_asks_too(make_engine: MakeEngine) -> None:
    stage = Stage()
    engine = await make_engine(queues=("gpu",))
    acme = of(engine, "acme")
    await acme.apply(document(queue="gpu"))
    engine.handler("refund", stage.does("refund"))
    handle = await acme.start("mine")
    await until_blocked(handle, "no_worker")
    assert stage.log == []
    engine.handler("refund", stage.does("refund"), tenants=["acme"])
    assert ((await handle.result()).status, stage.log) == ("succeeded", ["refund"])


async def test_what_the_engine_brings_is_open_to_all(engine: Engine) -> None:
    given = document(handler="log")
    given["steps"][0]["with"] = {"message": "paid"}
    await of(engine, "acme").apply(given)
    assert (await of(engine, "acme").execute("mine")).succeeded


@handler("refund", tenants=["acme"])
@handler("refund-all")
async def give_back() -> str:
    return "given back"


async def test_the_decorator_says_it(engine: Engine) -> None:
    module = ModuleType("payments")
    module.give_back = give_back  # type: ignore[attr-defined]  # which is how a module has its functions
    for given in (give_back, module):
        engine.register(given)
    await of(engine, "acme").apply(document())
    assert (await of(engine, "acme").execute("mine")).output == "given back"
    assert await refused(of(engine, "other"), document()) == [("/steps/0/handler", "handler_denied")]
    closed = document("second", handler="refund-all")
    assert await refused(of(engine, "acme"), closed) == [("/steps/0/handler", "handler_denied")]


# -- Limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opened", "permitted"),
    [((), []), (("ses:acme",), ["acme"]), (("ses:*",), ["acme", "other"]), (("mail:acme",), [])],
)
async def test_a_limit_is_the_deployments_own_unless_it_is_opened(
    make_engine: MakeEngine, opened: tuple[str, ...], permitted: list[str]
) -> None:
    engine = await make_engine(outside=HandlerSettings(open_limits=opened))
    engine.handler("refund", Stage().does("refund"), tenants=["*"])
    await engine.limit("ses", rate="1000/s")
    await engine.apply(document("shared", limits=["ses"]))
    for tenant in ("acme", "other"):
        if tenant in permitted:
            await of(engine, tenant).apply(document(limits=["ses"]))
            assert (await of(engine, tenant).execute("mine")).succeeded
        else:
            assert await refused(of(engine, tenant), document(limits=["ses"])) == [
                ("/steps/0/limits/0", "limit_denied")
            ]


@pytest.mark.parametrize("text", ["ses", "ses:", ":acme", ""])
def test_what_opens_nothing_is_refused_at_once(text: str) -> None:
    with pytest.raises(InvalidInput):
        HandlerSettings(open_limits=(text,))
