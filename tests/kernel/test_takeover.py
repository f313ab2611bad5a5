"""Taking over (B9, C10, K-4): what a lost worker had in hand, by the step's safety and by whether it had begun."""

import pytest

from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref
from tenuto.kernel.decide import decide

from .build import approval, guarded, scope, step, unsafe
from .driver import given


@pytest.mark.requirement("B9")
def test_a_safe_attempt_is_made_again_at_once_and_costs_no_try() -> None:
    run = given(step("a", tries=1))
    run.start()
    run.tick_to(50)
    run.crash()
    run.succeed("a")
    run.expect("""
        started + a/1
        lost a/1 -> retry@50 + a/2
        ok a/2
        finished succeeded
    """)
    assert (run.step("a").tries, run.step("a").losses) == (0, 1)


def test_losses_are_bounded_so_that_input_that_kills_workers_ends() -> None:
    run = given(step("a", undo=True, partial_effect=True))
    run.start()
    run.crash_and_wait(4)
    run.undo("a")
    run.expect("""
        started + a/1
        lost a/1 -> retry@0 half-done + a/2
        lost a/2 -> retry@1957 half-done
        granted + a/3
        lost a/3 -> retry@1979 half-done
        granted + a/4
        lost a/4 -> fail half-done
        closing . failed worker_lost
        undo because failed: a + a:undo/1
        ok a:undo/1
        review dead_letter a (worker_lost)
        finished failed worker_lost
    """)


@pytest.mark.requirement("C9")
def test_a_guarded_attempt_is_asked_after() -> None:
    run = given(guarded("a"))
    run.start()
    run.crash()
    run.done("a")
    run.expect("""
        started + a/1
        lost a/1 -> probe@0 + a:guard/1
        probed a:guard/1 done -> succeed
        finished succeeded
    """)


def test_a_probe_that_was_lost_is_asked_again() -> None:
    run = given(guarded("a"))
    run.start()
    run.time_out("a")
    run.skip_lines()
    run.crash()
    run.expect("lost a:guard/1 -> probe@0 + a:guard/2")


@pytest.mark.requirement("C10")
def test_an_unsafe_attempt_that_never_began_simply_runs() -> None:
    run = given(unsafe("pay"))
    run.start()
    run.crash()
    run.begin("pay")
    run.succeed("pay")
    run.expect("""
        started + pay/1
        granted + pay/1
        begun pay/1
        ok pay/1
        finished succeeded
    """)


@pytest.mark.requirement("C10")
def test_an_unsafe_attempt_that_began_is_not_repeated_but_asked_about() -> None:
    run = given(unsafe("pay"))
    run.start()
    run.begin("pay")
    run.crash()
    run.expect("""
        started + pay/1
        begun pay/1
        lost pay/1 -> review
        review indeterminate pay
    """)
    assert run.status == "waiting_approval"


@pytest.mark.requirement("C11")
def test_a_lost_effect_is_not_looked_for_before_its_time_and_one_lease_are_over() -> None:
    run = given(unsafe("pay", reconcile=True, timeout=10_000))
    run.start()
    run.tick_to(2_000)
    run.begin("pay")
    run.tick_to(3_000)
    run.crash(lease_ms=15_000)
    assert run.wake_at == 2_000 + 10_000 + 15_000
    run.tick()
    run.expect("""
        started + pay/1
        begun pay/1
        lost pay/1 -> probe@27000
        granted + pay:reconcile/1
    """)


@pytest.mark.requirement("C11")
def test_unless_that_time_is_over_already() -> None:
    run = given(unsafe("pay", reconcile=True, timeout=10_000))
    run.start()
    run.begin("pay")
    run.tick_to(60_000)
    run.crash()
    assert run.open() == ["pay:reconcile/1"]


@pytest.mark.requirement("B9")
def test_a_worker_that_leaves_in_good_order_costs_nothing() -> None:
    run = given(step("a"), unsafe("b"), guarded("c"), mode="parallel")
    run.start()
    run.give_back("a", "b", "c")
    run.crash()
    run.expect("""
        started + a/1 b/1 c/1
        returned a/1 b/1 c/1
        granted + a/1 b/1 c/1
    """)
    assert [run.step(path).losses for path in "abc"] == [0, 0, 0]


def test_what_is_given_back_must_be_open() -> None:
    run = given(step("a"))
    run.start()
    assert run.tell(f.Returned(at=run.now, refs=(Ref("a", "forward", 7),))) == f.Ignored("stale_attempt")
    assert run.tell(f.Returned(at=run.now, refs=())) == f.Ignored("stale_attempt")
    assert run.tell(f.Returned(at=run.now, refs=(Ref("x", "forward", 1), Ref("a", "forward", 1)))) == f.APPLIED


