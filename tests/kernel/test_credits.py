"""Credits (H1-H6, 2-1 to 2-9, 2-28): a hold that is charged, overrun, settled, and asked for again by a retry."""

from typing import Any

import pytest

from tenuto.kernel import facts as f
from tenuto.kernel.effects import RequestHold
from tenuto.kernel.evolve import HOLD

from .build import guarded, scope, step, unsafe
from .driver import Driver, given


@pytest.mark.requirement("H1", "H2")
def test_what_is_used_is_charged_and_the_rest_refunded() -> None:
    run = given(step("a"), step("b"))
    run.start(hold=100)
    run.succeed("a", usage=30)
    run.succeed("b", usage=12)
    run.expect("""
        started + a/1
        ok a/1 charge=30 + b/1
        ok b/1 charge=12
        finished succeeded charged=42 refunded=58
    """)


@pytest.mark.requirement("H1")
def test_a_run_may_cost_nothing() -> None:
    run = given(step("a"))
    run.start(hold=100)
    run.succeed("a")
    assert run.lines()[-1] == "finished succeeded charged=0 refunded=100"


@pytest.mark.requirement("H2")
def test_failed_and_timed_out_attempts_are_charged_too() -> None:
    run = given(step("a"))
    run.start(hold=100)
    run.fail("a", "TRANSIENT", usage=5)
    run.tick()
    run.time_out("a", usage=7)
    run.tick()
    run.succeed("a", usage=1)
    assert (run.state.charged, run.state.refunded) == (13, 87)


def test_without_a_hold_nothing_is_charged() -> None:
    run = given(step("a", estimate=50))
    run.start()
    run.succeed("a", usage=1_000)
    assert (run.status, run.state.charged) == ("succeeded", 0)


@pytest.mark.requirement("C18", "H2")
def test_an_overrun_charges_what_is_left_and_ends_the_run() -> None:
    run = given(step("a", undo=True), step("b"))
    run.start(hold=10)
    run.succeed("a", usage=25)
    run.undo("a")
    run.expect("""
        started + a/1
        ok a/1 charge=10
        closing . failed credits_exhausted
        undo because failed: a + a:undo/1
        ok a:undo/1
        review dead_letter a (credits_exhausted)
        finished failed credits_exhausted charged=10 refunded=0
    """)


def test_an_overrun_awaits_what_runs_and_never_charges_more_than_the_hold() -> None:
    run = given(step("a"), step("b"), mode="parallel")
    run.start(hold=10)
    run.succeed("a", usage=11)
    run.succeed("b", usage=5)
    assert (run.status, run.state.charged) == ("failed", 10)


@pytest.mark.parametrize("how", ["failed", "timed out", "guarded", "unsafe", "unknown"])
def test_an_overrun_by_an_attempt_that_did_not_succeed_ends_the_run_too(how: str) -> None:
    made = {"guarded": guarded("a"), "unsafe": unsafe("a", reconcile=True), "unknown": guarded("a")}
    run = given(made.get(how, step("a")), on_conflict="queue")
    run.start(hold=10)
    if how == "timed out":
        run.time_out("a", usage=11)
    elif how == "unknown":
        run.fail("a", "INDETERMINATE", usage=11)
        run.not_done("a")
    elif how == "unsafe":
        run.begin("a")
        run.time_out("a", usage=11)
        run.not_done("a")
    else:
        run.fail("a", "TRANSIENT", usage=11)
    assert run.status == "failed"
    assert run.state.failure is not None
    assert run.state.failure.code == "credits_exhausted"
    assert run.step("a").number == 1


def test_an_overrun_is_not_taken_for_a_failure_of_the_step_that_a_flow_could_mend() -> None:
    run = given(step("a", on_failure="b"), step("b"), mode="flow")
    run.start(hold=10)
    run.succeed("a@1", usage=11)
    assert run.status == "failed"


def test_an_overrun_ends_a_run_that_passes_failures_over() -> None:
    run = given(scope("s", step("a"), step("b")), step("c"), failure_mode="continue")
    run.start(hold=10)
    run.succeed("s/a", usage=11)
    assert run.status == "failed"


# -- Estimates ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("H2")
def test_a_step_that_would_cost_more_than_is_left_is_not_started() -> None:
    run = given(step("a"), step("b", estimate=8))
    run.start(hold=10)
    run.succeed("a", usage=3)
    run.expect("""
        started + a/1
        ok a/1 charge=3
        refused b credits_exhausted -> fail
        closing . failed credits_exhausted
        review dead_letter b (credits_exhausted)
        finished failed credits_exhausted charged=3 refunded=7
    """)


@pytest.mark.requirement("H2")
def test_a_step_that_costs_what_is_left_is_started() -> None:
    run = given(step("a"), step("b", estimate=7))
    run.start(hold=10)
    run.succeed("a", usage=3)
    assert run.open() == ["b/1"]


@pytest.mark.requirement("H2")
def test_clones_are_tested_like_steps() -> None:
    run = given(step("n", foreach="[1, 2, 3]", estimate=4, max_concurrency=1, undo=True), step("z"))
    run.start(hold=10)
    run.succeed("n#0", usage=4)
    run.skip_lines()
    run.succeed("n#1", usage=4)
    run.undo("n#1", "n#0")
    run.expect("""
        ok n#1/1 charge=4
        closing n failed credits_exhausted
        closing . failed credits_exhausted
        scope n failed credits_exhausted
        undo because failed: n#1 | n#0 + n#1:undo/1
        ok n#1:undo/1 + n#0:undo/1
        ok n#0:undo/1
        review dead_letter n (credits_exhausted)
        finished failed credits_exhausted charged=8 refunded=2
    """)


