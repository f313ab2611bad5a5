"""Scopes and their failure modes (C15, C16, C20, C21, B17): 002 section 3, read with decisions 2-22 to 2-29."""

from typing import Any

import pytest

from tenuto.kernel.definition import FailureMode

from .build import approval, guarded, pause_for, scope, step, unsafe, wait_for
from .driver import Driver, given

# -- Fail fast ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("C15")
def test_fail_fast_moves_up_at_once_and_starts_nothing_more() -> None:
    run = given(scope("agent", scope("task", step("a"), step("b"))), step("c"))
    run.start()
    run.fail("agent/task/a")
    run.expect("""
        started
        open agent
        open agent/task + agent/task/a/1
        failed agent/task/a/1 NON_RETRYABLE -> fail
        closing agent/task failed non_retryable
        scope agent/task failed non_retryable
        closing agent failed non_retryable
        scope agent failed non_retryable
        closing . failed non_retryable
        review dead_letter agent/task/a (non_retryable)
        finished failed non_retryable
    """)


@pytest.mark.requirement("C15")
def test_fail_fast_awaits_what_runs_and_closes_what_only_waits() -> None:
    run = given(
        step("bad"),
        step("running"),
        step("delayed"),
        approval("person"),
        wait_for("signal", "go"),
        pause_for("timer", 60_000),
        scope("nested", step("inner")),
        step("many", foreach="[1, 2]", max_concurrency=1),
        mode="parallel",
    )
    run.start()
    run.fail("delayed", "TRANSIENT")
    run.skip_lines()
    run.fail("bad")
    run.expect("""
        failed bad/1 NON_RETRYABLE -> fail
        closing . failed non_retryable
        closed delayed canceled
        resolved approval person dismiss -> close
        closed person canceled
        closed signal canceled
        closed timer canceled
        closing nested canceled
    """)
    assert run.open() == ["running/1", "nested/inner/1", "many#0/1"]
    run.succeed("running", "nested/inner", "many#0")
    run.expect("""
        ok running/1
        ok nested/inner/1
        scope nested canceled
        ok many#0/1
        scope many canceled
        review dead_letter bad (non_retryable)
        finished failed non_retryable
    """)
    assert run.wake_at is None


def test_an_attempt_that_fails_in_a_closing_scope_is_not_repeated() -> None:
    run = given(step("a"), step("b"), mode="parallel")
    run.start()
    run.fail("a")
    run.fail("b", "TRANSIENT")
    run.expect("""
        started + a/1 b/1
        failed a/1 NON_RETRYABLE -> fail
        closing . failed non_retryable
        failed b/1 TRANSIENT -> fail
        review dead_letter a (non_retryable)
        finished failed non_retryable
    """)


@pytest.mark.requirement("C11")
def test_a_closing_scope_waits_until_an_unknown_outcome_is_known() -> None:
    run = given(step("bad"), unsafe("pay", reconcile=True, undo=True), mode="parallel")
    run.start()
    run.begin("pay")
    run.fail("bad")
    run.skip_lines()
    run.time_out("pay")
    run.pending("pay", retry_after=5_000)
    run.tick()
    run.done("pay")
    run.undo("pay")
    run.expect("""
        timeout pay/1 attempt -> probe + pay:reconcile/1
        probed pay:reconcile/1 pending -> again@5000
        granted + pay:reconcile/2
        probed pay:reconcile/2 done -> succeed
        undo because failed: pay + pay:undo/1
        ok pay:undo/1
        review dead_letter bad (non_retryable)
        finished failed non_retryable
    """)


def test_a_guarded_step_that_waits_for_its_delay_is_not_awaited_because_its_outcome_is_known() -> None:
    run = given(step("bad"), guarded("a"), mode="parallel")
    run.start()
    run.fail("a", "TRANSIENT")
    run.fail("bad")
    assert run.status == "failed"
    assert run.statuses() == {"bad": "failed", "a": "canceled"}


# -- Continue ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("C16")
def test_continue_passes_over_the_step_and_not_the_task() -> None:
    run = given(scope("task", step("a"), step("b"), failure_mode="continue"), step("c"))
    run.start()
    run.fail("task/a")
    run.succeed("task/b", "c")
    run.expect("""
        started
        open task + task/a/1
        failed task/a/1 NON_RETRYABLE -> skip + task/b/1
        ok task/b/1
        scope task succeeded + c/1
        ok c/1
        finished succeeded
    """)
    assert run.statuses() == {"task/a": "skipped", "task/b": "succeeded", "c": "succeeded"}