def test_a_plan_is_given_back_and_lost_like_a_step() -> None:
    run = given(planner="p", mode="parallel")
    run.start()
    run.tell(f.Returned(at=run.now, refs=(Ref("", "plan", 1),)))
    run.crash()
    run.crash()
    run.planned(step("a"))
    run.expect("""
        started + .:plan/1
        returned .:plan/1
        granted + .:plan/1
        lost .:plan/1 -> retry@0 + .:plan/2
        added .:plan/2 1 + a/1
    """)


def test_a_planner_that_kills_workers_ends() -> None:
    run = given(planner="p", mode="parallel")
    run.start()
    run.crash_and_wait(4)
    assert run.lines()[-4:] == [
        "lost .:plan/4 -> fail",
        "closing . failed worker_lost",
        "review dead_letter . (worker_lost)",
        "finished failed worker_lost",
    ]


def test_a_lost_plan_of_a_cancelled_execution_is_not_made_again() -> None:
    run = given(planner="p", mode="parallel")
    run.start()
    run.cancel("drain")
    run.crash()
    assert run.status == "canceled"


def test_an_unowned_start_is_nobodys_loss() -> None:
    run = given(step("a"), unsafe("b"), mode="parallel")
    run.start(owned=False)
    run.crash()
    run.expect("""
        started + a/1 b/1
        granted + a/1 b/1
    """)
    assert run.history[0].epoch == 0
    assert run.history[-1].epoch == 1


def test_an_owned_start_is_its_starters_loss() -> None:
    run = given(step("a"), unsafe("b"), mode="parallel")
    run.start()
    run.begin("b")
    assert run.history[0].epoch == 1
    run.skip_lines()
    run.crash()
    run.expect("""
        lost a/1 -> retry@0
        lost b/1 -> review
        review indeterminate b + a/2
    """)


def test_begun_is_recorded_once_and_only_for_the_open_attempt() -> None:
    run = given(unsafe("pay"), step("z"))
    run.start()
    run.begin("pay")
    assert run.begin("pay") == f.Ignored("duplicate")
    run.succeed("pay")
    begun = f.Begun(at=run.now, ref=Ref("pay", "forward", 1), worker="w")
    assert run.tell(begun) == f.Ignored("stale_attempt")


def test_a_plan_needs_no_word_that_it_has_begun() -> None:
    run = given(planner="p", mode="parallel")
    run.start()
    assert run.tell(f.Begun(at=run.now, ref=Ref("", "plan", 1), worker="w")) == f.APPLIED
    assert len(run.history) == 1


def test_a_lost_attempt_frees_its_slot_while_it_is_found_out() -> None:
    run = given(unsafe("pay", reconcile=True), step("b"), mode="parallel", max_concurrency=1)
    run.start()
    run.begin("pay")
    run.crash()
    assert run.open() == ["b/1"]


def test_a_takeover_while_paused_loses_but_starts_nothing() -> None:
    run = given(step("a"))
    run.start()
    run.pause()
    run.crash()
    assert run.open() == []
    run.resume()
    assert run.open() == ["a/2"]


def test_timers_that_came_due_are_fired_for_the_new_owner() -> None:
    run = given(step("a"))
    run.start()
    run.fail("a", "TRANSIENT")
    run.now += 1_000
    run.crash()
    run.skip_lines()
    run.crash()
    run.expect("lost a/2 -> retry@1000 + a/3")


# -- Pending -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("B13")
def test_what_no_worker_takes_in_time_fails() -> None:
    run = given(step("a"), step("n", foreach="[1]"), step("b"), mode="parallel", pending_timeout_ms=1_000)
    run.start(owned=False)
    run.tick()
    run.expect("""
        started pending@1000 + a/1
        expanded n 1 + n#0/1 b/1
        abandoned a/1 b/1 n#0/1 (expired)
        expired a pending_timeout -> fail
        expired b pending_timeout -> fail
        expired n#0 pending_timeout -> fail
        scope n canceled
        closing . timed_out pending_timeout
        review dead_letter . (pending_timeout)
        finished failed pending_timeout
    """)


@pytest.mark.requirement("B13")
def test_a_plan_that_no_worker_takes_fails_too() -> None:
    run = given(planner="p", mode="parallel", pending_timeout_ms=1_000)
    run.start(owned=False)
    run.tick()
    assert run.status == "failed"


