"""Seed 004: a saga with a fan-out under each of the five policies."""

from tenuto.kernel.definition import CompensationOrder
from tests.kernel.build import step
from tests.kernel.driver import Driver, given

from .program import program


def fan_out_saga(policy: CompensationOrder) -> Driver:
    """Prepare, then tell three people, one of whom cannot be told; taking back what was told to the last one fails."""
    run = given(
        step("prepare", undo=True),
        step(
            "notify",
            foreach="['ann', 'bob', 'cid']",
            suffix="item",
            undo=True,
            compensation_critical=True,
            after=("prepare",),
        ),
        mode="dag",
        scheduling="layered",
        compensation=policy,
        name="saga",
    )
    run.start()
    run.succeed("prepare", "notify#0")
    run.fail("notify#1")
    run.succeed("notify#2")
    run.expect(f"""
        started + prepare/1
        ok prepare/1
        expanded notify 3 + notify#0..2/1
        ok notify#0/1
        failed notify#1/1 NON_RETRYABLE -> fail
        closing notify failed non_retryable
        closing . failed non_retryable
        ok notify#2/1
        scope notify failed non_retryable
        {_GROUPS[policy]}
    """)
    return run


_GROUPS: dict[CompensationOrder, str] = {
    "STRICT_SEQUENTIAL": "undo because failed: notify#2 | notify#0 | prepare + notify#2:undo/1",
    "GROUPED_PARALLEL": "undo because failed: notify#2 notify#0 | prepare + notify#2:undo/1 notify#0:undo/1",
    "RETRY_WITH_BACKOFF": "undo because failed: notify#2 | notify#0 | prepare + notify#2:undo/1",
    "CIRCUIT_BREAKER": "undo because failed: notify#2 | notify#0 | prepare + notify#2:undo/1",
    "BEST_EFFORT_PARALLEL": (
        "undo because failed: notify#2 notify#0 prepare + notify#2:undo/1 notify#0:undo/1 prepare:undo/1"
    ),
}


@program
def saga_strict_sequential() -> Driver:
    run = fan_out_saga("STRICT_SEQUENTIAL")
    run.undo_fails("notify#2")
    run.resolve("notify#2", "retry")
    run.undo("notify#2", "notify#0", "prepare")
    run.expect("""
        failed notify#2:undo/1 NON_RETRYABLE -> review
        review compensation_failed notify#2
        undo stopped failed: notify#0 prepare
        resolved compensation_failed notify#2 retry -> retry + notify#2:undo/2
        ok notify#2:undo/2 + notify#0:undo/1
        ok notify#0:undo/1 + prepare:undo/1
        ok prepare:undo/1
        review dead_letter notify#1 (non_retryable)
        finished failed non_retryable
    """)
    return run


@program
def saga_grouped_parallel() -> Driver:
    run = fan_out_saga("GROUPED_PARALLEL")
    run.undo_fails("notify#2")
    run.undo("notify#0")
    assert run.status == "waiting_approval"
    run.resolve("notify#2", "completed")
    run.undo("prepare")
    run.expect("""
        failed notify#2:undo/1 NON_RETRYABLE -> review
        review compensation_failed notify#2
        ok notify#0:undo/1
        undo stopped failed: prepare
        resolved compensation_failed notify#2 completed -> succeed + prepare:undo/1
        ok prepare:undo/1
        review dead_letter notify#1 (non_retryable)
        finished failed non_retryable
    """)
    return run


@program
def saga_retry_with_backoff() -> Driver:
    run = fan_out_saga("RETRY_WITH_BACKOFF")
    run.undo_fails("notify#2", "TRANSIENT")
    run.tick()
    run.undo_fails("notify#2", "TRANSIENT")
    run.tick()
    run.undo("notify#2", "notify#0", "prepare")
    run.expect("""
        failed notify#2:undo/1 TRANSIENT -> retry@100
        granted + notify#2:undo/2
        failed notify#2:undo/2 TRANSIENT -> retry@300
        granted + notify#2:undo/3
        ok notify#2:undo/3 + notify#0:undo/1
        ok notify#0:undo/1 + prepare:undo/1
        ok prepare:undo/1
        review dead_letter notify#1 (non_retryable)
        finished failed non_retryable
    """)
    return run


@program
def saga_circuit_breaker() -> Driver:
    run = fan_out_saga("CIRCUIT_BREAKER")
    run.undo_fails("notify#2")
    run.resolve("notify#2", "dismiss")
    run.expect("""
        failed notify#2:undo/1 NON_RETRYABLE -> review
        review compensation_failed notify#2
        undo stopped circuit_open: notify#0 prepare
        resolved compensation_failed notify#2 dismiss -> skip
        review dead_letter notify#1 (non_retryable)
        finished failed non_retryable
    """)
    run.retry()
    run.expect("""
        resolved dead_letter notify#1 retry -> close
        run 2
        closed prepare reused
        expanded notify 3 + notify#1/2
    """)
    run.succeed("notify#1")
    run.skip_lines()
    return run


@program
def saga_best_effort() -> Driver:
    run = fan_out_saga("BEST_EFFORT_PARALLEL")
    run.undo_fails("notify#2")
    run.undo("prepare", "notify#0")
    run.resolve("notify#2", "dismiss")
    run.expect("""
        failed notify#2:undo/1 NON_RETRYABLE -> review
        review compensation_failed notify#2
        ok prepare:undo/1
        ok notify#0:undo/1
        resolved compensation_failed notify#2 dismiss -> skip
        review dead_letter notify#1 (non_retryable)
        finished failed non_retryable
    """)
    run.retry()
    run.expect("""
        resolved dead_letter notify#1 retry -> close
        run 2 redo prepare=2 notify#0=2 + prepare/2
    """)
    run.succeed("prepare", "notify#0", "notify#1")
    run.skip_lines()
    return run