@pytest.mark.requirement("H2")
def test_a_fan_out_that_cannot_be_paid_for_is_passed_over_in_continue_mode() -> None:
    run = given(step("n", foreach="[1, 2]", estimate=20), step("z"), failure_mode="continue")
    run.start(hold=10)
    assert run.fan("n").status == "skipped"
    assert run.open() == ["z/1"]


@pytest.mark.requirement("H2")
def test_a_fan_out_of_a_flow_that_cannot_be_paid_for_goes_by_its_failure() -> None:
    run = given(step("n", foreach="[1, 2]", estimate=20, on_failure="z"), step("z"), mode="flow")
    run.start(hold=10)
    assert run.open() == ["z@1/1"]


# -- Another run -------------------------------------------------------------------------------------------------------


def paid_run(**fields: Any) -> Driver:
    run = given(step("a", undo=True), step("b", tries=1), failure_mode="retry", **fields)
    run.start(hold=100)
    run.succeed("a", usage=10)
    run.skip_lines()
    run.fail("b", "TRANSIENT", usage=5)
    return run


@pytest.mark.requirement("H6")
def test_a_paid_run_is_retried_as_a_run_of_its_own_with_credits_of_its_own() -> None:
    run = paid_run()
    run.undo("a")
    run.expect("""
        failed b/1 TRANSIENT -> fail charge=5
        closing . retry transient
        undo because failed: a + a:undo/1
        ok a:undo/1
        review dead_letter b (transient)
        finished failed transient charged=15 refunded=85 retry_hold=100
    """)
    assert run.state.agenda == {HOLD: RequestHold(100, 2)}
    run.grant_hold(100)
    run.succeed("a")
    run.succeed("b", usage=20)
    run.expect("""
        resolved dead_letter b retry -> close
        run 2 redo a=2 + a/2
        ok a/2 + b/2
        ok b/2 charge=20
        finished succeeded charged=20 refunded=80
    """)


@pytest.mark.requirement("H6")
def test_a_hold_that_is_refused_leaves_it_failed() -> None:
    run = paid_run()
    run.undo("a")
    run.skip_lines()
    run.refuse_hold()
    run.expect("hold refused")
    assert run.status == "failed"
    assert run.state.agenda == {}
    assert run.reviews() == ["dead_letter b"]


@pytest.mark.requirement("B19")
def test_no_more_runs_than_attempts() -> None:
    run = given(step("a", tries=1), failure_mode="retry", max_rounds=3)
    run.start(hold=10)
    runs = 1
    while run.status == "running":
        run.fail("a", "TRANSIENT")
        if run.state.retry_hold:
            run.grant_hold(10)
            runs += 1
    assert runs == run.state.run == 3
    assert run.lines()[-1] == "finished failed transient charged=0 refunded=10"


def test_a_hold_that_was_not_asked_for_is_ignored() -> None:
    run = given(step("a"))
    run.start(hold=10)
    assert run.grant_hold(10) == f.Ignored("duplicate")
    assert run.refuse_hold() == f.Ignored("duplicate")


@pytest.mark.requirement("H6")
def test_a_person_may_retry_while_the_hold_is_awaited() -> None:
    run = paid_run()
    run.undo("a")
    run.retry(hold=50)
    assert run.state.hold == 50
    assert run.open() == ["a/2"]
    assert run.grant_hold(100) == f.Ignored("duplicate")


def test_a_paid_run_that_is_paused_asks_for_credits_on_resume() -> None:
    run = given(step("b", tries=1), failure_mode="retry")
    run.start(hold=100)
    run.pause()
    run.fail("b", "TRANSIENT")
    assert run.status == "paused"
    run.resume()
    assert run.state.retry_hold == 100


def test_a_paid_run_that_is_cancelled_during_its_rollback_is_not_retried() -> None:
    run = paid_run()
    run.cancel("drain")
    run.undo("a")
    assert run.state.retry_hold == 0


@pytest.mark.requirement("C10")
def test_a_paid_run_is_not_retried_by_itself_over_an_unsafe_step() -> None:
    run = given(unsafe("pay", undo=True), failure_mode="retry")
    run.start(hold=10)
    run.begin("pay")
    run.fail("pay", "TRANSIENT")
    run.undo("pay")
    assert (run.status, run.state.retry_hold) == ("failed", 0)


@pytest.mark.requirement("H6")
def test_a_paid_run_that_failed_for_good_is_not_retried() -> None:
    run = given(step("a"), failure_mode="retry")
    run.start(hold=10)
    run.fail("a")
    assert (run.status, run.state.retry_hold) == ("failed", 0)


def test_a_granted_run_may_have_to_queue_for_its_key() -> None:
    run = given(step("a", tries=1), failure_mode="retry", concurrency_key="'k'")
    run.start(hold=10, key="k")
    run.fail("a", "TRANSIENT")
    run.tell(f.HoldGranted(at=run.now, amount=10, admitted=False))
    assert run.open() == []
    run.admit()
    assert run.open() == ["a/2"]
