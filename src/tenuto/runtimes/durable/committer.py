"""Group commit: one batch under way, the next one gathering. There is no timer on this path.

While a commit runs, whatever is decided meanwhile gathers; so batches grow with load by themselves, and a lone
execution waits for nothing. What was decided takes effect, and callers are answered, when its batch is acknowledged.

A commit that fails leaves one question: was it applied? The worker reads one row of the batch back, and never assumes.
A batch that the database refuses for its data is halved until the culprit is alone; that execution is parked.
"""

import asyncio
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from tenuto.errors import StorageError
from tenuto.projection import Standing
from tenuto.storage.store import Append, Batch, Committed, NewExecution, Refusal, Store

MAX_BATCH = 1_000
RETRY_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)

Fate = Literal["committed", "fenced", "parked"] | Refusal


class Write(Struct, kw_only=True, gc=False):
    """What one decision writes, and whom to tell. Writes of one execution are committed in the order they were made."""

    execution: str
    append: Append | None = None
    start: NewExecution | None = None
    standing: Standing | None = None
    extra: Batch | None = None

    def settle(self, fate: Fate) -> None:
        """Its fate is known."""


class Told(Write, kw_only=True, gc=False):
    tell: Callable[[Fate], None]

    def settle(self, fate: Fate) -> None:
        self.tell(fate)


class Committer:
    def __init__(self, store: Store, session: str | None, on_time: Callable[[int], None]) -> None:
        self._store = store
        self._session = session
        self._on_time = on_time
        self._waiting: list[Write] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.commits = 0
        self.writes = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="tenuto-committer")

    def add(self, write: Write) -> None:
        self._waiting.append(write)
        self._idle.clear()
        self._wake.set()

    async def drain(self) -> None:
        """Waits until everything that was added is settled."""
        await self._idle.wait()

    async def stop(self) -> None:
        await self.drain()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            if not self._waiting:
                self._wake.clear()
                self._idle.set()
                continue
            writes, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
            await self._commit(writes)

    async def _commit(self, writes: list[Write]) -> None:
        try:
            committed = await self._until_known(_batch(self._session, writes))
        except StorageError:
            await self._halve(writes)
            return
        self.commits += 1
        self.writes += len(writes)
        if committed.now:
            self._on_time(committed.now)
        for write in writes:
            fate: Fate = "fenced" if committed.fenced else committed.refused.get(write.execution, "committed")
            write.settle(fate)

    async def _until_known(self, batch: Batch) -> Committed:
        """Commits, however long the database takes to come back. Raises only when it refuses the data."""
        attempt = 0
        while True:
            try:
                return await self._store.commit(batch)
            except StorageError as error:
                if error.code == "bad_data":
                    raise
            while True:
                await asyncio.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
                attempt += 1
                try:
                    written = await self._is_written(batch)
                except StorageError:
                    continue
                if written is not None:
                    return written
                break

    async def _is_written(self, batch: Batch) -> Committed | None:
        """What a commit whose outcome is unknown has written, or None if it was not applied.

        Either all of a batch is there, or nothing; what alone is missing was refused.
        """
        missing = [a.execution for a in batch.appends if not await self._store.has(a.execution, a.seq)]
        if len(missing) == len(batch.appends):
            return None  # a batch without appends only repeats what it says
        starts = {start.id for start in batch.starts}
        return Committed(0, refused={id: "duplicate_key" if id in starts else "not_owner" for id in missing})

    async def _halve(self, writes: list[Write]) -> None:
        executions = list(dict.fromkeys(write.execution for write in writes))
        if len(executions) == 1:
            await self._store.park(executions[0], "incompatible")
            for write in writes:
                write.settle("parked")
            return
        first = dict.fromkeys(executions[: len(executions) // 2])
        await self._commit([write for write in writes if write.execution in first])
        await self._commit([write for write in writes if write.execution not in first])


def _batch(session: str | None, writes: list[Write]) -> Batch:
    batch = Batch(session=session)
    for write in writes:
        if write.append is not None:
            batch.appends.append(write.append)
        if write.start is not None:
            batch.starts.append(write.start)
        if write.standing is not None:
            batch.standings[write.execution] = write.standing
        if write.extra is not None:
            _merge(batch, write.extra)
    return batch


def _merge(batch: Batch, extra: Batch) -> None:
    batch.reviews += extra.reviews
    batch.closed += extra.closed
    batch.mail += extra.mail
    batch.snapshots += extra.snapshots
    batch.tasks += extra.tasks
    batch.tasks_ended += extra.tasks_ended
    batch.outbox += extra.outbox
    batch.audit += extra.audit