@pytest.mark.requirement("C16")
def test_a_task_whose_steps_were_all_passed_over_is_skipped() -> None:
    run = given(scope("task", step("a"), step("b"), failure_mode="continue"), step("c"))
    run.start()
    run.fail("task/a")
    run.fail("task/b")
    run.succeed("c")
    run.expect("""
        started
        open task + task/a/1
        failed task/a/1 NON_RETRYABLE -> skip + task/b/1
        failed task/b/1 NON_RETRYABLE -> skip
        scope task skipped + c/1
        ok c/1
        finished succeeded (partial)
    """)


@pytest.mark.requirement("C16")
def test_unless_it_says_that_this_is_a_failure() -> None:
    run = given(scope("task", step("a"), failure_mode="continue", fail_if_empty=True), step("c"))
    run.start()
    run.fail("task/a")
    run.expect("""
        started
        open task + task/a/1
        failed task/a/1 NON_RETRYABLE -> skip
        scope task failed nothing_done
        closing . failed nothing_done
        review dead_letter task (nothing_done)
        finished failed nothing_done
    """)


@pytest.mark.requirement("C16")
@pytest.mark.parametrize(
    ("failed", "status", "outcome"),
    [((), "succeeded", ""), (("a",), "succeeded", "partial"), (("a", "b"), "succeeded", "skipped")],
)
def test_the_outcome_of_a_run_says_what_was_passed_over(failed: tuple[str, ...], status: str, outcome: str) -> None:
    run = given(
        scope("a", step("s1")),
        scope("b", step("s2")),
        mode="parallel",
        failure_mode="continue",
    )
    run.start()
    for name, path in (("a", "a/s1"), ("b", "b/s2")):
        if name in failed:
            run.fail(path)
        else:
            run.succeed(path)
    assert (run.status, run.state.outcome) == (status, outcome)


@pytest.mark.requirement("C16")
def test_what_was_skipped_by_its_own_condition_is_not_partial() -> None:
    run = given(step("a", when="false"), step("b"), step("n", foreach="[]"))
    run.start()
    assert (run.run_out(), run.state.outcome) == ("succeeded", "")


@pytest.mark.requirement("C16")
def test_a_fan_out_with_failed_clones_is_partial() -> None:
    run = given(step("n", foreach="[1]", failure_mode="continue"), step("b"))
    run.start()
    run.fail("n#0")
    run.succeed("b")
    assert (run.status, run.state.outcome) == ("succeeded", "partial")


@pytest.mark.requirement("C15")
def test_dependents_of_a_failed_step_are_skipped_and_others_run() -> None:
    run = given(
        step("a"),
        step("b", after=("a",)),
        step("c", after=("b",)),
        scope("s", step("inner"), depends_on=("b",)),
        step("n", foreach="[1]", after=("b",)),
        step("d"),
        mode="dag",
        failure_mode="continue",
    )
    run.start()
    run.fail("a")
    run.succeed("d")
    run.expect("""
        started + a/1 d/1
        failed a/1 NON_RETRYABLE -> skip
        closed b failed_upstream
        closed c failed_upstream
        closed s failed_upstream
        closed n failed_upstream
        ok d/1
        finished succeeded (partial)
    """)


@pytest.mark.requirement("C15")
def test_in_a_sequence_mere_order_is_not_dependence() -> None:
    run = given(step("a"), step("b"), failure_mode="continue")
    run.start()
    run.fail("a")
    assert run.open() == ["b/1"]


def test_a_step_may_be_passed_over_by_its_own_word() -> None:
    run = given(step("a", failure_mode="continue"), step("b", after=("a",)), mode="dag")
    run.start()
    run.fail("a")
    run.succeed("b")
    assert run.statuses() == {"a": "skipped", "b": "succeeded"}
    assert (run.status, run.state.outcome) == ("succeeded", "partial")


def test_continue_holds_for_timeouts_deadlines_losses_and_probes_too() -> None:
    run = given(
        step("a", tries=1),
        step("b", timeout=100, timeout_ms=100),
        step("c"),
        guarded("d", tries=1),
        approval("e", timeout_ms=60_000),
        approval("f"),
        mode="parallel",
        failure_mode="continue",
    )
    run.start()
    run.time_out("a")
    run.tick()
    run.crash_and_wait(4)
    run.not_done("d")  # losing a worker was not a try
    run.time_out("d")
    run.not_done("d")
    run.tick()
    run.reject("f")
    assert set(run.statuses().values()) == {"skipped"}
    assert (run.status, run.state.outcome) == ("succeeded", "skipped")


