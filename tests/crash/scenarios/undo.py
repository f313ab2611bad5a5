"""Rollbacks, under each policy, and undos that fail."""

from tests.crash.client import Client
from tests.crash.scenario import scenario, task, unsafe

POLICIES = ("STRICT_SEQUENTIAL", "GROUPED_PARALLEL", "RETRY_WITH_BACKOFF", "CIRCUIT_BREAKER", "BEST_EFFORT_PARALLEL")

for policy in POLICIES:
    scenario(
        f"rollback {policy}",
        task("a", undo="ok"),
        task("b", undo="ok"),
        task("c", undo="ok", depends_on=["a", "b"]),
        task("d", "refused", depends_on=["c"]),
        mode="dag",
        scheduling="layered",
        compensation=policy,
        ends="failed",
    )
    scenario(
        f"undo fails {policy}",
        task("a", undo="ok"),
        task("b", undo=["refused", "ok"]),
        task("c", "refused"),
        compensation=policy,
        ends="failed",
    )

scenario(
    "undo tried again",
    task("a", undo=["transient", "transient", "ok"]),
    task("b", "refused"),
    compensation="RETRY_WITH_BACKOFF",
    ends="failed",
)

scenario(
    "breaker opens",
    task("a", undo="ok"),
    task("b", undo=["refused", "ok"], compensation_critical=True),
    task("c", "refused"),
    compensation="CIRCUIT_BREAKER",
    ends="failed",
)

scenario(
    "undo needs consent",
    task("a", undo="ok"),
    unsafe("b", undo="ok", compensation_policy="manual", timeout=200),
    task("c", "refused"),
    ends="failed",
)

scenario(
    "half made is undone",
    task("a", undo="ok"),
    task("b", "made refused", undo="ok", partial_effect=True),
    ends="failed",
)


async def _try_both_again(client: Client) -> None:
    """In a pause, so that both begin together when it is over, and the quicker one is done while the other runs."""
    handle = await client.start()
    if not await client.is_over(handle):
        await client.command(handle.pause(reason="mending"))
        async for review in client.engine.reviews(kind="compensation_failed"):
            await client.decide(review)
        await client.command(handle.resume())
    await client.finish(handle)


scenario(
    "two undos of a group tried again",
    task("a", undo="ok"),
    task("b", undo=["refused", "ok"], depends_on=["a"]),
    task("c", undo=["refused", "dwells"], depends_on=["a"]),
    task("d", "refused", depends_on=["b", "c"]),
    mode="dag",
    compensation="GROUPED_PARALLEL",
    ends="failed",
    script=_try_both_again,
)
