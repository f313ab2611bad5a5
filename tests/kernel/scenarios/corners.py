"""What the scenarios leave out: with these, every event and every transition has a recorded history."""

from tests.kernel.build import approval, guarded, pause_for, scope, step, unsafe, wait_for
from tests.kernel.driver import Driver, given

from .program import program


@program
def every_wait() -> Driver:
    """Timers, signals early and late, a repetition, marks, conditions, a refusal."""
    run = given(
        wait_for("early", "go"),
        wait_for("late", "stop", timeout_ms=5_000),
        pause_for("rest", 1_000),
        scope("poll", step("ask"), repeat_until="steps.ask.result"),
        step("once", idempotency_key="k", set_variable="v"),
        step("twice", idempotency_key="k"),
        step("never", when="false"),
        step("wrong", when="variables.v > 1"),
        failure_mode="continue",
        name="waits",
    )
    run.start()
    run.pause()
    run.signal("go", 1, id="m1")
    run.signal("go", 2, id="m2")
    run.resume()
    run.tick()
    run.tick()
    run.succeed("poll@1/ask", result=False)
    run.succeed("poll@2/ask", result=True)
    run.succeed("once", result="text")
    assert run.status == "succeeded"
    return run


@program
def every_ownership() -> Driver:
    """Started by one who does not run it, queued for its key, taken, given back, lost, found out."""
    run = given(
        step("safe"),
        guarded("guarded"),
        unsafe("pay", reconcile=True),
        mode="parallel",
        max_concurrency=3,
        concurrency_key="'k'",
        pending_timeout_ms=60_000,
        name="owners",
    )
    run.start(key="k", admitted=False, owned=False)
    run.admit()
    run.crash()
    run.begin("pay")
    run.give_back("safe")
    run.crash()
    run.crash()
    run.not_done("guarded")
    run.succeed("guarded", "safe")
    run.tick()
    run.done("pay")
    assert run.status == "succeeded"
    return run


@program
def every_fan_out() -> Driver:
    """Clones that are retried, queue for a slot, wait for a person, are passed over and cancelled; then a new run."""
    run = given(
        unsafe("n", foreach="[1, 2, 3]", undo=True, compensation_policy="manual", failure_mode="continue"),
        step("m", foreach="[1, 2, 3, 4]", max_concurrency=2, undo=True),
        name="fans",
    )
    run.start()
    run.begin("n#0")
    run.time_out("n#0")
    run.resolve("n#0", "retry")
    run.succeed("n#0")
    run.begin("n#1")
    run.fail("n#1")
    run.begin("n#2")
    run.fail("n#2", "TRANSIENT")
    run.resolve("n#2", "completed")
    run.fail("m#0", "TRANSIENT")
    run.tick()
    run.succeed("m#1")
    run.fail("m#0", "TRANSIENT")
    run.fail("m#2")
    run.succeed("m#3")
    run.undo("m#3", "m#1")
    run.resolve("n#2", "compensate")
    run.undo("n#2")
    run.resolve("n#0", "dismiss")
    assert run.status == "failed"
    run.retry()
    run.begin("n#2")
    run.run_out()
    assert run.status == "succeeded"
    return run


@program
def every_end_of_a_fan_out() -> Driver:
    """Fan-outs without items, with items that cannot be found, canceled with their scope, passed over, and reused."""
    run = given(
        step("none", foreach="[]"),
        step("sent", foreach="[1, 2, 3]", max_concurrency=1, reusable=True),
        step("kept", foreach="[1]", reusable=True),
        step("check", tries=1),
        scope("s", step("wrong", foreach="input.x > 1"), step("after"), failure_mode="continue"),
        scope("t", step("failing", foreach="[1, 2]", tries=1), failure_mode="continue"),
        scope("u", scope("v", step("unfit", foreach="input.x > 1")), failure_mode="continue"),
        mode="parallel",
        failure_mode="retry",
        name="fan_outs",
    )
    run.start({"x": "text"})
    run.succeed("kept#0", "s/after")
    run.fail("t/failing#0")
    run.succeed("t/failing#1")
    run.fail("check", "TRANSIENT")
    run.succeed("sent#0")
    assert run.state.root.round == 2
    run.tick()
    run.fail("t/failing#0")
    run.run_out()
    assert run.status == "succeeded"
    return run


