"""Processes for tests that kill them: `python -m tests.durable.task_worker URL LOG guest|owner SAFETY`.

A guest serves the queue `gpu`; its handlers note that they have begun, and then never end. An owner starts an execution
and serves no queue.
"""

import asyncio
import sys
from typing import Any, Literal

from tenuto import Done, Engine, NotDone, Outcome, SagaBuilder, SagaContext
from tests.durable.worker_process import note, noted

LEASE = "5s"
Safety = Literal["safe_to_retry", "safe_to_retry_with_guard", "not_safe_to_retry", "manual"]


def paying(log: str, safety: Safety, *, goes_on: asyncio.Event | None = None, limited: bool = False) -> object:
    """A saga of one step on the queue. Its effect is a line in the log with its key, which a look-up finds."""

    async def find(ctx: SagaContext) -> Outcome[str]:
        note(log, "asked", ctx.execution_id)
        return Done("found") if ["paid", ctx.forward_key] in noted(log) else NotDone()

    async def pay(ctx: SagaContext) -> str:
        note(log, "begun", ctx.execution_id, ctx.attempt)
        if goes_on is not None:
            await goes_on.wait()
        note(log, "paid", ctx.idempotency_key)
        return f"attempt {ctx.attempt}"

    options: dict[str, Any] = {"queue": "gpu", "timeout": "10m", "limits": ["one"] if limited else []}
    match safety:
        case "safe_to_retry_with_guard":
            options |= {"safety": safety, "guard": find}
        case "not_safe_to_retry":
            options |= {"safety": safety, "reconcile": find, "timeout": "6s"}
        case "manual":
            options |= {"safety": "not_safe_to_retry", "compensation_policy": "manual"}
    return SagaBuilder("pays", output="pay").step("pay", pay, **options).build()


async def main(url: str, log: str, role: str, safety: Safety) -> None:
    queues = ("gpu",) if role == "guest" else ()
    async with Engine(url, lease=LEASE, queues=queues, shutdown_grace="10ms") as engine:
        engine.register(paying(log, safety, goes_on=asyncio.Event(), limited=safety == "safe_to_retry"))
        if role == "owner":
            await engine.start("pays", idempotency_key="key")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await engine.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4]))  # type: ignore[arg-type]  # a test says which
