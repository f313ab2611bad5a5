"""Seed 002: a run of agents, tasks and steps, paid for with credits."""

from tenuto.kernel import facts as f
from tenuto.kernel.definition import DAY, Escalation, FailureMode, Node, RunPolicies
from tests.kernel.build import scope, step
from tests.kernel.driver import Driver, given

from .program import program


def agent(name: str, mode: FailureMode, *, tries: int = 1) -> Node:
    """Two tasks, of two steps each, one after another."""
    tasks = (
        scope(
            f"{name}_t{t}",
            *(step(f"{name}_t{t}_s{s}", tries=tries, reusable=s == 1) for s in (1, 2)),
            failure_mode=mode,
        )
        for t in (1, 2)
    )
    return scope(name, *tasks, mode="parallel", failure_mode=mode, max_concurrency=5)


def run_of_agents(mode: FailureMode) -> Driver:
    run = given(planner="plan", mode="parallel", max_concurrency=10, failure_mode=mode, name="run", max_replans=1)
    run.start(hold=1_000)
    run.planned(*(agent(f"a{i}", mode) for i in (1, 2, 3)), usage=10)
    return run


def work(run: Driver, name: str) -> None:
    """An agent does all of its work, for one credit a step."""
    for path in [f"{name}/{name}_t{t}/{name}_t{t}_s{s}" for t in (1, 2) for s in (1, 2)]:
        run.succeed(path, usage=1)


@program
def run_fail_fast() -> Driver:
    """One step fails: its task, its agent, the run; what runs is awaited; the rest of the hold is refunded."""
    run = run_of_agents("fail_fast")
    work(run, "a1")
    run.skip_lines()
    run.fail("a2/a2_t1/a2_t1_s1", "TRANSIENT", usage=3)
    run.succeed("a2/a2_t2/a2_t2_s1", "a3/a3_t1/a3_t1_s1", "a3/a3_t2/a3_t2_s1", usage=1)
    run.expect("""
        failed a2/a2_t1/a2_t1_s1/1 TRANSIENT -> fail charge=3
        closing a2/a2_t1 failed transient
        scope a2/a2_t1 failed transient
        closing a2 failed transient
        closing a2/a2_t2 canceled
        ok a2/a2_t2/a2_t2_s1/1 charge=1
        scope a2/a2_t2 canceled
        scope a2 failed transient
        closing . failed transient
        closing a3 canceled
        closing a3/a3_t1 canceled
        closing a3/a3_t2 canceled
        ok a3/a3_t1/a3_t1_s1/1 charge=1
        scope a3/a3_t1 canceled
        ok a3/a3_t2/a3_t2_s1/1 charge=1
        scope a3/a3_t2 canceled
        scope a3 canceled
        review dead_letter a2/a2_t1/a2_t1_s1 (transient)
        finished failed transient charged=20 refunded=980
    """)
    return run


@program
def run_continue() -> Driver:
    """A failed step is passed over; its task, its agent and the run go on. Charged work stays charged."""
    run = run_of_agents("continue")
    run.fail("a1/a1_t1/a1_t1_s1", usage=2)
    run.succeed("a1/a1_t1/a1_t1_s2", usage=1)
    for s in (1, 2):
        run.fail(f"a1/a1_t2/a1_t2_s{s}")
    work(run, "a2")
    for t in (1, 2):
        for s in (1, 2):
            run.fail(f"a3/a3_t{t}/a3_t{t}_s{s}")
    assert (run.status, run.state.outcome) == ("succeeded", "partial")
    assert run.scope("a1").outcome == "succeeded"
    assert run.scope("a1/a1_t2").outcome == "skipped"
    assert run.scope("a3").outcome == "skipped"
    assert run.lines()[-1] == "finished succeeded (partial) charged=17 refunded=983"
    return run


@program
def run_retry() -> Driver:
    """The task is run again, then its agent, then the run, with credits of its own; at most three runs."""
    run = given(
        scope(
            "agent",
            scope("task", step("draw", reusable=True), step("s", tries=1), failure_mode="retry", max_rounds=2),
            failure_mode="retry",
            max_rounds=2,
        ),
        failure_mode="retry",
        name="run",
    )
    run.start(hold=100)
    run.succeed("agent/task/draw", usage=5)
    while run.status == "running":
        run.fail("agent/task/s", "TRANSIENT", usage=1)
        if run.status == "running":
            run.tick()
    run.expect("""
        started
        open agent
        open agent/task + agent/task/draw/1
        ok agent/task/draw/1 charge=5 + agent/task/s/1
        failed agent/task/s/1 TRANSIENT -> fail charge=1
        closing agent/task retry transient
        round 2 of agent/task budget=19 not@90
        ready agent/task
        closed agent/task/draw reused + agent/task/s/2
        failed agent/task/s/2 TRANSIENT -> fail charge=1
        closing agent/task failed transient
        scope agent/task failed transient
        closing agent retry transient
        round 2 of agent budget=18 not@185
        ready agent
        open agent/task
        closed agent/task/draw reused + agent/task/s/3
        failed agent/task/s/3 TRANSIENT -> fail charge=1
        closing agent/task retry transient
        round 2 of agent/task budget=17 not@275
        ready agent/task
        closed agent/task/draw reused + agent/task/s/4
        failed agent/task/s/4 TRANSIENT -> fail charge=1
        closing agent/task failed transient
        scope agent/task failed transient
        closing agent failed transient
        scope agent failed transient
        closing . retry transient
        review dead_letter agent/task/s (transient)
        finished failed transient charged=9 refunded=91 retry_hold=100
    """)
    run.grant_hold(100)
    run.succeed("agent/task/s", usage=1)
    run.expect("""
        resolved dead_letter agent/task/s retry -> close
        run 2
        open agent
        open agent/task
        closed agent/task/draw reused + agent/task/s/5
        ok agent/task/s/5 charge=1
        scope agent/task succeeded
        scope agent succeeded
        finished succeeded charged=1 refunded=99
    """)
    return run


