"""Cancel (B14, X-5, K-5, R-8): three modes, and what an outcome that nobody knows does to each."""

from collections.abc import Callable
from typing import Any

import pytest

from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref
from tenuto.kernel.decide import decide
from tenuto.kernel.definition import CancelMode, Node, Step
from tenuto.kernel.events import AttemptsReturned, Entry
from tenuto.kernel.evolve import evolve

from .build import approval, callback, guarded, pause_for, scope, step, unsafe, wait_for
from .driver import Driver, given


@pytest.mark.requirement("B14")
def test_drain_lets_the_current_step_finish_and_undoes_nothing() -> None:
    run = given(step("a", undo=True), step("b"), step("c"))
    run.start()
    run.succeed("a")
    run.cancel("drain")
    assert run.status == "running"
    assert run.open() == ["b/1"]
    run.succeed("b")
    run.expect("""
        started + a/1
        ok a/1 + b/1
        cancel drain
        closing . canceled
        ok b/1
        finished canceled
    """)


@pytest.mark.requirement("B14")
@pytest.mark.parametrize("end", ["fail", "retryable", "timeout"])
def test_a_cancel_ends_however_the_current_step_ends(end: str) -> None:
    run = given(step("a"), step("b"))
    run.start()
    run.cancel("drain")
    {
        "fail": lambda: run.fail("a"),
        "retryable": lambda: run.fail("a", "TRANSIENT"),
        "timeout": lambda: run.time_out("a"),
    }[end]()
    assert run.status == "canceled"
    assert run.reviews() == [], "no dead letter: it was asked for"


@pytest.mark.requirement("B14", "E1")
@pytest.mark.parametrize("end", ["retryable", "timeout", "lost"])
def test_a_step_that_may_be_half_done_is_compensated_if_canceled_before_its_retry(end: str) -> None:
    run = given(step("a", undo=True, partial_effect=True))
    run.start()
    if end == "retryable":
        run.fail("a", "TRANSIENT")
    elif end == "timeout":
        run.time_out("a")
    else:
        run.crash_and_wait(1)  # the first lost attempt is repeated at once, the second after a delay
        run.crash()
    assert run.open() == []
    run.cancel("compensate")
    run.undo("a")
    assert run.status == "canceled"


@pytest.mark.requirement("B14")
def test_timers_of_the_current_step_go_on_and_end_the_cancel() -> None:
    run = given(callback("ocr"), step("b"))
    run.start()
    run.dispatch("ocr")
    run.cancel("drain")
    run.tick()
    assert run.status == "canceled"


@pytest.mark.requirement("B14")
def test_what_waits_is_closed_at_once() -> None:
    run = given(
        approval("ok"),
        wait_for("w", "go"),
        pause_for("t", 1_000),
        scope("s", step("a"), failure_mode="retry"),
        mode="parallel",
    )
    run.start()
    run.fail("s/a", "TRANSIENT")
    run.cancel("drain")
    assert run.status == "canceled"
    assert set(run.statuses().values()) == {"canceled"}


def test_a_cancel_ends_the_wait_for_a_round() -> None:
    run = given(scope("s", step("a", tries=1), failure_mode="retry"), step("b"), mode="parallel")
    run.start()
    run.fail("s/a", "TRANSIENT")
    run.cancel("drain")
    assert run.open() == ["b/1"]
    run.succeed("b")
    assert run.status == "canceled"


def test_a_cancel_of_a_scope_that_was_to_begin_another_round() -> None:
    run = given(scope("s", step("a", tries=1), step("b"), mode="parallel", failure_mode="retry"))
    run.start()
    run.fail("s/a", "TRANSIENT")
    run.cancel("drain")
    run.succeed("s/b")
    assert run.status == "canceled"