def test_continue_in_an_outer_scope_passes_over_an_inner_one() -> None:
    run = given(scope("task", step("a"), step("b")), step("c"), failure_mode="continue")
    run.start()
    run.fail("task/a")
    run.succeed("c")
    run.expect("""
        started
        open task + task/a/1
        failed task/a/1 NON_RETRYABLE -> fail
        closing task failed non_retryable
        scope task skipped non_retryable + c/1
        ok c/1
        finished succeeded (partial)
    """)


# -- Retry -------------------------------------------------------------------------------------------------------------


def retry_run(**fields: Any) -> Driver:
    run = given(scope("task", step("a"), step("b", tries=1), failure_mode="retry", **fields))
    run.start()
    run.succeed("task/a")
    run.skip_lines()
    return run


@pytest.mark.requirement("C15", "C21")
def test_a_scope_is_run_three_times_in_all() -> None:
    run = retry_run()
    for _ in range(2):
        run.fail("task/b", "TRANSIENT")
        run.tick()
        run.succeed("task/a")
    run.fail("task/b", "TRANSIENT")
    run.expect("""
        failed task/b/1 TRANSIENT -> fail
        closing task retry transient
        round 2 of task budget=19 not@97
        ready task + task/a/2
        ok task/a/2 + task/b/2
        failed task/b/2 TRANSIENT -> fail
        closing task retry transient
        round 3 of task budget=18 not@279
        ready task + task/a/3
        ok task/a/3 + task/b/3
        failed task/b/3 TRANSIENT -> fail
        closing task failed transient
        scope task failed transient
        closing . failed transient
        review dead_letter task/b (transient)
        finished failed transient
    """)


@pytest.mark.requirement("C15")
def test_only_retryable_failures_begin_another_round() -> None:
    run = retry_run()
    run.fail("task/b", "NON_RETRYABLE")
    assert run.status == "failed"


@pytest.mark.requirement("C15")
def test_one_budget_caps_the_product_of_all_levels() -> None:
    run = given(
        scope("agent", scope("task", step("a", tries=1), failure_mode="retry"), failure_mode="retry"),
        failure_mode="retry",
        retry_budget=4,
    )
    run.start()
    rounds = 0
    while run.status == "running":
        run.fail("agent/task/a", "TRANSIENT")
        rounds += 1
        if run.status == "running":
            run.tick()
    assert rounds == 5
    assert run.status == "failed"


@pytest.mark.requirement("C15")
def test_completed_unsafe_and_reusable_steps_give_their_stored_result() -> None:
    run = given(
        scope(
            "task",
            unsafe("pay", undo=True),
            step("draw", reusable=True),
            step("plain"),
            step("n", foreach="[1, 2]", reusable=True),
            step("last", tries=1),
            failure_mode="retry",
        )
    )
    run.start()
    run.begin("task/pay")
    run.succeed("task/pay", "task/draw", "task/plain", "task/n#0", "task/n#1")
    run.fail("task/last", "TRANSIENT")
    run.skip_lines()
    run.tick()
    run.succeed("task/plain")
    run.expect("""
        ready task
        closed task/pay reused
        closed task/draw reused + task/plain/2
        ok task/plain/2
        expanded task/n 2
        scope task/n succeeded + task/last/2
    """)


@pytest.mark.requirement("C10")
def test_a_round_never_repeats_an_unsafe_step_that_was_tried_in_vain() -> None:
    run = given(scope("task", unsafe("pay", undo=True), failure_mode="retry"))
    run.start()
    run.begin("task/pay")
    run.skip_lines()
    run.fail("task/pay", "TRANSIENT")
    run.undo("task/pay")
    run.expect("""
        failed task/pay/1 TRANSIENT -> fail half-done
        closing task retry transient
        closing task failed transient
        scope task failed transient
        closing . failed transient
        undo because failed: task/pay + task/pay:undo/1
        ok task/pay:undo/1
        review dead_letter task/pay (transient)
        finished failed transient
    """)