@program
def run_replanned() -> Driver:
    """Two of three agents fail: the planner is asked again, and replaces them."""
    run = run_of_agents("continue")
    run.skip_lines()
    for name in ("a1", "a2"):
        for t in (1, 2):
            for s in (1, 2):
                run.fail(f"{name}/{name}_t{t}/{name}_t{t}_s{s}", usage=1)
    assert run.open()[-1] == "a3/a3_t2/a3_t2_s1/1", "tasks that were passed over did not fail their agents"
    work(run, "a3")
    assert run.state.outcome == "partial"
    run = given(planner="plan", mode="parallel", failure_mode="continue", name="run", max_replans=1)
    run.start(hold=100)
    run.planned(*(agent(f"a{i}", "fail_fast") for i in (1, 2, 3)), usage=10)
    for name in ("a1", "a2"):
        run.succeed(f"{name}/{name}_t2/{name}_t2_s1", f"{name}/{name}_t2/{name}_t2_s2", usage=1)
        run.fail(f"{name}/{name}_t1/{name}_t1_s1", usage=1)
    assert ".:plan/2" in run.open()
    run.skip_lines()
    run.planned(agent("b1", "fail_fast"), usage=10)
    run.expect("""
        added .:plan/2 1 instead of a1 a2 charge=10
        open b1
        open b1/b1_t1 + b1/b1_t1/b1_t1_s1/1
        open b1/b1_t2 + b1/b1_t2/b1_t2_s1/1
    """)
    work(run, "a3")
    work(run, "b1")
    assert run.lines()[-1] == "finished succeeded charged=34 refunded=66"
    return run


@program
def run_escalated_and_cancelled() -> Driver:
    """Errors pile up: paused, and a person asked; nobody comes; after the pause limit the run is cancelled."""
    run = given(
        step("s", tries=50, delay=0),
        name="run",
        escalation=Escalation(errors=2),
        cancel="terminate",
        pause_limit_ms=60_000,
    )
    run.start(hold=10)
    for _ in range(3):
        run.fail("s", "TRANSIENT", usage=1)
    run.tick()
    run.expect("""
        started + s/1
        failed s/1 TRANSIENT -> retry@0 charge=1 + s/2
        failed s/2 TRANSIENT -> retry@0 charge=1 + s/3
        failed s/3 TRANSIENT -> retry@0 charge=1
        review escalation s (too many errors)
        paused escalated limit@60000
        resumed shift=60000
        cancel terminate
        closed s canceled
        resolved escalation s dismiss -> close
        finished canceled charged=3 refunded=7
    """)
    return run


def _paid_agent(name: str) -> Node:
    return scope(name, scope("visit", step("fetch", tries=1, estimate=15), step("read", tries=1)))


@program
def run_queued_resumed_and_retried() -> Driver:
    """A run of its own kind: claimed, planned, paused, resumed elsewhere, failed, and attempted again after a delay."""
    run = given(
        scope("agents", planner="plan", mode="parallel", max_children=10),
        step("conclude"),
        failure_mode="retry",
        name="survey",
        pending_timeout_ms=DAY,
        timeout_ms=DAY,
        cancel="terminate",
        run=RunPolicies(),
    )
    run.start(hold=100, owned=False)
    run.crash()
    run.expect(f"""
        started pending@{DAY}
        open agents + agents:plan/1
        entered running deadline@{DAY} + agents:plan/1
    """)
    run.planned(_paid_agent("shop-1"), _paid_agent("shop-2"), scope="agents")
    run.pause()
    run.succeed("agents/shop-1/visit/fetch", usage=12)
    run.tell(f.Resume(at=run.now, owned=False))
    run.crash()
    run.fail("agents/shop-2/visit/fetch", "TRANSIENT", usage=7)
    run.skip_lines()
    run.succeed("agents/shop-1/visit/read")
    run.grant_hold(100)
    run.tick()
    run.succeed("agents/shop-2/visit/fetch", usage=3)
    run.succeed("agents/shop-2/visit/read", "conclude")
    return run