@pytest.mark.requirement("B14")
def test_compensate_undoes_what_completed_and_ends_canceled() -> None:
    run = given(step("a", undo=True), step("b", undo=True), cancel="compensate")
    run.start()
    run.succeed("a")
    run.cancel()
    run.succeed("b")
    run.undo("b", "a")
    run.expect("""
        started + a/1
        ok a/1 + b/1
        cancel compensate
        closing . canceled
        ok b/1
        undo because canceled: b | a + b:undo/1
        ok b:undo/1 + a:undo/1
        ok a:undo/1
        finished canceled
    """)


@pytest.mark.requirement("B14")
def test_with_nothing_to_undo_it_ends_at_once() -> None:
    run = given(approval("ok"), cancel="compensate")
    run.start()
    run.cancel()
    assert run.status == "canceled"


# -- An outcome that nobody knows --------------------------------------------------------------------------------------


def cancelled_payment(mode: CancelMode = "compensate") -> Driver:
    run = given(step("reserve", undo=True), unsafe("pay", reconcile=True, undo=True), step("confirm"))
    run.start()
    run.succeed("reserve")
    run.begin("pay")
    run.time_out("pay")
    run.cancel(mode)
    run.skip_lines()
    assert run.open() == ["pay:reconcile/1"], "probes go on under a cancel: they are how it ends"
    return run


@pytest.mark.requirement("C11")
def test_done_is_undone() -> None:
    run = cancelled_payment()
    run.done("pay")
    run.undo("pay", "reserve")
    run.expect("""
        probed pay:reconcile/1 done -> succeed
        undo because canceled: pay | reserve + pay:undo/1
        ok pay:undo/1 + reserve:undo/1
        ok reserve:undo/1
        finished canceled
    """)


@pytest.mark.requirement("C11")
def test_not_done_ends_the_step_and_is_not_attempted_again() -> None:
    run = cancelled_payment()
    run.not_done("pay")
    run.undo("reserve")
    run.expect("""
        probed pay:reconcile/1 not_done -> fail
        undo because canceled: reserve + reserve:undo/1
        ok reserve:undo/1
        finished canceled
    """)


@pytest.mark.requirement("C11")
def test_unknown_waits_for_a_person() -> None:
    run = cancelled_payment()
    run.unknown("pay")
    assert run.status == "waiting_approval"
    assert run.state.cancel is not None
    run.resolve("pay", "compensate")
    run.undo("pay", "reserve")
    assert run.status == "canceled"


@pytest.mark.requirement("C13")
def test_pending_is_asked_until_its_deadline_and_then_a_person_is() -> None:
    run = cancelled_payment()
    for _ in range(200):
        if run.open():
            run.pending("pay", retry_after=30_000)
        else:
            run.tick()
        if run.status == "waiting_approval":
            break
    assert run.elapsed == 15 * 60_000
    assert run.lines()[-2:] == ["expired pay reconcile_timeout -> review", "review indeterminate pay"]


@pytest.mark.requirement("C11")
def test_drain_finds_out_too_and_leaves_it() -> None:
    run = cancelled_payment("drain")
    run.done("pay")
    assert run.status == "canceled"
    assert run.undone() == {}


# -- Terminate ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("B14")
def test_terminate_awaits_nothing() -> None:
    run = given(
        step("a"),
        guarded("g"),
        approval("ok"),
        wait_for("w", "go"),
        step("n", foreach="[1, 2]", max_concurrency=1),
        scope("s", step("b")),
        mode="parallel",
    )
    run.start()
    run.fail("g", "TRANSIENT")
    run.skip_lines()
    run.cancel("terminate")
    run.expect("""
        cancel terminate
        abandoned a/1 n#0/1 s/b/1 (terminated)
        closed a canceled
        closed g canceled
        resolved approval ok dismiss -> close
        closed ok canceled
        closed w canceled
        closed n#0 canceled
        closed s/b canceled
        finished canceled
    """)
    assert run.succeed("a", number=1) == f.Ignored("terminal")