@pytest.mark.requirement("B13")
def test_nothing_in_hand_is_no_excuse() -> None:
    run = given(approval("ok"), pending_timeout_ms=1_000)
    run.start(owned=False)
    run.tick()
    assert run.status == "failed"


@pytest.mark.requirement("B13")
@pytest.mark.parametrize("how", ["taken", "begun", "reported", "failed", "dispatched"])
def test_a_sign_of_life_ends_the_wait(how: str) -> None:
    run = given(step("a", queue="q") if how == "dispatched" else step("a"), pending_timeout_ms=1_000)
    run.start(owned=False)
    assert run.wake_at == 1_000
    match how:
        case "taken":
            run.crash()
        case "begun":
            run.begin("a")
        case "reported":
            run.succeed("a")
        case "failed":
            run.fail("a", "TRANSIENT")
        case _:
            run.dispatch("a")
    assert ("pending", "") not in run.state.timers


@pytest.mark.requirement("B13")
def test_an_owned_start_waits_for_nobody() -> None:
    run = given(step("a"), pending_timeout_ms=1_000)
    run.start()
    assert run.wake_at is None


@pytest.mark.requirement("B13")
def test_whoever_takes_what_has_nothing_to_run_is_recorded_as_its_owner() -> None:
    run = given(approval("ok"), pending_timeout_ms=1_000)
    run.start(owned=False)
    run.crash()
    run.expect("""
        started pending@1000
        review approval ok
        granted
    """)
    assert (run.state.epoch, run.wake_at) == (1, None)


# -- Queues ------------------------------------------------------------------------------------------------------------


def test_a_worker_of_a_queue_is_lost_with_what_it_had_alone() -> None:
    run = given(step("a", queue="q"), guarded("g", queue="q"), step("b", queue="q"), mode="parallel")
    run.start()
    run.skip_lines()
    run.lose("a", "g")
    run.expect("lost a/1 -> retry@0, g/1 -> probe@0 + g:guard/1 a/2")
    assert "b/1" in run.open()


def test_what_a_worker_of_a_queue_no_longer_has_is_not_lost() -> None:
    run = given(step("a", queue="q"))
    run.start()
    assert run.tell(f.Lost(at=run.now, refs=(Ref("a", "forward", 7), Ref("x", "forward", 1)))) == f.Ignored(
        "stale_attempt"
    )


def test_several_losses_in_one_takeover_may_close_what_the_others_are_in() -> None:
    run = given(scope("s", step("a"), step("b"), mode="parallel", failure_mode="retry", max_rounds=2))
    run.start()
    run.crash_and_wait(3)
    run.skip_lines()
    run.crash()
    run.expect("""
        lost s/a/4 -> fail
        closing s retry worker_lost
        lost s/b/4 -> fail
        round 2 of s budget=19 not@3948
    """)


def test_decide_takes_the_epoch_of_whoever_decides() -> None:
    run = given(step("a"), step("b"))
    run.start()
    state = run.state
    fact = f.Reported(at=run.now, ref=Ref("a", "forward", 1), outcome=f.Succeeded())
    assert [entry.epoch for entry in decide(state, fact, run.now, 7).entries] == [7]


@pytest.mark.requirement("B13")
def test_a_takeover_ends_the_wait_for_a_worker_also_when_something_was_lost() -> None:
    run = given(step("a"), approval("ok"), mode="parallel", pending_timeout_ms=1_000)
    run.start(owned=False)
    run.crash()
    assert run.wake_at is None
    run.crash()
    assert run.step("a").losses == 1


def test_what_was_recorded_to_begin_and_was_handed_back_did_not_begin() -> None:
    """A worker leaves between the record that an attempt begins and the call of its handler."""
    run = given(unsafe("pay", reconcile=True))
    run.start()
    run.begin("pay")
    run.give_back("pay")
    run.crash()
    run.begin("pay")
    run.succeed("pay")
    run.expect("""
        started + pay/1
        begun pay/1
        returned pay/1
        granted + pay/1
        begun pay/1
        ok pay/1
        finished succeeded
    """)


def test_what_waits_after_a_second_loss_leaves_its_place_to_others() -> None:
    run = given(step("a"), step("b"), mode="parallel", max_concurrency=1)
    run.start()
    run.crash()
    run.skip_lines()
    run.crash()
    run.expect("""
        lost a/2 -> retry@1957 + b/1
    """)


def test_what_waits_for_its_key_is_taken_over() -> None:
    run = given(step("a"), concurrency_key="'k'")
    run.start(key="k", admitted=False)
    run.crash()
    assert run.open() == []
    run.admit()
    assert run.open() == ["a/1"]
