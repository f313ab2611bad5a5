"""Flows (A8, A9, X-1, S-6): named transitions, decisions, loops whose visits are numbered."""

import msgspec
import pytest

from tenuto.kernel import facts as f

from .build import approval, decision, guarded, scope, step, wait_for
from .driver import given


@pytest.mark.requirement("A9")
@pytest.mark.parametrize(
    ("outcome", "edge"),
    [
        (f.Succeeded(), "good@1/1"),
        (f.Failed(error_class="TRANSIENT", code="x"), "bad@1/1"),
        (f.TimedOut(), "late@1/1"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_each_way_a_step_ends_has_its_own_edge(outcome: f.Outcome, edge: str) -> None:
    run = given(
        step("a", tries=1, on_success="good", on_failure="bad", on_timeout="late"),
        step("good"),
        step("bad"),
        step("late"),
        mode="flow",
    )
    run.start()
    run.report("a@1", outcome)
    assert run.open() == [edge]


@pytest.mark.requirement("A9")
def test_an_edge_that_is_taken_makes_no_dead_letter() -> None:
    run = given(step("a", on_failure="mend"), step("mend", on_success="$succeed"), mode="flow")
    run.start()
    run.fail("a@1")
    run.succeed("mend@1")
    run.expect("""
        started + a@1/1
        failed a@1/1 NON_RETRYABLE -> fail
        branch a@1 -> mend + mend@1/1
        ok mend@1/1
        finished succeeded
    """)


@pytest.mark.requirement("A9")
def test_without_an_edge_a_success_ends_well_and_a_failure_ends_badly() -> None:
    run = given(step("a"), mode="flow")
    run.start()
    run.succeed("a@1")
    assert run.status == "succeeded"
    run = given(step("a", on_success="$succeed"), mode="flow")
    run.start()
    run.fail("a@1")
    run.expect("""
        started + a@1/1
        failed a@1/1 NON_RETRYABLE -> fail
        closing . failed non_retryable
        review dead_letter a@1 (non_retryable)
        finished failed non_retryable
    """)


@pytest.mark.requirement("A9")
def test_fail_and_succeed_are_targets() -> None:
    run = given(step("a", on_success="$fail", on_failure="$succeed"), mode="flow")
    run.start()
    run.succeed("a@1")
    run.expect("""
        started + a@1/1
        ok a@1/1
        review dead_letter a@1 (flow_failed)
        finished failed flow_failed
    """)
    run = given(step("a", on_success="$fail", on_failure="$succeed"), mode="flow")
    run.start()
    run.fail("a@1")
    assert run.status == "succeeded"


@pytest.mark.requirement("A9")
def test_a_flow_whose_step_timed_out_without_an_edge_has_failed_not_timed_out() -> None:
    run = given(scope("f", step("a", tries=1), mode="flow", on_timeout="$succeed"), mode="flow", name="t")
    run.start()
    run.time_out("f@1/a@1")
    run.expect("""
        started
        open f@1 + f@1/a@1/1
        timeout f@1/a@1/1 attempt -> fail
        closing f@1 failed attempt_timeout
        scope f@1 failed attempt_timeout
        closing . failed attempt_timeout
        review dead_letter f@1/a@1 (attempt_timeout)
        finished failed attempt_timeout
    """)


@pytest.mark.requirement("A8")
@pytest.mark.parametrize(("amount", "taken"), [(5_000, ["approve@1"]), (500, ["check@1"]), (50, [])])
def test_a_decision_takes_the_first_branch_that_holds(amount: int, taken: list[str]) -> None:
    run = given(
        decision("size", ("input.amount > 1000", "approve"), ("input.amount > 100", "check"), default="$succeed"),
        approval("approve"),
        step("check"),
        mode="flow",
    )
    run.start({"amount": amount})
    assert [path for path in run.statuses() if path != "size@1"] == taken


def test_a_decision_without_a_branch_that_holds_and_without_a_default_fails() -> None:
    run = given(decision("size", ("false", "a")), step("a"), mode="flow")
    run.start()
    run.expect("""
        started
        branch size@1 -> $fail
        review dead_letter size@1 (flow_failed)
        finished failed flow_failed
    """)


@pytest.mark.requirement("C16")
def test_a_decision_whose_condition_fails_goes_by_its_failure() -> None:
    run = given(
        decision("size", ("input.amount > 1", "a")),
        step("a"),
        mode="flow",
    )
    run.start({"amount": "text"})
    run.expect("""
        started
        refused size@1 expression_failed -> fail
        closing . failed expression_failed
        review dead_letter size@1 (expression_failed)
        finished failed expression_failed
    """)


@pytest.mark.requirement("A9")
def test_a_loop_numbers_its_visits() -> None:
    run = given(
        step("draft", on_success="review"),
        approval("review", on_success="publish", on_failure="draft"),
        step("publish"),
        mode="flow",
    )
    run.start()
    run.succeed("draft@1")
    run.reject("review@1")
    run.succeed("draft@2")
    run.approve("review@2")
    run.succeed("publish@1")
    run.expect("""
        started + draft@1/1
        ok draft@1/1
        review approval review@1
        resolved approval review@1 rejected -> fail
        branch review@1 -> draft + draft@2/1
        ok draft@2/1
        review approval review@2
        resolved approval review@2 approved -> succeed + publish@1/1
        ok publish@1/1
        finished succeeded
    """)


@pytest.mark.requirement("A9")
def test_a_loop_is_bounded() -> None:
    run = given(step("a", on_success="a", on_failure="$succeed", max_visits=2), mode="flow")
    run.start()
    run.succeed("a@1", "a@2")
    run.expect("""
        started + a@1/1
        ok a@1/1 + a@2/1
        ok a@2/1
        closing . failed loop_limit
        review dead_letter . (loop_limit)
        finished failed loop_limit
    """)


def test_a_loop_without_an_attempt_is_bounded_too() -> None:
    run = given(decision("again", ("true", "again"), default="$succeed"), mode="flow")
    run.start()
    assert run.status == "failed"
    assert run.state.failure is not None
    assert run.state.failure.code == "loop_limit"


def test_expressions_read_the_last_visit() -> None:
    run = given(
        step("count", on_success="enough"),
        decision("enough", ("steps.count.result >= 2", "$succeed"), default="count"),
        mode="flow",
    )
    run.start()
    run.succeed("count@1", result=1)
    run.succeed("count@2", result=2)
    assert run.status == "succeeded"


def test_a_step_of_a_flow_that_is_skipped_goes_on_by_success() -> None:
    run = given(step("a", when="false", on_success="b", on_failure="c"), step("b"), step("c"), mode="flow")
    run.start()
    assert run.open() == ["b@1/1"]


def test_a_step_of_a_flow_may_be_passed_over() -> None:
    run = given(step("a", failure_mode="continue", on_success="b"), step("b"), mode="flow")
    run.start()
    run.fail("a@1")
    assert run.statuses() == {"a@1": "skipped", "b@1": "running"}


def test_a_scope_in_a_flow_has_edges_too() -> None:
    run = given(
        scope("s", step("x"), timeout_ms=100, on_success="good", on_failure="bad", on_timeout="late"),
        step("good"),
        step("bad"),
        step("late"),
        mode="flow",
    )
    run.start()
    run.tick()
    run.succeed("s@1/x")
    assert run.open() == ["late@1/1"]


def test_a_fan_out_in_a_flow_goes_by_its_failure_when_all_its_clones_are_closed() -> None:
    run = given(step("n", foreach="[1, 2]", on_failure="mend"), step("mend"), mode="flow")
    run.start()
    run.fail("n#0@1")
    assert run.open() == ["n#1@1/1"]
    run.succeed("n#1@1")
    run.expect("""
        started
        expanded n@1 2 + n@1#0..1/1
        failed n#0@1/1 NON_RETRYABLE -> fail
        closing n@1 failed non_retryable
        ok n#1@1/1
        scope n@1 failed non_retryable
        branch n@1 -> mend + mend@1/1
    """)


def test_a_fan_out_in_a_flow_with_few_slots_starts_them_all() -> None:
    run = given(step("n", foreach="[1, 2, 3]", max_concurrency=1, on_success="z"), step("z"), mode="flow")
    run.start()
    run.succeed("n#0@1", "n#1@1", "n#2@1")
    assert run.open() == ["z@1/1"]


def test_a_wait_in_a_flow_has_a_time_edge() -> None:
    run = given(wait_for("w", "go", timeout_ms=1_000, on_timeout="late"), step("late"), mode="flow")
    run.start()
    run.tick()
    run.expect("""
        started
        wait w@1 go deadline@1000
        expired w@1 deadline -> fail
        branch w@1 -> late + late@1/1
    """)
    assert run.step("w@1").status == "timed_out"


def test_a_retry_delay_in_a_flow_is_awaited_and_its_slot_queued_for() -> None:
    run = given(step("a"), mode="flow")
    run.start()
    run.fail("a@1", "TRANSIENT")
    run.pause()
    run.tick_to(1_000)
    run.resume()
    assert run.open() == ["a@1/2"]


@pytest.mark.requirement("B20")
def test_the_output_is_a_template() -> None:
    run = given(
        step("a", on_success="b"),
        step("b"),
        mode="flow",
        output={"sum": "${steps.a.result + steps.b.result}", "of": "${input.who}"},
    )
    run.start({"who": "ann"})
    run.succeed("a@1", result=1)
    run.succeed("b@1", result=2)
    event = run.history[-1].event
    assert bytes(event.output) == b'{"sum":3,"of":"ann"}'  # type: ignore[union-attr]


@pytest.mark.requirement("C16")
def test_an_output_that_cannot_be_made_fails_and_undoes() -> None:
    run = given(step("a", undo=True), output="${steps.a.result.x}")
    run.start()
    run.succeed("a", result=1)
    run.undo("a")
    run.expect("""
        started + a/1
        ok a/1
        closing . failed expression_failed
        undo because failed: a + a:undo/1
        ok a:undo/1
        review dead_letter . (expression_failed)
        finished failed expression_failed
    """)


def test_a_decision_that_cannot_be_made_goes_by_its_edge_for_failures() -> None:
    made = decision("size", ("input.amount > 1", "big"), default="$succeed")
    run = given(msgspec.structs.replace(made, on_failure="ask"), step("big"), step("ask"), mode="flow")
    run.start({})
    run.succeed("ask@1")
    run.expect("""
        started
        refused size@1 expression_failed -> fail
        branch size@1 -> ask + ask@1/1
        ok ask@1/1
        finished succeeded
    """)


def test_a_step_whose_probe_answers_during_a_pause_is_attempted_again_on_resume() -> None:
    run = given(guarded("a"), mode="flow")
    run.start()
    run.fail("a@1", "INDETERMINATE")
    assert run.open() == ["a@1:guard/1"]
    run.pause()
    run.not_done("a@1")
    assert run.open() == []
    run.resume()
    assert run.open() == ["a@1/2"]