@pytest.mark.requirement("C10")
@pytest.mark.parametrize("nested", [False, True])
def test_nor_does_it_when_another_step_failed(nested: bool) -> None:
    pay = step("n", foreach="[1]", safety="NOT_SAFE_TO_RETRY", undo=True)
    where = "inner/n#0" if nested else "n#0"
    run = given(
        scope("task", scope("inner", pay) if nested else pay, step("b", tries=1), mode="parallel", failure_mode="retry")
    )
    run.start()
    run.begin(f"task/{where}")
    run.fail("task/b", "TRANSIENT")
    run.fail(f"task/{where}", "TRANSIENT")
    assert run.scope("task").outcome == "failed"
    assert run.run_out() == "failed"


def test_a_round_waits_for_what_still_runs() -> None:
    run = given(scope("task", step("a", tries=1), step("b"), mode="parallel", failure_mode="retry"))
    run.start()
    run.fail("task/a", "TRANSIENT")
    run.succeed("task/b")
    run.tick()
    run.succeed("task/a", "task/b")
    run.expect("""
        started
        open task + task/a/1 task/b/1
        failed task/a/1 TRANSIENT -> fail
        closing task retry transient
        ok task/b/1
        round 2 of task budget=19 not@97
        ready task + task/a/2 task/b/2
        ok task/a/2
        ok task/b/2
        scope task succeeded
        finished succeeded
    """)


def test_the_root_is_run_again_in_rounds_when_no_credits_are_at_stake() -> None:
    run = given(step("a", undo=True), step("b", tries=1), failure_mode="retry", timeout_ms=10_000)
    run.start()
    run.succeed("a")
    run.fail("b", "TRANSIENT")
    run.tick()
    run.succeed("a", "b")
    run.expect("""
        started deadline@10000 + a/1
        ok a/1 + b/1
        failed b/1 TRANSIENT -> fail
        closing . retry transient
        round 2 of . budget=19 not@95
        ready . + a/2
        ok a/2 + b/2
        ok b/2
        finished succeeded
    """)


def test_the_deadline_of_an_execution_covers_its_rounds() -> None:
    run = given(step("a", tries=1), step("b"), mode="parallel", failure_mode="retry", timeout_ms=1_000)
    run.start()
    run.fail("a", "TRANSIENT")
    run.skip_lines()
    run.tick()
    run.succeed("b")
    run.expect("""
        closing . timed_out deadline
        ok b/1
        review dead_letter . (deadline)
        finished failed deadline
    """)


def test_the_deadline_of_an_execution_ends_the_wait_for_a_round() -> None:
    run = given(step("a", tries=1), failure_mode="retry", timeout_ms=50)
    run.start()
    run.fail("a", "TRANSIENT")
    run.tick()
    assert run.elapsed == 50
    assert run.lines()[-3:] == [
        "closing . timed_out deadline",
        "review dead_letter . (deadline)",
        "finished failed deadline",
    ]


def test_effects_of_an_earlier_round_are_undone_once_all_rounds_failed() -> None:
    run = given(scope("task", step("a", undo=True), step("b", tries=1), failure_mode="retry", max_rounds=2))
    run.start()
    for _ in range(2):
        run.succeed("task/a")
        run.fail("task/b", "TRANSIENT")
        if run.wake_at is not None:
            run.tick()
    run.undo("task/a")
    assert run.status == "failed"


# -- Time and space ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("C20")
@pytest.mark.parametrize("mode", ["fail_fast", "continue"])
def test_a_scope_has_its_own_time(mode: FailureMode) -> None:
    run = given(
        scope("task", step("a"), approval("b"), mode="parallel", timeout_ms=1_000), step("c"), failure_mode=mode
    )
    run.start()
    run.tick()
    run.expect("""
        started
        open task deadline@1000 + task/a/1
        review approval task/b
        closing task timed_out scope_timeout
        resolved approval task/b dismiss -> close
        closed task/b canceled
    """)
    run.succeed("task/a")
    assert run.new_lines()[1] == (
        "scope task timed_out scope_timeout" if mode == "fail_fast" else "scope task skipped scope_timeout + c/1"
    )


@pytest.mark.requirement("C20")
def test_the_time_of_a_scope_begins_anew_with_a_round() -> None:
    run = given(scope("task", step("a", tries=1), failure_mode="retry", timeout_ms=1_000))
    run.start()
    run.tick_to(900)
    run.fail("task/a", "TRANSIENT")
    run.tick()
    assert run.wake_at == 1_900