@pytest.mark.requirement("B14")
@pytest.mark.parametrize("phase", ["running", "probing", "waiting to probe", "asked"])
def test_a_terminated_unsafe_effect_leaves_a_question(phase: str) -> None:
    run = given(unsafe("pay", reconcile=phase != "asked"))
    run.start()
    run.begin("pay")
    if phase != "running":
        run.time_out("pay")
    if phase == "waiting to probe":
        run.pending("pay", retry_after=1_000)
    run.cancel("terminate")
    assert run.status == "canceled"
    assert run.reviews() == ["indeterminate pay"]
    run.skip_lines()
    run.resolve("pay", "completed")
    run.expect("resolved indeterminate pay completed -> close")
    assert run.status == "canceled", "it can only record what was found"


@pytest.mark.requirement("B14")
def test_an_effect_that_never_began_leaves_none() -> None:
    run = given(unsafe("pay"))
    run.start()
    run.cancel("terminate")
    assert run.reviews() == []


@pytest.mark.requirement("B14")
@pytest.mark.parametrize("how", ["granted", "dispatched", "acknowledged"])
def test_what_is_handed_out_may_have_left_before_that_was_recorded(how: str) -> None:
    run = given(unsafe("pay", type="external_call", completion="callback", ack_timeout_ms=1_000))
    run.start()
    if how == "dispatched":
        run.dispatch("pay")
    elif how == "acknowledged":
        run.ack("pay")
    run.cancel("terminate")
    assert run.reviews() == ["indeterminate pay"]


def test_terminate_ends_a_rollback_where_it_is() -> None:
    run = given(
        step("a", undo=True),
        step("b", undo=True, compensation_max_attempts=2),
        step("n", foreach="[1]", undo=True),
        step("m", undo=True, compensation_policy="manual"),
        step("c"),
        compensation="BEST_EFFORT_PARALLEL",
        max_concurrency=4,
    )
    run.start()
    run.succeed("a", "b", "n#0", "m")
    run.fail("c")
    run.undo_fails("b", "TRANSIENT")
    run.skip_lines()
    run.cancel("terminate")
    run.expect("""
        cancel terminate
        abandoned n#0:undo/1 a:undo/1 (terminated)
        undo stopped terminated: m n#0 b a
        resolved compensation m dismiss -> close
        finished canceled
    """)
    assert set(run.undone().values()) == {"skipped"}


def test_terminate_after_a_gentler_cancel() -> None:
    run = given(step("a"), step("b"))
    run.start()
    run.cancel("drain")
    assert run.cancel("drain") == f.APPLIED
    assert run.cancel("compensate") == f.APPLIED, "the first request stands"
    run.cancel("terminate")
    assert run.status == "canceled"


def test_terminate_of_a_planner() -> None:
    run = given(planner="p", mode="parallel")
    run.start()
    run.cancel("terminate")
    assert run.lines()[-2:] == ["abandoned .:plan/1 (terminated)", "finished canceled"]


def test_terminate_of_nothing_in_hand() -> None:
    run = given(approval("ok"))
    run.start()
    run.cancel("terminate")
    assert run.status == "canceled"


# -- The ends of it ----------------------------------------------------------------------------------------------------


def test_cancel_is_idempotent_and_a_terminal_state_never_changes() -> None:
    run = given(step("a"))
    run.start()
    run.cancel("terminate")
    assert run.cancel() == f.APPLIED
    run = given(step("a"))
    run.start()
    run.succeed("a")
    answer = run.cancel()
    assert isinstance(answer, f.Refused)
    assert (answer.code, run.status) == ("invalid_transition", "succeeded")


@pytest.mark.requirement("B14")
def test_late_results_are_ignored() -> None:
    run = given(step("a"), step("b"))
    run.start()
    run.cancel("drain")
    run.succeed("a")
    assert run.succeed("a", number=1) == f.Ignored("terminal")


def test_a_cancel_before_admission_ends_at_once() -> None:
    run = given(step("a"), concurrency_key="'k'", cancel="compensate")
    run.start(key="k", admitted=False)
    run.cancel()
    assert run.status == "canceled"
    assert run.state.agenda == {}