@program
def fan_out_of_a_flow_in_a_new_run() -> Driver:
    """A flow goes on in a new run where it failed: the fan-out before that point stays as it is."""
    flow = scope("f", step("sent", foreach="[1, 2]", on_success="check"), step("check", tries=1), mode="flow")
    run = given(flow, name="flow")
    run.start()
    run.succeed("f/sent@1#0", "f/sent@1#1")
    run.fail("f/check@1")
    assert run.status == "failed"
    run.retry()
    run.succeed("f/check@1")
    assert run.status == "succeeded"
    return run


@program
def every_end() -> Driver:
    """Deadlines of steps and scopes, a scope that is canceled, a run that is terminated in its rollback."""
    run = given(
        step("a", timeout=50, timeout_ms=100, failure_mode="continue"),
        scope("s", step("b"), approval("p"), mode="parallel", timeout_ms=200),
        unsafe("u", timeout=50, timeout_ms=150),
        step("c", undo=True),
        step("d", undo=True, compensation_max_attempts=2),
        approval("e", timeout_ms=300),
        mode="parallel",
        compensation="BEST_EFFORT_PARALLEL",
        name="ends",
    )
    run.start()
    run.begin("u")
    run.succeed("c", "d")
    run.tick_to(200)
    run.succeed("s/b")
    run.resolve("u", "dismiss")
    run.undo_fails("d", "TRANSIENT")
    run.cancel("terminate")
    assert run.status == "canceled"
    return run


@program
def every_pause() -> Driver:
    """Paused while running, while waiting for a person, and cancelled while paused."""
    run = given(step("a"), approval("ok"), step("b"), name="pauses")
    run.start()
    run.pause()
    run.succeed("a")
    run.resume()
    run.pause()
    run.approve("ok")
    run.resume()
    run.pause()
    run.cancel("terminate")
    return run


@program
def every_way_to_close() -> Driver:
    """Steps that are passed over, time out, or are refused, at every moment of their lives."""
    run = given(
        approval("rejected"),
        step("late", tries=9, timeout=50, delay=100, timeout_ms=120, failure_mode="continue"),
        scope(
            "forgiving",
            step("delayed", tries=9, timeout=50, delay=100, timeout_ms=150),
            step("x"),
            failure_mode="continue",
        ),
        scope("s1", step("slow", tries=1), failure_mode="fail_fast"),
        scope("s2", step("delayed2", tries=9, timeout=50, delay=100, timeout_ms=150)),
        scope("s3", step("wrong", when="input.x > 1")),
        failure_mode="continue",
        mode="parallel",
        name="closings",
    )
    run.start({"x": "text"})
    run.fail("late", "TRANSIENT")
    run.fail("forgiving/delayed", "TRANSIENT")
    run.fail("s2/delayed2", "TRANSIENT")
    run.time_out("s1/slow")
    run.tick()
    run.fail("forgiving/delayed", "TRANSIENT")
    run.fail("s2/delayed2", "TRANSIENT")
    run.reject("rejected")
    run.tick_to(150)
    run.succeed("forgiving/x")
    assert (run.status, run.state.outcome) == ("succeeded", "partial")
    return run


@program
def undone_by_hand() -> Driver:
    run = given(step("a", undo=True, compensation_policy="manual"), step("b"), approval("ok"), name="by_hand")
    run.start()
    run.succeed("a")
    run.fail("b")
    run.resolve("a", "completed")
    run.retry()
    run.succeed("a", "b")
    run.cancel("drain")
    assert run.status == "canceled"
    return run


@program
def refused_hold() -> Driver:
    run = given(step("a", tries=1), failure_mode="retry", name="paid")
    run.start(hold=10)
    run.fail("a", "TRANSIENT", usage=4)
    run.refuse_hold()
    run.expect("""
        started + a/1
        failed a/1 TRANSIENT -> fail charge=4
        closing . retry transient
        review dead_letter a (transient)
        finished failed transient charged=4 refunded=6 retry_hold=10
        hold refused
    """)
    return run


@program
def late_and_again() -> Driver:
    """A step whose time was over is tried again in the next run."""
    run = given(step("a"), step("b", tries=1), name="late")
    run.start()
    run.succeed("a")
    run.time_out("b")
    assert (run.status, run.step("b").status) == ("failed", "timed_out")
    run.retry()
    run.succeed("b")
    assert run.status == "succeeded"
    return run