@pytest.mark.requirement("B13")
def test_the_time_of_an_execution_is_bounded() -> None:
    run = given(step("a"), step("b"), timeout_ms=1_000)
    run.start()
    run.tick()
    assert run.open() == ["a/1"], "what runs is awaited: its own timer bounds it"
    run.succeed("a")
    run.expect("""
        started deadline@1000 + a/1
        closing . timed_out deadline
        ok a/1
        review dead_letter . (deadline)
        finished failed deadline
    """)


@pytest.mark.requirement("G4")
def test_no_more_children_run_than_the_scope_allows() -> None:
    run = given(
        scope("wide", *(step(f"a{i}") for i in range(4)), mode="parallel", max_concurrency=2),
        *(scope(f"s{i}", step(f"b{i}")) for i in range(2)),
        mode="parallel",
        max_concurrency=2,
    )
    run.start()
    assert run.open() == ["wide/a0/1", "wide/a1/1", "s0/b0/1"]
    run.succeed("wide/a0")
    assert run.open() == ["wide/a1/1", "s0/b0/1", "wide/a2/1"]
    run.succeed("s0/b0")
    assert run.open() == ["wide/a1/1", "wide/a2/1", "s1/b1/1"]
    assert run.run_out() == "succeeded"


def test_a_delay_holds_no_slot_and_what_is_ready_again_stands_first() -> None:
    run = given(*(step(f"a{i}") for i in range(3)), mode="parallel", max_concurrency=1)
    run.start()
    run.fail("a0", "TRANSIENT")
    assert run.open() == ["a1/1"]
    run.tick()
    assert run.open() == ["a1/1"], "its delay is over, but there is no slot"
    run.succeed("a1")
    assert run.open() == ["a0/2"]
    run.succeed("a0")
    assert run.open() == ["a2/1"]


def test_waits_and_approvals_hold_no_slot() -> None:
    run = given(approval("p"), wait_for("w", "go"), step("a"), mode="parallel", max_concurrency=1)
    run.start()
    assert run.open() == ["a/1"]


@pytest.mark.requirement("B17")
def test_no_child_is_left_open_when_its_scope_is_closed() -> None:
    run = given(scope("x", scope("y", step("a"), step("b"), mode="parallel"), step("c"), mode="parallel"))
    run.start()
    run.fail("x/y/a")
    run.succeed("x/y/b", "x/c")
    assert run.status == "failed"
    assert {path: run.scope(path).status for path in ("x", "x/y")} == {"x": "closed", "x/y": "closed"}
    assert not run.scope("x").active
    assert not run.scope("x/y").active


# -- Conditions --------------------------------------------------------------------------------------------------------


def test_when_decides_by_what_came_before() -> None:
    run = given(
        step("a"),
        step("b", when="steps.a.result > 1"),
        scope("s", step("c"), when="steps.b.status == 'skipped'"),
        step("n", foreach="[1]", when="input.fan"),
    )
    run.start({"fan": False})
    run.succeed("a", result=1)
    run.succeed("s/c")
    run.expect("""
        started + a/1
        ok a/1
        closed b skipped
        open s + s/c/1
        ok s/c/1
        scope s succeeded
        closed n skipped
        finished succeeded
    """)


def test_dependents_of_a_step_skipped_by_its_condition_run() -> None:
    run = given(step("a", when="false"), step("b", after=("a",), when="steps.a.result == null"), mode="dag")
    run.start()
    assert run.open() == ["b/1"]


@pytest.mark.requirement("C16")
@pytest.mark.parametrize("mode", ["fail_fast", "continue"])
def test_a_condition_that_fails_fails_its_step(mode: FailureMode) -> None:
    run = given(
        step("a", when="input.x > 1"),
        scope("s", step("c"), when="input.x > 1"),
        step("n", foreach="input.x"),
        mode="parallel",
        failure_mode=mode,
    )
    run.start({"x": "text"})
    if mode == "continue":
        run.expect("""
            started
            refused a expression_failed -> skip
            refused s expression_failed -> skip
            refused n expression_failed -> skip
            finished succeeded (skipped)
        """)
    else:
        run.expect("""
            started
            refused a expression_failed -> fail
            closing . failed expression_failed
            review dead_letter a (expression_failed)
            finished failed expression_failed
        """)


def test_an_execution_of_nothing_but_a_scope_without_children_to_run_succeeds() -> None:
    run = given(scope("s", step("a", when="false"), step("b", when="false")))
    run.start()
    assert (run.status, run.state.outcome) == ("succeeded", "skipped")


# -- Repetition --------------------------------------------------------------------------------------------------------


