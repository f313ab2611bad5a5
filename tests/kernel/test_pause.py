"""Pause and resume (B10, B12, Q3, S-9): nothing new starts; which timers wait, which shift and which go on."""

import pytest

from tenuto.kernel import facts as f
from tenuto.kernel.definition import DAY

from .build import approval, callback, guarded, pause_for, scope, step, unsafe, wait_for
from .driver import Driver, given


@pytest.mark.requirement("B10")
def test_what_runs_finishes_and_nothing_new_starts() -> None:
    run = given(step("a"), step("b"))
    run.start()
    run.pause()
    assert run.status == "paused"
    run.succeed("a")
    assert run.open() == []
    run.tick_to(500)
    run.resume()
    run.expect(f"""
        started + a/1
        paused maintenance limit@{7 * DAY}
        ok a/1
        resumed shift=500 + b/1
    """)
    assert run.status == "running"


@pytest.mark.requirement("B10")
def test_pausing_and_resuming_twice_is_the_same_as_once() -> None:
    run = given(step("a"))
    run.start()
    assert run.resume() == f.APPLIED
    run.pause()
    assert run.pause() == f.APPLIED
    run.resume()
    assert run.resume() == f.APPLIED
    assert len(run.history) == 3


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_terminal_execution_is_neither_paused_nor_resumed(command: str) -> None:
    run = given(step("a"))
    run.start()
    run.succeed("a")
    answer = run.pause() if command == "pause" else run.resume()
    assert isinstance(answer, f.Refused)
    assert answer.code == "invalid_transition"


def test_an_execution_does_not_end_while_it_is_paused() -> None:
    run = given(step("a", undo=True), step("b"))
    run.start()
    run.succeed("a")
    run.pause()
    run.fail("b")
    assert (run.status, run.open()) == ("paused", [])
    run.resume()
    assert run.open() == ["a:undo/1"]
    run.pause()
    run.undo("a")
    assert run.status == "paused"
    run.resume()
    assert run.status == "failed"


def test_delays_that_end_during_a_pause_act_on_resume() -> None:
    run = given(step("a"), guarded("g"), pause_for("w", 200), mode="parallel")
    run.start()
    run.fail("a", "TRANSIENT")
    run.fail("g", "TRANSIENT")
    run.pause()
    run.tick_to(1_000)
    assert run.open() == []
    assert run.step("w").status == "running"
    run.resume()
    assert run.open() == ["g:guard/1", "a/2"]
    assert run.step("w").status == "succeeded"


def test_probes_wait_for_the_resume_too() -> None:
    run = given(unsafe("p", reconcile=True), guarded("g"), unsafe("q", reconcile=True), mode="parallel")
    run.start()
    run.begin("p")
    run.begin("q")
    run.fail("q", "INDETERMINATE")
    run.pending("q", retry_after=100)
    run.pause()
    run.time_out("p")
    run.fail("g", "INDETERMINATE")
    run.tick_to(1_000)
    assert run.open() == []
    run.resume()
    assert sorted(run.open()) == ["g:guard/1", "p:reconcile/1", "q:reconcile/2"]


@pytest.mark.requirement("B10")
def test_deadlines_shift_by_the_length_of_the_pause() -> None:
    run = given(
        step("a", timeout=100, timeout_ms=1_000),
        approval("ok", timeout_ms=2_000),
        scope("s", wait_for("w", "go"), timeout_ms=3_000),
        mode="parallel",
        timeout_ms=4_000,
    )
    run.start()
    run.tick_to(500)
    run.pause()
    run.tick_to(100_500)
    assert run.status == "paused"
    run.resume()
    due = sorted((due - 1_000_000, kind) for (kind, _), due in run.state.timers.items())
    assert due == [(101_000, "deadline"), (102_000, "review"), (103_000, "scope"), (104_000, "execution")]


def test_timers_of_running_attempts_go_on() -> None:
    run = given(callback("ocr"), callback("pdf", ack=None, result=5_000), mode="parallel")
    run.start()
    run.dispatch("ocr")
    run.dispatch("pdf")
    run.pause()
    assert run.wake_at == 1_000
    run.tick()
    assert run.lines()[-1] == "timeout ocr/1 ack -> retry@1100"
    assert run.wake_at == 5_000, "the delay after it waits for the resume"
    run.tick()
    run.resume()
    assert sorted(run.open()) == ["ocr/2"]


