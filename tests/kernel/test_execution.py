"""An execution as a whole (A4, A6, B6, B20, B21): what it is pinned to, what it carries, how its end is told."""

import pytest

from tenuto.kernel import facts as f
from tenuto.kernel.definition import JSON, Node, content_hash
from tenuto.kernel.events import ExecutionFinished, ExecutionStarted

from .build import approval, step
from .driver import EXECUTION, TENANT, Driver, given, raw
from .rendering import START


def ended(run: Driver) -> ExecutionFinished:
    event = run.history[-1].event
    assert isinstance(event, ExecutionFinished)
    return event


@pytest.mark.requirement("A4")
def test_an_execution_is_pinned_to_one_version_of_one_definition() -> None:
    run = given(step("a"), name="orders")
    run.start()
    event = run.history[0].event
    assert isinstance(event, ExecutionStarted)
    assert (event.definition, event.version, event.plan_hash) == ("orders", 1, content_hash(run.definition))
    assert event.rules == run.state.rules > 0


@pytest.mark.requirement("A6")
def test_policies_of_a_definition_hold_for_all_of_it() -> None:
    run = given(step("a"), step("b"), step("c"), mode="parallel", max_concurrency=2, timeout_ms=9_000)
    run.start()
    assert (len(run.open()), run.wake_at) == (2, 9_000)


@pytest.mark.requirement("B6")
def test_what_comes_with_a_start_is_recorded_and_carried() -> None:
    run = given(step("a", when="context.correlation_id == 'root'"))
    run.tell(
        f.Start(
            at=run.now,
            execution=EXECUTION,
            tenant=TENANT,
            input=raw({"x": 1}),
            headers={"X-Trace": "t"},
            correlation_id="root",
            target=("order", "7"),
            priority="high",
        )
    )
    event = run.history[0].event
    assert isinstance(event, ExecutionStarted)
    assert (event.correlation_id, event.target, event.headers) == ("root", ("order", "7"), {"X-Trace": "t"})
    assert (run.state.correlation_id, run.state.priority) == ("root", "high")
    assert run.open() == ["a/1"]


@pytest.mark.requirement("B21")
def test_an_end_says_when_and_why() -> None:
    run = given(step("a"))
    run.start()
    run.tick_to(700)
    run.fail("a")
    assert run.history[-1].at == START + 700
    error = ended(run).error
    assert error is not None
    assert (error.error_class, error.code, error.path) == ("NON_RETRYABLE", "non_retryable", "a")


@pytest.mark.requirement("B21")
def test_a_canceled_execution_has_no_error() -> None:
    run = given(approval("ok"))
    run.start()
    run.cancel("drain")
    assert (ended(run).status, ended(run).error) == ("canceled", None)


@pytest.mark.requirement("B1", "B14")
def test_a_terminal_execution_hears_nothing_more() -> None:
    run = given(step("a"))
    run.start()
    run.succeed("a")
    before = len(run.history)
    run.crash()
    run.tick_to(1_000_000)
    assert run.succeed("a", number=1) == f.Ignored("terminal")
    assert isinstance(run.retry(), f.Refused)
    assert len(run.history) == before


def checked(*nodes: Node, wanted: JSON, output: JSON = None) -> Driver:
    """An execution whose output has to be exactly this."""
    return given(
        *nodes,
        output=output,
        output_schema={"const": wanted},
        check_output=lambda found: None if found == wanted else "it is something else",
    )


@pytest.mark.requirement("A5")
def test_the_output_is_checked_before_an_execution_succeeds() -> None:
    run = checked(step("a"), output={"n": "${steps.a.result}"}, wanted={"n": 1})
    run.start()
    run.succeed("a", result=1)
    assert (ended(run).status, ended(run).output) == ("succeeded", raw({"n": 1}))


@pytest.mark.requirement("A5")
def test_an_output_that_does_not_fit_fails_the_execution_and_what_was_made_is_undone() -> None:
    run = checked(step("a", compensation_handler="undo"), output={"n": "${steps.a.result}"}, wanted={"n": 1})
    run.start()
    run.succeed("a", result=2)
    assert run.open() == ["a:undo/1"]
    run.undo("a")
    error = ended(run).error
    assert error is not None
    assert (ended(run).status, error.error_class, error.code) == ("failed", "NON_RETRYABLE", "invalid_output")
    assert [review.kind for review in run.state.reviews.values()] == ["dead_letter"]


@pytest.mark.requirement("A5")
def test_without_a_template_the_last_result_is_checked() -> None:
    run = checked(step("a"), step("b"), wanted=2)
    run.start()
    run.succeed("a", result=1)
    run.succeed("b", result=2)
    assert ended(run).status == "succeeded"


@pytest.mark.requirement("A5")
def test_of_a_fan_out_the_list_of_results_is_checked() -> None:
    run = checked(step("n", foreach="[1, 2]"), wanted=["x", "y"])
    run.start()
    run.succeed("n#1", result="y")
    run.succeed("n#0", result="x")
    assert ended(run).status == "succeeded"


@pytest.mark.requirement("A5")
def test_where_nothing_was_completed_the_output_is_null() -> None:
    run = checked(step("a", when="false"), wanted=None)
    run.start()
    assert ended(run).status == "succeeded"