def test_a_cancel_while_a_planner_plans_waits_for_it_and_starts_nothing() -> None:
    run = given(planner="p", mode="parallel")
    run.start()
    run.cancel("drain")
    run.planned(step("a"))
    assert run.status == "canceled"
    run = given(planner="p", mode="parallel")
    run.start()
    run.cancel("drain")
    run.plan_fails("TRANSIENT")
    assert run.status == "canceled"


def test_a_cancel_while_a_planner_waits_to_plan_again() -> None:
    run = given(planner="p", mode="parallel")
    run.start()
    run.plan_fails("TRANSIENT")
    run.cancel("drain")
    assert run.status == "canceled"


def test_a_cancel_of_an_execution_that_was_to_begin_another_round() -> None:
    run = given(step("a", tries=1), step("b"), mode="parallel", failure_mode="retry")
    run.start()
    run.fail("a", "TRANSIENT")
    run.cancel("drain")
    run.succeed("b")
    assert run.status == "canceled"


@pytest.mark.requirement("B14")
def test_a_cancel_of_a_failed_run_that_waits_for_credits_prevents_the_next() -> None:
    run = given(step("a", tries=1), failure_mode="retry")
    run.start(hold=5)
    run.fail("a", "TRANSIENT")
    run.skip_lines()
    assert run.cancel() == f.APPLIED
    run.expect("hold refused")
    assert isinstance(run.cancel(), f.Refused)
    assert run.status == "failed"


def test_terminate_ends_the_wait_for_a_round_and_for_a_plan() -> None:
    run = given(
        scope("s", step("a", tries=1), failure_mode="retry"),
        scope("w", planner="p", mode="parallel"),
        mode="parallel",
    )
    run.start()
    run.fail("s/a", "TRANSIENT")
    run.plan_fails("TRANSIENT", scope="w")
    run.skip_lines()
    run.cancel("terminate")
    run.expect("""
        cancel terminate
        closing s canceled
        closing w canceled
        finished canceled
    """)


def test_terminate_of_an_undo_that_was_to_be_tried_again_on_resume() -> None:
    run = given(step("a", undo=True), step("b"))
    run.start()
    run.succeed("a")
    run.fail("b")
    run.undo_fails("a")
    run.pause()
    run.resolve("a", "retry")
    run.cancel("terminate")
    assert run.undone() == {"a": "skipped"}


def test_a_scope_that_closes_does_not_await_an_unsafe_attempt_that_never_began() -> None:
    run = given(scope("s", unsafe("pay"), step("b", tries=1), mode="parallel", failure_mode="retry", max_rounds=2))
    run.start()
    run.fail("s/b", "TRANSIENT")
    run.tick()
    assert run.open() == ["s/pay/2", "s/b/2"], "it never began, so that it may be made now"


@pytest.mark.requirement("B14")
@pytest.mark.parametrize("make", [step, unsafe, guarded])
@pytest.mark.parametrize("cancel_first", [True, False])
def test_what_nobody_began_is_not_awaited(make: Callable[[str], Node], cancel_first: bool) -> None:
    """Handed back by a worker that cannot run it: a cancel needs nobody who can."""
    run = given(step("a", undo=True), make("b"), step("c"))
    run.start()
    run.succeed("a")
    if cancel_first:
        run.cancel("compensate")
    run.tell(f.Returned(at=run.now, refs=(Ref("b", "forward", 1),)))
    if not cancel_first:
        run.cancel("compensate")
    assert run.open() == ["a:undo/1"]
    run.undo("a")
    assert (run.status, run.reviews()) == ("canceled", [])


@pytest.mark.requirement("B14")
def test_nor_is_it_begun_by_whoever_takes_over() -> None:
    """Of a release that awaited it: canceled, handed back, and waiting for a worker ever since."""
    run = given(step("a"))
    run.start()
    run.cancel("drain")
    state = run.state
    evolve(state, Entry(state.seq + 1, run.now, 1, AttemptsReturned((Ref("a", "forward", 1),))))
    decide(state, f.Taken(at=run.now, epoch=2), run.now)
    assert state.status == "canceled"


