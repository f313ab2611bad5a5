"""A failure with a class that says little: the effect of an unsafe step is looked up before anything else."""

import pytest

from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref
from tenuto.kernel.definition import RETRIED_BY_DEFAULT, ErrorClass

from .build import UNSAFE, step
from .driver import Driver, given

MINUTE = 60_000


def paying(*, tries: int = 3, on: tuple[ErrorClass, ...] = RETRIED_BY_DEFAULT, undo: bool = False) -> Driver:
    run = given(
        step("stock", undo=True), step("pay", safety=UNSAFE, reconcile_handler="r", tries=tries, on=on, undo=undo)
    )
    run.start()
    run.succeed("stock")
    run.begin("pay")
    return run


def started(run: Driver) -> list[str]:
    return run.new_lines()[3:]


@pytest.mark.requirement("C10")
@pytest.mark.parametrize(
    ("error_class", "delay"),
    [("TRANSIENT", 100), ("RETRYABLE", 100), ("RATE_LIMITED", 1_000), ("DEPENDENCY_FAILED", 5_000)],
)
def test_the_effect_is_looked_up_after_the_backoff_and_tried_again_if_not_done(
    error_class: ErrorClass, delay: int
) -> None:
    run = paying()
    run.fail("pay", error_class)
    assert run.status == "running", "nobody is asked"
    run.tick()
    assert run.elapsed == delay
    run.not_done("pay")
    run.begin("pay")
    run.succeed("pay")
    assert started(run) == [
        f"failed pay/1 {error_class} -> probe@{delay}",
        "granted + pay:reconcile/1",
        "probed pay:reconcile/1 not_done -> retry + pay/2",
        "begun pay/2",
        "ok pay/2",
        "finished succeeded",
    ]


@pytest.mark.requirement("C10")
def test_the_backoff_grows_and_the_attempts_are_those_of_the_policy() -> None:
    run = paying(tries=2)
    run.fail("pay", "TRANSIENT")
    run.tick()
    run.not_done("pay")
    run.begin("pay")
    run.fail("pay", "TRANSIENT")
    run.tick()
    assert run.elapsed == 100 + 200
    run.not_done("pay")
    run.undo("stock")
    assert started(run) == [
        "failed pay/1 TRANSIENT -> probe@100",
        "granted + pay:reconcile/1",
        "probed pay:reconcile/1 not_done -> retry + pay/2",
        "begun pay/2",
        "failed pay/2 TRANSIENT -> probe@300",
        "granted + pay:reconcile/2",
        "probed pay:reconcile/2 not_done -> fail",
        "closing . failed transient",
        "undo because failed: stock + stock:undo/1",
        "ok stock:undo/1",
        "review dead_letter pay (transient)",
        "finished failed transient",
    ]


def test_a_class_that_the_policy_does_not_retry_is_looked_up_and_then_fails() -> None:
    run = paying(on=("TRANSIENT",))
    run.fail("pay", "RETRYABLE")
    run.tick()
    run.not_done("pay")
    assert started(run)[2:4] == ["probed pay:reconcile/1 not_done -> fail", "closing . failed retryable"]


def test_the_effect_was_made_and_its_result_is_taken() -> None:
    run = paying()
    run.fail("pay", "DEPENDENCY_FAILED")
    run.tick()
    run.done("pay", 4711)
    assert started(run)[2:] == ["probed pay:reconcile/1 done -> succeed", "finished succeeded"]


def test_a_pending_effect_is_polled() -> None:
    run = paying()
    run.fail("pay", "TRANSIENT")
    run.tick()
    run.pending("pay", 7_000)
    run.tick()
    assert run.elapsed == 7_100
    run.done("pay")
    assert run.status == "succeeded"


def test_an_unknown_effect_is_reviewed() -> None:
    run = paying()
    run.fail("pay", "TRANSIENT")
    run.tick()
    run.unknown("pay")
    assert started(run)[2:] == ["probed pay:reconcile/1 unknown -> review", "review indeterminate pay"]
    assert run.status == "waiting_approval"


@pytest.mark.parametrize("error_class", ["NON_RETRYABLE", "COMPENSATION_REQUIRED"])
def test_a_definite_answer_is_not_looked_up(error_class: ErrorClass) -> None:
    run = paying()
    run.fail("pay", error_class)
    assert not any("reconcile" in line for line in run.new_lines())


def test_without_a_reconcile_handler_a_person_decides() -> None:
    run = given(step("pay", safety=UNSAFE, compensation_policy="manual"))
    run.start()
    run.begin("pay")
    run.fail("pay", "TRANSIENT")
    assert run.new_lines()[2:] == ["failed pay/1 TRANSIENT -> review", "review compensation pay"]


def test_a_cancel_waits_for_the_answer() -> None:
    run = paying(undo=True)
    run.fail("pay", "TRANSIENT")
    run.cancel("compensate")
    assert run.state.finished is None
    run.tick()
    run.done("pay")
    assert run.open() == ["pay:undo/1"], "what was made is compensated"


def test_a_cancel_is_completed_once_it_is_known_that_nothing_was_made() -> None:
    run = paying()
    run.cancel("drain")
    run.fail("pay", "TRANSIENT")
    run.tick()
    run.not_done("pay")
    assert run.state.finished == "canceled"


def test_a_terminated_execution_keeps_the_question() -> None:
    run = paying()
    run.fail("pay", "TRANSIENT")
    run.cancel("terminate")
    assert run.state.finished == "canceled"
    assert [review.kind for review in run.state.reviews.values()] == ["indeterminate"]


def test_the_deadline_of_the_step_opens_a_review_because_the_outcome_is_unknown() -> None:
    run = given(step("pay", safety=UNSAFE, reconcile_handler="r", timeout=50, timeout_ms=60, delay=100))
    run.start()
    run.begin("pay")
    run.fail("pay", "TRANSIENT")
    run.tick()
    assert (run.elapsed, run.status) == (60, "waiting_approval")


def test_the_time_for_looking_up_begins_when_it_is_first_asked() -> None:
    run = paying()
    run.fail("pay", "RATE_LIMITED", retry_after=60 * MINUTE)
    run.tick()
    assert run.open() == ["pay:reconcile/1"], "the receiver asked for an hour, and the limit is 15 minutes"
    run.tick()
    assert run.elapsed == 75 * MINUTE
    assert run.status == "waiting_approval"


def test_a_report_that_arrives_twice_counts_once() -> None:
    run = paying()
    run.fail("pay", "TRANSIENT")
    before = len(run.history)
    twice = f.Failed(error_class="TRANSIENT", code="transient")
    answer = run.tell(f.Reported(at=run.now, ref=Ref("pay", "forward", 1), outcome=twice))
    assert answer == f.Ignored("duplicate")
    assert len(run.history) == before


def test_a_loss_follows_its_own_bound_whatever_classes_are_retried() -> None:
    run = paying(on=("RATE_LIMITED",))
    run.crash()
    run.tick()
    run.not_done("pay")
    assert run.open() == ["pay/2"]