def test_two_timers_that_go_on_fire_in_their_order() -> None:
    run = given(callback("a", ack=2_000), callback("b", ack=1_000), mode="parallel")
    run.start()
    run.dispatch("a")
    run.dispatch("b")
    run.pause()
    run.tick_to(5_000)
    assert [line.split(" ")[1] for line in run.lines() if line.startswith("timeout")] == ["b/1", "a/1"]


@pytest.mark.requirement("B12")
def test_a_pause_that_is_too_long_is_a_cancel_by_the_system() -> None:
    run = given(step("a"), step("b"), pause_limit_ms=1_000)
    run.start(hold=10)
    run.succeed("a", usage=3)
    run.pause()
    run.fail("b", "TRANSIENT")
    run.skip_lines()
    run.tick()
    run.expect("""
        resumed shift=1000
        cancel drain
        closing . canceled
        closed b canceled
        finished canceled charged=3 refunded=7
    """)
    assert {entry.actor for entry in run.history[-5:]} == {"system"}


@pytest.mark.requirement("B12")
def test_without_a_limit_a_pause_lasts() -> None:
    run = given(step("a"), pause_limit_ms=None)
    run.start()
    run.pause()
    assert run.wake_at is None


@pytest.mark.requirement("B10")
def test_what_waits_for_a_person_can_be_paused_and_decided() -> None:
    run = given(approval("ok"), step("a"))
    run.start()
    assert run.status == "waiting_approval"
    run.pause()
    assert run.status == "paused"
    run.resume()
    assert run.status == "waiting_approval"
    run.pause()
    run.approve("ok")
    assert (run.status, run.open()) == ("paused", [])
    run.resume()
    assert run.open() == ["a/1"]


@pytest.mark.requirement("B10")
def test_a_person_may_say_retry_while_paused() -> None:
    run = given(unsafe("pay"))
    run.start()
    run.begin("pay")
    run.time_out("pay")
    run.pause()
    run.resolve("pay", "retry")
    assert run.open() == []
    run.resume()
    assert run.open() == ["pay/2"]


def test_a_scope_may_close_and_open_again_while_paused_but_starts_nothing() -> None:
    run = given(scope("s", step("a", tries=1), failure_mode="retry"), step("z"))
    run.start()
    run.pause()
    run.fail("s/a", "TRANSIENT")
    run.tick_to(60_000)
    assert run.open() == []
    run.resume()
    assert run.open() == ["s/a/2"]


def test_a_pause_does_not_stop_a_cancel() -> None:
    run = given(step("a"), step("b"))
    run.start()
    run.pause()
    run.succeed("a")
    run.skip_lines()
    run.cancel("drain")
    run.expect("""
        resumed shift=0
        cancel drain
        closing . canceled
        finished canceled
    """)


def test_a_cancel_of_a_paused_rollback_lets_it_go_on() -> None:
    run = given(step("a", undo=True), step("b", undo=True), step("c"))
    run.start()
    run.succeed("a", "b")
    run.fail("c")
    run.pause()
    run.undo("b")
    run.cancel("drain")
    assert run.open() == ["a:undo/1"]
    run.undo("a")
    assert run.status == "failed"


def paused_planner() -> Driver:
    run = given(planner="p", mode="parallel")
    run.start()
    return run


def test_a_plan_that_is_made_while_paused_starts_on_resume() -> None:
    run = paused_planner()
    run.pause()
    run.planned(step("a"))
    assert run.open() == []
    run.resume()
    assert run.open() == ["a/1"]


def test_a_planner_is_asked_again_on_resume() -> None:
    run = paused_planner()
    run.planned(step("a"))
    run.pause()
    run.fail("a")
    assert (run.status, run.open()) == ("paused", [])
    run.resume()
    assert run.open() == [".:plan/2"]


def test_a_plan_that_failed_while_paused_is_made_again_on_resume() -> None:
    run = paused_planner()
    run.pause()
    run.plan_fails("TRANSIENT")
    run.tick_to(60_000)
    assert run.open() == []
    run.resume()
    assert run.open() == [".:plan/2"]
