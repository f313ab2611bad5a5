"""Seed 003: the order saga."""

from typing import Any

from tests.kernel.build import step, unsafe
from tests.kernel.driver import Driver, given

from .program import program


def order_saga() -> Driver:
    """Reserve 3 s x 3, pay 10 s and never twice, confirm; undo 5 s x 5, one by one, last first."""
    undo: dict[str, Any] = {"compensation_max_attempts": 5, "compensation_timeout_ms": 5_000}
    run = given(
        step("reserve", tries=3, timeout=3_000, undo=True, **undo),
        unsafe("pay", reconcile=True, timeout=10_000, undo=True, **undo),
        step("confirm", tries=2, timeout=3_000),
        name="order",
        cancel="compensate",
    )
    run.start({"order": 7})
    return run


def paying() -> Driver:
    run = order_saga()
    run.succeed("reserve", result={"reservation": "r1"})
    run.begin("pay")
    return run


@program
def order_confirmed() -> Driver:
    run = paying()
    run.succeed("pay", result={"charge": "c1"})
    run.fail("confirm", "TRANSIENT")
    run.tick()
    run.succeed("confirm")
    run.expect("""
        started + reserve/1
        ok reserve/1 + pay/1
        begun pay/1
        ok pay/1 + confirm/1
        failed confirm/1 TRANSIENT -> retry@100
        granted + confirm/2
        ok confirm/2
        finished succeeded
    """)
    return run


@program
def order_out_of_stock() -> Driver:
    """A refusal is not retried, and there is nothing to undo."""
    run = order_saga()
    run.fail("reserve", "NON_RETRYABLE")
    run.expect("""
        started + reserve/1
        failed reserve/1 NON_RETRYABLE -> fail
        closing . failed non_retryable
        review dead_letter reserve (non_retryable)
        finished failed non_retryable
    """)
    return run


@program
def order_payment_declined() -> Driver:
    run = paying()
    run.fail("pay", "NON_RETRYABLE")
    run.undo("reserve")
    run.expect("""
        started + reserve/1
        ok reserve/1 + pay/1
        begun pay/1
        failed pay/1 NON_RETRYABLE -> fail
        closing . failed non_retryable
        undo because failed: reserve + reserve:undo/1
        ok reserve:undo/1
        review dead_letter pay (non_retryable)
        finished failed non_retryable
    """)
    return run


@program
def order_confirm_fails() -> Driver:
    """Refund, then release (decision 3-3); the refund needs a second try."""
    run = paying()
    run.succeed("pay")
    run.skip_lines()
    run.fail("confirm")
    run.undo_fails("pay", "TRANSIENT")
    run.tick()
    run.undo("pay", "reserve")
    run.expect("""
        failed confirm/1 NON_RETRYABLE -> fail
        closing . failed non_retryable
        undo because failed: pay | reserve + pay:undo/1
        failed pay:undo/1 TRANSIENT -> retry@100
        granted + pay:undo/2
        ok pay:undo/2 + reserve:undo/1
        ok reserve:undo/1
        review dead_letter confirm (non_retryable)
        finished failed non_retryable
    """)
    return run


def cancelled_while_unknown() -> Driver:
    """The payment does not answer; meanwhile the customer cancels; the provider says pending, and pending again."""
    run = paying()
    run.tick_to(10_000)
    run.time_out("pay")
    run.pending("pay", retry_after=5_000)
    run.cancel()
    run.tick()
    run.pending("pay", retry_after=5_000)
    run.tick()
    run.expect("""
        started + reserve/1
        ok reserve/1 + pay/1
        begun pay/1
        timeout pay/1 attempt -> probe + pay:reconcile/1
        probed pay:reconcile/1 pending -> again@15000
        cancel compensate
        closing . canceled
        granted + pay:reconcile/2
        probed pay:reconcile/2 pending -> again@20000
        granted + pay:reconcile/3
    """)
    assert run.status == "running"
    return run


@program
def order_cancelled_payment_done() -> Driver:
    run = cancelled_while_unknown()
    run.done("pay", result={"charge": "c1"})
    run.undo("pay", "reserve")
    run.expect("""
        probed pay:reconcile/3 done -> succeed
        undo because canceled: pay | reserve + pay:undo/1
        ok pay:undo/1 + reserve:undo/1
        ok reserve:undo/1
        finished canceled
    """)
    return run


@program
def order_cancelled_payment_not_done() -> Driver:
    run = cancelled_while_unknown()
    run.not_done("pay")
    run.undo("reserve")
    run.expect("""
        probed pay:reconcile/3 not_done -> fail
        undo because canceled: reserve + reserve:undo/1
        ok reserve:undo/1
        finished canceled
    """)
    return run


@program
def order_cancelled_payment_unknown() -> Driver:
    run = cancelled_while_unknown()
    run.unknown("pay")
    assert run.status == "waiting_approval"
    run.resolve("pay", "compensate")
    run.undo("pay", "reserve")
    run.expect("""
        probed pay:reconcile/3 unknown -> review
        review indeterminate pay
        resolved indeterminate pay compensate -> undo
        undo because canceled: pay | reserve + pay:undo/1
        ok pay:undo/1 + reserve:undo/1
        ok reserve:undo/1
        finished canceled
    """)
    return run


@program
def order_refund_fails() -> Driver:
    """Five fast attempts, then a person (decision 3-7)."""
    run = paying()
    run.succeed("pay")
    run.fail("confirm")
    for _ in range(4):
        run.undo_fails("pay", "TRANSIENT")
        run.tick()
    run.skip_lines()
    run.undo_fails("pay", "TRANSIENT")
    assert run.status == "waiting_approval"
    run.resolve("pay", "completed")
    run.undo("reserve")
    run.expect("""
        failed pay:undo/5 TRANSIENT -> review
        review compensation_failed pay
        undo stopped failed: reserve
        resolved compensation_failed pay completed -> succeed + reserve:undo/1
        ok reserve:undo/1
        review dead_letter confirm (non_retryable)
        finished failed non_retryable
    """)
    return run