def test_a_scope_is_repeated_until_its_condition_is_met() -> None:
    run = given(
        scope(
            "poll", step("ask"), pause_for("rest", 1_000), repeat_until="steps.ask.result == 'ready'", timeout_ms=5_000
        ),
        step("z"),
    )
    run.start()
    run.succeed("poll@1/ask", result="not yet")
    run.tick()
    run.succeed("poll@2/ask", result="ready")
    run.tick()
    run.succeed("z")
    run.expect("""
        started
        open poll@1 deadline@5000 + poll@1/ask/1
        ok poll@1/ask/1
        wait poll@1/rest timer due@1000
        waited poll@1/rest by timer
        repeat poll@1
        open poll@2 deadline@6000 + poll@2/ask/1
        ok poll@2/ask/1
        wait poll@2/rest timer due@2000
        waited poll@2/rest by timer
        scope poll@2 succeeded + z/1
        ok z/1
        finished succeeded
    """)


def test_a_repetition_is_bounded() -> None:
    run = given(scope("poll", step("ask"), repeat_until="false", max_visits=2))
    run.start()
    run.succeed("poll@1/ask", "poll@2/ask")
    run.expect("""
        started
        open poll@1 + poll@1/ask/1
        ok poll@1/ask/1
        repeat poll@1
        open poll@2 + poll@2/ask/1
        ok poll@2/ask/1
        closing poll@2 failed loop_limit
        scope poll@2 failed loop_limit
        closing . failed loop_limit
        review dead_letter poll@2 (loop_limit)
        finished failed loop_limit
    """)


def test_a_repetition_whose_condition_fails_fails() -> None:
    run = given(scope("poll", step("ask"), repeat_until="steps.ask.result > 1"))
    run.start()
    run.succeed("poll@1/ask", result="text")
    assert run.lines()[-4:] == [
        "scope poll@1 failed expression_failed",
        "closing . failed expression_failed",
        "review dead_letter poll@1 (expression_failed)",
        "finished failed expression_failed",
    ]


def test_a_new_run_repeats_what_the_last_one_repeated_from_its_record() -> None:
    run = given(scope("poll", step("ask"), repeat_until="steps.ask.result == 2"), step("z"))
    run.start()
    run.succeed("poll@1/ask", result=1)
    run.succeed("poll@2/ask", result=2)
    run.fail("z")
    run.skip_lines()
    run.retry()
    run.succeed("z")
    run.expect("""
        resolved dead_letter z retry -> close
        run 2
        open poll@1
        closed poll@1/ask reused
        repeat poll@1
        closed poll@2 reused + z/2
        ok z/2
        finished succeeded
    """)


# -- Closing, from several sides ---------------------------------------------------------------------------------------


def test_a_scope_that_is_closing_already_keeps_its_own_reason() -> None:
    run = given(scope("s", step("a"), step("b"), mode="parallel"), step("c"), mode="parallel")
    run.start()
    run.fail("s/a")
    run.fail("c")
    run.succeed("s/b")
    assert run.scope("s").outcome == "failed"
    assert run.lines()[-1] == "finished failed non_retryable"


@pytest.mark.requirement("C15")
def test_the_last_of_the_budget_goes_to_whoever_comes_first() -> None:
    run = given(
        *(scope(f"s{i}", step(f"a{i}", tries=1), step(f"b{i}"), mode="parallel", failure_mode="retry") for i in (1, 2)),
        mode="parallel",
        retry_budget=1,
    )
    run.start()
    for i in (1, 2):
        run.fail(f"s{i}/a{i}", "TRANSIENT")
    run.skip_lines()
    for i in (1, 2):
        run.succeed(f"s{i}/b{i}")
    run.expect("""
        ok s1/b1/1
        round 2 of s1 budget=0 not@106
        ok s2/b2/1
        scope s2 failed transient
        closing . failed transient
        closing s1 canceled
        scope s1 canceled
        review dead_letter s2/a2 (transient)
        finished failed transient
    """)


def test_half_made_clones_of_an_earlier_round_are_undone() -> None:
    run = given(
        scope(
            "s",
            step("first", tries=1),
            step("n", foreach="[1, 2]", undo=True, tries=1, partial_effect=True),
            failure_mode="retry",
            max_rounds=2,
        ),
    )
    run.start()
    run.succeed("s/first")
    run.fail("s/n#0", "TRANSIENT")
    run.succeed("s/n#1")
    run.tick()
    run.fail("s/first")
    run.undo("s/n#1", "s/n#0")
    assert run.status == "failed"
