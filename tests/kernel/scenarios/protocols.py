"""Seed 001: a protocol over a bus, answered by callbacks."""

from tenuto.kernel import facts as f
from tests.kernel.build import callback
from tests.kernel.driver import Driver, given

from .program import program

ok = f.Succeeded()


@program
def protocol_with_callbacks() -> Driver:
    """Three steps. The first send is refused, an ack is lost, one result is stale, one comes late and counts."""
    run = given(
        callback("ocr"),
        callback("embed"),
        callback("sis", safety="NOT_SAFE_TO_RETRY", compensation_policy="manual"),
        name="protocol",
    )
    run.start()
    run.refuse_dispatch("ocr")
    run.tick()
    run.dispatch("ocr")
    run.tick()  # the ack is lost
    run.tick()
    run.dispatch("ocr")
    assert run.answer("ocr", ok, number=2) == f.Ignored("stale_attempt")
    run.ack("ocr", workspace="ws1")
    run.answer("ocr", ok)
    assert run.ack("ocr", number=3) == f.Ignored("duplicate")
    run.dispatch("embed")
    run.answer("embed", ok)  # a result implies its ack
    run.dispatch("sis")
    run.ack("sis")
    run.tick()
    assert run.status == "waiting_approval"
    run.answer("sis", ok, number=1)  # late, and the best there is
    assert [line.split("@")[0] for line in run.new_lines()] == [
        "started + ocr/1",
        "undispatched ocr/1 -> retry",
        "granted + ocr/2",
        "dispatched ocr/2 ack",
        "timeout ocr/2 ack -> retry",
        "granted + ocr/3",
        "dispatched ocr/3 ack",
        "acked ocr/3 result",
        "ok ocr/3 + embed/1",
        "dispatched embed/1 ack",
        "ok embed/1 + sis/1",
        "dispatched sis/1 ack",
        "acked sis/1 result",
        "timeout sis/1 result -> review",
        "review indeterminate sis",
        "resolved indeterminate sis dismiss -> close",
        "ok sis/1",
        "finished succeeded",
    ]
    return run


@program
def protocol_cancelled_while_processing() -> Driver:
    run = given(callback("ocr"), callback("embed"), name="protocol")
    run.start()
    run.dispatch("ocr")
    run.ack("ocr")
    run.cancel("drain")
    run.answer("ocr", ok)
    assert run.answer("ocr", ok, number=1) == f.Ignored("terminal")
    run.expect("""
        started + ocr/1
        dispatched ocr/1 ack@1000
        acked ocr/1 result@10000
        cancel drain
        closing . canceled
        ok ocr/1
        finished canceled
    """)
    return run
