"""Marks and variables (D10, A17): a key that was seen in this run, and values that steps leave for one another."""

import pytest

from .build import guarded, pause_for, step
from .driver import given


@pytest.mark.requirement("D10")
def test_a_step_whose_key_was_completed_in_this_run_is_passed_over() -> None:
    run = given(
        step("a", idempotency_key="mail-${input.to}"),
        step("b", idempotency_key="mail-${input.to}", undo=True),
        step("c", idempotency_key="other"),
    )
    run.start({"to": "ann"})
    run.succeed("a")
    run.succeed("c")
    run.expect("""
        started + a/1
        ok a/1
        closed b marked + c/1
        ok c/1
        finished succeeded
    """)
    assert run.state.marks == {"mail-ann": "a", "other": "c"}


@pytest.mark.requirement("D10")
def test_what_was_passed_over_is_not_undone() -> None:
    run = given(step("a", idempotency_key="k"), step("b", idempotency_key="k", undo=True), step("c"))
    run.start()
    run.succeed("a")
    run.fail("c")
    assert run.undone() == {}
    assert run.status == "failed"


@pytest.mark.requirement("D10")
def test_a_failed_step_leaves_no_mark() -> None:
    run = given(
        step("a", idempotency_key="k", failure_mode="continue"), step("b", idempotency_key="k"), mode="sequence"
    )
    run.start()
    run.fail("a")
    assert run.open() == ["b/1"]


@pytest.mark.requirement("D10")
def test_a_probe_that_finds_the_effect_leaves_the_mark() -> None:
    run = given(guarded("a", idempotency_key="k"), step("b", idempotency_key="k"))
    run.start()
    run.time_out("a")
    run.done("a")
    assert run.status == "succeeded"


@pytest.mark.requirement("D10")
def test_a_key_that_can_no_longer_be_made_leaves_no_mark() -> None:
    run = given(
        step("a", set_variable="n"),
        step("b", idempotency_key="k-${variables.n + 1}"),
        mode="parallel",
    )
    run.start(variables={"n": 1})
    run.succeed("a", result="text")
    run.succeed("b")
    assert run.status == "succeeded"
    assert run.state.marks == {}


@pytest.mark.requirement("D10")
def test_a_key_that_cannot_be_made_fails_its_step() -> None:
    run = given(step("b", idempotency_key="k-${variables.n + 1}"))
    run.start(variables={"n": "text"})
    assert run.lines()[1] == "refused b expression_failed -> fail"


@pytest.mark.requirement("A17")
def test_a_result_becomes_a_variable_that_others_read() -> None:
    run = given(
        step("a", set_variable="x"),
        step("b", when="variables.x == 5 && variables.given == 'v'"),
    )
    run.start(variables={"given": "v"})
    run.succeed("a", result=5)
    assert run.open() == ["b/1"]


@pytest.mark.requirement("A17")
def test_the_last_one_wins() -> None:
    run = given(step("a", set_variable="x"), step("b", set_variable="x"), output="${variables.x}")
    run.start()
    run.succeed("a", result=1)
    run.succeed("b", result=2)
    assert bytes(run.history[-1].event.output) == b"2"  # type: ignore[union-attr]


def test_expressions_know_what_they_are_part_of() -> None:
    run = given(
        step("a", when="context.saga == 'test' && context.run == 1 && context.tenant == 'acme'"),
        step("b", when="context.execution_id == 'x1' && context.version == 1 && context.correlation_id == 'x1'"),
    )
    run.start()
    run.succeed("a", "b")
    assert run.statuses() == {"a": "succeeded", "b": "succeeded"}


def test_expressions_that_read_all_steps_see_those_that_are_closed() -> None:
    run = given(step("a"), step("b"), pause_for("w", 1, when="size(steps) == 2"))
    run.start()
    run.succeed("a", "b")
    assert run.step("w").status == "running"


def test_a_step_that_was_not_reached_is_pending_to_expressions() -> None:
    run = given(step("b", when="steps.c.status == 'pending'"), step("c"), mode="parallel", valid=False)
    run.start()
    assert run.open() == ["b/1", "c/1"]


@pytest.mark.requirement("B20")
def test_the_input_is_kept_with_the_execution() -> None:
    run = given(step("a"))
    run.start({"deep": [1, {"x": None}]})
    assert bytes(run.state.input) == b'{"deep":[1,{"x":null}]}'


@pytest.mark.requirement("D10")
def test_what_was_undone_leaves_no_mark() -> None:
    run = given(step("a", undo=True, idempotency_key="k"), step("b", idempotency_key="k"), step("z"))
    run.start()
    run.succeed("a")
    run.fail("z")
    run.undo("a")
    assert run.state.marks == {}
    run.retry()
    assert run.open() == ["a/2"]