@pytest.mark.requirement("B14")
def test_clones_that_nobody_began_are_not_awaited() -> None:
    run = given(step("f", foreach="[1, 2, 3]"), step("b"))
    run.start()
    run.succeed("f#0")
    run.cancel("drain")
    run.give_back("f#2")
    assert run.open() == ["f#1/1"]
    run.succeed("f#1")
    assert run.status == "canceled"


@pytest.mark.requirement("B14")
def test_what_was_begun_is_awaited() -> None:
    run = given(step("a"), step("b"), mode="parallel")
    run.start()
    run.give_back("a")
    run.cancel("drain")
    assert run.open() == ["b/1"]
    run.succeed("b")
    assert run.status == "canceled"


UNSAFE_DIRECTIVE: dict[str, Any] = {"safety": "NOT_SAFE_TO_RETRY", "reconcile_handler": "find"}


@pytest.mark.requirement("B14")
@pytest.mark.parametrize("fields", [{}, UNSAFE_DIRECTIVE], ids=["safe", "unsafe"])
@pytest.mark.parametrize("cancel_first", [True, False])
def test_a_directive_that_nobody_sent_is_not_awaited(fields: dict[str, Any], cancel_first: bool) -> None:
    """The owner handed it back, because it cannot send it: nobody else has it."""
    run = given(step("a", undo=True), callback("b", **fields), step("c"))
    run.start()
    run.succeed("a")
    if cancel_first:
        run.cancel("compensate")
        assert run.open() == ["b/1"], "it may be on its way"
    run.give_back("b")
    if not cancel_first:
        run.cancel("compensate")
    assert run.open() == ["a:undo/1"]
    run.undo("a")
    assert (run.status, run.reviews()) == ("canceled", [])


@pytest.mark.requirement("B14")
def test_nor_is_one_of_an_execution_that_nobody_ever_took() -> None:
    run = given(callback("a"))
    run.start(owned=False)
    run.cancel("drain")
    assert run.status == "canceled"


@pytest.mark.requirement("B14")
def test_whoever_takes_over_is_granted_what_nobody_sent() -> None:
    """From then on it may have been sent, and a cancel awaits it, whoever comes after him."""
    run = given(callback("a"), step("b"))
    run.start()
    run.give_back("a")
    run.skip_lines()
    run.crash()
    run.expect("granted + a/1")
    run.crash()
    run.expect("")
    back = f.Returned(at=run.now, refs=(Ref("a", "forward", 1),))
    answer = decide(run.state, back, run.now, run.state.epoch + 1).answer
    assert answer == f.Ignored("stale_attempt"), "the one before may have sent it"
    run.cancel("drain")
    assert run.open() == ["a/1"]
    run.answer("a", f.Succeeded())
    assert run.status == "canceled"


@pytest.mark.requirement("B14")
def test_a_canceled_directive_that_was_handed_back_is_sent_by_nobody() -> None:
    """Of a release that awaited it: canceled, handed back, and waiting for a worker ever since."""
    run = given(callback("a"))
    run.start()
    run.cancel("drain")
    state = run.state
    evolve(state, Entry(state.seq + 1, run.now, 1, AttemptsReturned((Ref("a", "forward", 1),))))
    decide(state, f.Taken(at=run.now, epoch=2), run.now)
    assert state.status == "canceled"


def _dispatched(run: Driver) -> None:
    run.dispatch("a")


def _acked(run: Driver) -> None:
    run.ack("a")


@pytest.mark.requirement("B14")
@pytest.mark.parametrize("happens", [_dispatched, _acked])
def test_what_was_sent_is_awaited_whoever_would_hand_it_back(happens: Callable[[Driver], None]) -> None:
    run = given(callback("a"), step("b"))
    run.start()
    happens(run)
    assert run.give_back("a") == f.Ignored("stale_attempt")
    run.cancel("drain")
    assert run.open() == ["a/1"]
    run.answer("a", f.Succeeded())
    assert run.status == "canceled"


