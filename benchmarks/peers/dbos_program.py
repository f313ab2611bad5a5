# Runs in an environment of its own, which type checks do without.
# mypy: disable-error-code="import-not-found,untyped-decorator"
"""DBOS, driven: `python -m benchmarks.peers.dbos_program DATABASE_URL`. Async workflows, steps with retries allowed."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dbos import DBOS, SetWorkflowID

from benchmarks.runner import STEPS, Runner, serve, slow_step

POOL = 20
LOOK_S = 0.1


@DBOS.step(retries_allowed=True)
async def no_op(number: int) -> int:
    return number


@DBOS.step(retries_allowed=True)
async def slow_one(log: str, key: str, number: int) -> None:
    await slow_step(log, key, number)


@DBOS.workflow()
async def chain() -> None:
    for number in range(STEPS):
        await no_op(number)


@DBOS.workflow()
async def fan_out(width: int) -> int:
    return len(await asyncio.gather(*(no_op(number) for number in range(width))))


@DBOS.workflow()
async def slow(log: str, key: str) -> None:
    for number in range(STEPS):
        await slow_one(log, key, number)


class Dbos:
    def __init__(self) -> None:
        self._unfinished: asyncio.Task[None] | None = None

    async def chain(self, key: str) -> None:
        handle = await DBOS.start_workflow_async(chain)
        await handle.get_result()

    async def fan_out(self, key: str, width: int) -> None:
        handle = await DBOS.start_workflow_async(fan_out, width)
        assert await handle.get_result() == width

    async def submit_slow(self, key: str, log: str) -> None:
        with SetWorkflowID(key):
            await DBOS.start_workflow_async(slow, log, key)

    async def finish_slow(self, key: str, log: str) -> None:
        """Waits for all of them: recovery began with the launch, and one question for all is the cheapest to ask."""
        if self._unfinished is None:
            self._unfinished = asyncio.create_task(self._until_none_is_pending())
        await self._unfinished

    async def _until_none_is_pending(self) -> None:
        pending = ["PENDING", "ENQUEUED"]
        while await DBOS.list_workflows_async(status=pending, load_input=False, load_output=False):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)  # its own waiting asks once a second for each of them
        assert not await DBOS.list_workflows_async(status=["ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"])


@asynccontextmanager
async def opening(url: str) -> AsyncIterator[Runner]:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "sys_db_pool_size": POOL,
            "application_version": "1",
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    try:
        yield Dbos()
    finally:
        DBOS.destroy()


if __name__ == "__main__":
    serve(opening(sys.argv[1]))
