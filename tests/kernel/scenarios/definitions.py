"""Seed 000: definitions with decisions, loops, approvals, external calls, dead letters and retries."""

from tenuto.kernel import facts as f
from tests.kernel.build import approval, callback, decision, step, unsafe
from tests.kernel.driver import Driver, given

from .program import program

ok = f.Succeeded()


@program
def invoice() -> Driver:
    """Decision, draft and approval in a loop, an external call, a dead letter, and a retry that finishes."""
    run = given(
        decision("large", ("input.amount > 1000", "draft"), default="pay"),
        step("draft", on_success="approve"),
        approval("approve", timeout_ms=60_000, on_success="pay", on_failure="draft", on_timeout="remind"),
        step("remind", type="notify", on_success="approve"),
        callback("pay", undo=True, on_success="book", on_failure="tell"),
        step("book", tries=2),
        step("tell", type="notify", on_success="$fail"),
        mode="flow",
        name="invoice",
    )
    run.start({"amount": 5_000})
    run.succeed("draft@1")
    run.reject("approve@1")
    run.succeed("draft@2")
    run.tick()
    run.succeed("remind@1")
    run.approve("approve@3")
    run.dispatch("pay@1")
    run.answer("pay@1", ok)
    run.fail("book@1", "TRANSIENT")
    run.tick()
    run.fail("book@1", "TRANSIENT")
    run.undo("pay@1")
    run.expect("""
        started
        branch large@1 -> draft + draft@1/1
        ok draft@1/1
        review approval approve@1 due@60000
        resolved approval approve@1 rejected -> fail
        branch approve@1 -> draft + draft@2/1
        ok draft@2/1
        review approval approve@2 due@60000
        resolved approval approve@2 dismiss -> close
        expired approve@2 approval_timeout -> fail
        branch approve@2 -> remind + remind@1/1
        ok remind@1/1
        review approval approve@3 due@120000
        resolved approval approve@3 approved -> succeed + pay@1/1
        dispatched pay@1/1 ack@61000
        ok pay@1/1 + book@1/1
        failed book@1/1 TRANSIENT -> retry@60100
        granted + book@1/2
        failed book@1/2 TRANSIENT -> fail
        closing . failed transient
        undo because failed: pay@1 + pay@1:undo/1
        ok pay@1:undo/1
        review dead_letter book@1 (transient)
        finished failed transient
    """)
    run.retry()
    run.answer("pay@1", ok)
    run.succeed("book@1")
    run.expect("""
        resolved dead_letter book@1 retry -> close
        run 2 from pay after approve@3 draft@2 large@1 remind@1 redo pay@1=2 + pay@1/2
        ok pay@1/2 + book@1/3
        ok book@1/3
        finished succeeded
    """)
    return run


@program
def compensation_required() -> Driver:
    """A partial effect that cannot be repeated halts until a person decides (000 section 12.6)."""
    run = given(unsafe("ledger", undo=True, compensation_policy="manual"), step("z"), mode="sequence", name="posting")
    run.start()
    run.begin("ledger")
    run.fail("ledger", "COMPENSATION_REQUIRED")
    assert run.status == "waiting_approval"
    run.pause()
    run.resume()
    run.resolve("ledger", "compensate")
    run.resolve("ledger", "approved")
    run.undo("ledger")
    run.expect("""
        started + ledger/1
        begun ledger/1
        failed ledger/1 COMPENSATION_REQUIRED -> review
        review compensation ledger
        paused maintenance limit@604800000
        resumed shift=0
        resolved compensation ledger compensate -> undo
        closing . failed compensation_required
        undo because failed: ledger
        review compensation ledger
        resolved compensation ledger compensate -> retry + ledger:undo/1
        ok ledger:undo/1
        review dead_letter ledger (compensation_required)
        finished failed compensation_required
    """)
    return run