@pytest.mark.requirement("B14")
def test_what_was_recorded_to_begin_is_awaited_though_it_was_granted_to_nobody() -> None:
    """Of a release that did not grant it to whoever took over."""
    run = given(callback("a", **UNSAFE_DIRECTIVE))
    run.start(owned=False)
    run.begin("a")
    run.cancel("drain")
    assert run.open() == ["a/1"]
    run.crash()
    assert run.open() == ["a/1"]


@pytest.mark.requirement("B14")
def test_what_is_fetched_by_whoever_answers_it_is_awaited() -> None:
    """Nobody sends it: somebody may have it as soon as it is granted."""
    run = given(Step(id="a", type="external_call", completion="callback", result_timeout_ms=1_000), step("b"))
    run.start(owned=False)
    assert run.give_back("a") == f.Ignored("stale_attempt")
    run.cancel("drain")
    assert run.open() == ["a/1"]


@pytest.mark.requirement("B14")
@pytest.mark.parametrize("path", ["", "s"])
@pytest.mark.parametrize("cancel_first", [True, False])
def test_a_planner_that_nobody_asked_is_not_awaited(cancel_first: bool, path: str) -> None:
    nodes = [scope("s", planner="p", mode="parallel")] if path else []
    run = given(*nodes, planner=None if path else "p", mode="sequence" if path else "parallel")
    run.start()
    back = f.Returned(at=run.now, refs=(Ref(path, "plan", 1),))
    if cancel_first:
        run.cancel("drain")
        assert run.open() != [], "it may be at work"
    run.tell(back)
    if not cancel_first:
        run.cancel("drain")
    assert (run.status, run.open()) == ("canceled", [])


@pytest.mark.requirement("B14")
def test_a_planner_that_was_handed_back_under_a_cancel_is_asked_by_nobody() -> None:
    """Of a release that awaited it."""
    run = given(planner="p", mode="parallel")
    run.start()
    run.cancel("drain")
    state = run.state
    evolve(state, Entry(state.seq + 1, run.now, 1, AttemptsReturned((Ref("", "plan", 1),))))
    decide(state, f.Taken(at=run.now, epoch=2), run.now)
    assert state.status == "canceled"


@pytest.mark.requirement("B14")
def test_an_undo_that_nobody_began_is_for_the_next_owner() -> None:
    run = given(step("a", undo=True), step("b"))
    run.start()
    run.succeed("a")
    run.cancel("compensate")
    run.succeed("b")
    run.give_back("a")
    assert run.open() == ["a:undo/1"]
    run.crash()
    run.undo("a")
    assert run.status == "canceled"


# -- Queues ------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("B14")
@pytest.mark.parametrize("owned", [True, False])
def test_what_is_taken_out_of_its_queue_is_not_awaited(owned: bool) -> None:
    """Whoever takes it out knows that nobody began it, and that nobody will."""
    run = given(step("a", queue="gpu"), step("b"))
    run.start(owned=owned)
    run.cancel("drain")
    assert run.open() == ["a/1"], "somebody may have it"
    run.give_back("a")
    assert run.status == "canceled"


@pytest.mark.requirement("B14")
def test_a_planner_in_a_queue_is_awaited_unless_it_is_taken_out() -> None:
    run = given(scope("s", planner="p", mode="parallel", queue="gpu"))
    run.start(owned=False)
    run.cancel("drain")
    assert run.open() == ["s:plan/1"]
    run.tell(f.Returned(at=run.now, refs=(Ref("s", "plan", 1),)))
    assert run.status == "canceled"


@pytest.mark.requirement("B14")
def test_what_is_wanted_is_not_taken_out_of_its_queue() -> None:
    run = given(step("a", queue="gpu", undo=True), step("b"))
    run.start()
    assert run.give_back("a") == f.Ignored("stale_attempt")
    run.succeed("a")
    run.cancel("compensate")
    run.succeed("b")
    assert run.give_back("a") == f.Ignored("stale_attempt"), "what is to be undone is undone"
    run.undo("a")
    assert run.status == "canceled"
