"""Group commit: one batch is in flight while the next one gathers. There is no timer on this path.

Decisions that are made during a commit gather for the next one. So batches grow with the load, and a lone execution
waits for nothing. A decision takes effect, and its caller is answered, when its batch is acknowledged.

Under load, that takes longer than the commit itself. So while many writes are still to be settled, a next batch that is
large enough is committed. Its commit begins when the one before is acknowledged.

If a commit fails, it is unknown whether it was applied. The worker reads the batch back and never assumes, also when it
sends the rest again, because the first commit may still have been running. A batch that the database refuses because of
its data is halved until the culprit is alone; that execution is parked. A write that waits for another transaction is
held back (`blocked_writes.py`), and the others are committed.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from tenuto.errors import StorageError
from tenuto.runtime.supervision import report
from tenuto.storage.port import Append, Basis, Batch, Committed, NewExecution, Refusal, Store
from tenuto.views.projections import Standing

from .backoff import pause_s
from .blocked_writes import BlockedWrites

T = TypeVar("T")
logger = logging.getLogger("tenuto.durable")

MAX_BATCH = 1_000
ENOUGH = 400  # a batch of this size does not wait until the one before is settled
TELL_AT_ONCE = 100  # writes settled before other tasks get the event loop
ALL = 2**31
LASTING = ("full", "not_permitted", "read_only")

# `unknown`: the engine was closed while the database could not be reached.
Fate = Literal["committed", "fenced", "parked", "unknown"] | Refusal


class Write(Struct, kw_only=True, gc=False):
    """What one decision writes, and who is told its fate. Writes of an execution are committed in order."""

    execution: str
    after: Basis | None = None  # what it was decided on, unless it starts the execution
    append: Append | None = None
    start: NewExecution | None = None
    standing: Standing | None = None
    extra: Batch | None = None
    told: bool = False
    weight: int = 1  # the cost of settling it, in units of a usual write

    def settle(self, fate: Fate) -> None:
        """Its fate is known."""

    @property
    def basis(self) -> int:
        """What it was decided on: if an earlier write of that is not recorded, neither is this one."""
        return id(getattr(self, "record", None))


class CallbackWrite(Write, kw_only=True, gc=False):
    """Calls back with its fate, once all earlier writes of the execution are settled."""

    call: Callable[[Fate], None]
    record: object = None

    def settle(self, fate: Fate) -> None:
        self.call(fate)


class RoomReport(Write, kw_only=True, gc=False):
    """Reports the room that tenants have left, once all earlier writes are settled."""

    room: dict[str, int]
    call: Callable[[dict[str, int]], None]

    def settle(self, fate: Fate) -> None:
        self.call(self.room)


class Committer:
    def __init__(
        self,
        store: Store,
        session: str | None,
        on_time: Callable[[int], None],
        on_fenced: Callable[[], None] = lambda: None,
        on_room: Callable[[dict[str, int]], None] = lambda room: None,
    ) -> None:
        self._store = store
        self._session = session
        self._on_time = on_time
        self._on_fenced = on_fenced
        self._on_room = on_room
        self._waiting: list[Write] = []
        self._in_hand: list[Write] = []
        self._apart: BlockedWrites[Write] = BlockedWrites()
        self._again: asyncio.TimerHandle | None = None  # when those are tried again
        self._committed: deque[Write] = deque()  # and not told yet
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._began: float | None = None
        self._trouble: StorageError | None = None  # why the commit under way failed, so far
        self.commits = 0
        self.writes = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="tenuto-committer")

    def add(self, write: Write) -> None:
        assert write.append is None or write.after is not None or write.start is not None, "an append states its basis"
        if not self._waiting:
            self._idle.clear()
            self._wake.set()
        self._waiting.append(write)

    def withdraw(self, write: Write) -> None:
        """Drops a write whose caller was cancelled, unless its commit has begun."""
        if any(waiting is write for waiting in self._waiting):
            self._waiting = [waiting for waiting in self._waiting if waiting is not write]
            self._drop([write], {write.execution: "unknown"})
            self._settle(write, "unknown")

    async def drain(self) -> None:
        """Waits until everything that was added is settled."""
        await self._idle.wait()

    async def stop(self, patience_s: float | None = None) -> None:
        """Waits until everything is settled. After `patience_s`, the remaining writes have the fate `unknown`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self.drain()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._again is not None:
            self._again.cancel()
        self._tell(ALL)
        left, self._waiting, self._in_hand = self._in_hand + self._apart.take() + self._waiting, [], []
        for write in left:
            self._settle(write, "unknown")

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            if not self._waiting:
                self._wake.clear()
                if not self._apart:
                    self._idle.set()
                continue
            await self._commit_some()
            while self._committed:
                self._tell(TELL_AT_ONCE)
                if self._committed and len(self._waiting) >= ENOUGH:
                    await self._commit_and_tell()
                elif self._committed:
                    await asyncio.sleep(0)

    async def _commit_and_tell(self) -> None:
        rounds = -(-sum(write.weight for write in self._committed) // TELL_AT_ONCE)
        commit = asyncio.create_task(self._commit_some(), name="tenuto-commit")
        try:
            for _ in range(rounds):
                await asyncio.sleep(0)
                self._tell(TELL_AT_ONCE)
            await commit
        finally:
            if not commit.done():
                commit.cancel()
                await asyncio.wait([commit])

    async def _commit_some(self) -> None:
        self._in_hand, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
        self._began = time.monotonic()
        await self._commit(await self._free(self._in_hand) if self._apart.is_wary else self._in_hand)
        self._began = self._trouble = None
        self._in_hand = []

    def _tell(self, weight: int) -> None:
        committed = self._committed
        while committed and weight > 0:
            write = committed.popleft()
            weight -= write.weight
            self._settle(write, "committed")

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._apart)

    @property
    def committing_ms(self) -> int:
        """How long the commit under way has taken so far."""
        return 0 if self._began is None else int((time.monotonic() - self._began) * 1_000)

    @property
    def trouble(self) -> str:
        """The error that an operator must fix before commits work again. Empty if waiting is enough."""
        trouble = self._trouble
        return f"{trouble.code}: {trouble.message}" if trouble is not None and trouble.code in LASTING else ""

    def _note(self, error: Exception) -> None:
        if not isinstance(error, StorageError):
            report("A commit failed, and is tried again.", error)
            return
        if self._trouble is None or self._trouble.code != error.code:
            extra = {"action": "commit_failed", "code": error.code}
            logger.warning("A commit failed, and is tried again: %s", error.message, extra=extra)
        self._trouble = error

    async def _commit(self, writes: list[Write], riddles: int = 0) -> None:
        """Commits, however long the database takes to come back.

        `riddles`: how often it was not known what a batch waited for.
        """
        attempts = 0
        while writes:
            batch = _batch(self._session, writes)
            try:
                committed = await self._store.commit(batch)
            except Exception as error:  # whatever it is: what became of the batch is not known
                self._tell(ALL)
                self._note(error)
                code = error.code if isinstance(error, StorageError) else ""
                is_bad = code == "bad_data"
                if attempts or not is_bad:
                    await asyncio.sleep(pause_s(attempts))
                    attempts += 1
                writes = await self._not_written(writes)  # a part may have been, before another was refused
                if is_bad:
                    await self._halve(writes, self._park_alone)
                    return
                if code == "locked":
                    free = await self._without_blocked(writes)
                    riddles += len(free) == len(writes)  # nothing is in the way; but something was
                    if riddles > 1:
                        await self._halve(free, self._set_apart, 1)
                        return
                    writes = free
            else:
                if attempts or "stale" in committed.refused.values():
                    committed = await self._read_back(batch, committed, again=attempts > 0)
                self._settle_all(writes, committed)
                return

    def _settle_all(self, writes: list[Write], committed: Committed) -> None:
        self.commits += 1
        self.writes += len(writes)
        if committed.now:
            self._on_time(committed.now)
        if not committed.fenced and not committed.refused:
            self._committed.extend(writes)
            if committed.room:  # reported after all of this batch is settled, and before a later one
                self._committed.append(RoomReport(execution="", room=committed.room, call=self._on_room))
            return
        self._tell(ALL)  # those before it, and then these at once: nothing more rests on them
        if committed.fenced:
            self._on_fenced()
        for write in writes:
            fate: Fate = "fenced" if committed.fenced else committed.refused.get(write.execution, "committed")
            self._settle(write, fate)
        if committed.room:
            self._on_room(committed.room)
        if committed.refused:
            self._drop([write for write in writes if write.execution in committed.refused], committed.refused)

    def _drop(self, refused: list[Write], fates: Mapping[str, Fate]) -> None:
        """What was decided meanwhile on top of what is not recorded never came to be either."""
        lost = {write.basis for write in refused} - {id(None)}
        resting = [write for write in self._waiting if write.basis in lost]
        self._waiting = [write for write in self._waiting if write.basis not in lost]
        for write in resting:
            self._settle(write, fates[write.execution])

    def _settle(self, write: Write, fate: Fate) -> None:
        """What follows is one execution's affair: if it goes wrong, the others' commits go on."""
        if write.told:
            return
        write.told = True
        try:
            write.settle(fate)
        except Exception as error:
            report(f"Execution {write.execution} could not go on.", error)

    async def _not_written(self, writes: list[Write]) -> list[Write]:
        """After a commit whose outcome is unknown: settles what is there, and gives the rest.

        An execution's rows of one batch are all there, or none. Writes without any only repeat what they say.
        """
        missing = dict.fromkeys(await self._missing(_batch(self._session, writes)))
        written = {write.execution for write in writes if write.append is not None and write.execution not in missing}
        for write in writes:
            if write.execution in written:
                self._settle(write, "committed")
        return [write for write in writes if write.execution not in written]

    async def _read_back(self, batch: Batch, committed: Committed, *, again: bool) -> Committed:
        """It was refused in part or as a whole: because it was sent before, and applied after all?

        `again`: it was sent again just now. If not, an earlier batch with the same writes may have been.
        """
        if not committed.fenced and not committed.refused:
            return committed
        missing = dict.fromkeys(await self._missing(batch))
        appended = {append.execution for append in batch.appends}
        if not committed.fenced:
            # Without an entry nothing can be read back: a release that was applied looks as if another had the
            # execution. Who still owns it did not release it.
            refused = {
                id: why
                for id, why in committed.refused.items()
                if (id in missing if id in appended else why == "stale" or not again)
            }
            return Committed(committed.now, refused=refused, room=committed.room)
        if len(missing) == len(appended):
            return committed
        return Committed(committed.now, refused=dict.fromkeys(missing, "not_owner"))

    async def _missing(self, batch: Batch) -> list[str]:
        written = await _in_the_end(lambda: self._store.written(batch.appends))
        return [a.execution for a, there in zip(batch.appends, written, strict=True) if not there]

    async def _park(self, execution: str) -> None:
        await _in_the_end(lambda: self._store.claims.park(self._session, execution, "incompatible", None))

    async def _park_alone(self, writes: list[Write]) -> None:
        execution = writes[0].execution
        await self._park(execution)
        for write in writes:
            self._settle(write, "parked")
        self._drop(writes, {execution: "parked"})

    # -- Writes that other transactions block --------------------------------------------------------------------------

    async def _free(self, writes: list[Write]) -> list[Write]:
        """Without those that would wait, and those behind them."""
        behind = [write for write in writes if write.execution in self._apart]
        self._apart.add(behind)
        writes = [write for write in writes if write.execution not in self._apart]
        if not self._apart.is_earnest:
            writes = await self._without_blocked(writes)
        self._apart.settle()
        return writes

    async def _without_blocked(self, writes: list[Write]) -> list[Write]:
        batch = _batch(self._session, writes)
        blocked = await _in_the_end(lambda: self._store.blocked(batch)) if writes else frozenset[str]()
        await self._set_apart([write for write in writes if write.execution in blocked])
        return [write for write in writes if write.execution not in blocked]

    async def _set_apart(self, writes: list[Write]) -> None:
        self._apart.add(writes)
        if writes and self._again is None:
            self._again = asyncio.get_running_loop().call_later(self._apart.pause_s, self._try_again)

    def _try_again(self) -> None:
        self._again = None
        self._waiting = self._apart.take() + self._waiting
        self._wake.set()

    async def _halve(
        self, writes: list[Write], alone: Callable[[list[Write]], Awaitable[None]], riddles: int = 0
    ) -> None:
        executions = list(dict.fromkeys(write.execution for write in writes))
        if len(executions) == 1:
            await alone(writes)
            return
        first = dict.fromkeys(executions[: len(executions) // 2])
        await self._commit([write for write in writes if write.execution in first], riddles)
        await self._commit([write for write in writes if write.execution not in first], riddles)


async def _in_the_end(ask: Callable[[], Awaitable[T]]) -> T:
    """However long the database takes to come back."""
    attempts = 0
    while True:
        try:
            return await ask()
        except Exception as error:  # whatever it is: nothing more would be committed if this ended
            if not isinstance(error, StorageError):
                report("The database could not be asked, and is asked again.", error)
            await asyncio.sleep(pause_s(attempts))
            attempts += 1


def _batch(session: str | None, writes: list[Write]) -> Batch:
    batch = Batch(session=session)
    starts: set[str] = set()
    for write in writes:
        if write.after is not None and write.execution not in starts:
            batch.bases.setdefault(write.execution, write.after)
        if write.start is not None:
            batch.starts.append(write.start)
            starts.add(write.start.id)
        if write.append is not None:
            batch.appends.append(write.append)
        if write.standing is not None:
            _stand(batch.standings, write.standing)
        if write.extra is not None:
            _merge(batch, write.extra)
    return batch


def _stand(standings: dict[str, Standing], standing: Standing) -> None:
    """The last word counts; but what an earlier one says of a concurrency key is not said again."""
    earlier = standings.get(standing.id)
    if earlier is not None and earlier.admission and not standing.admission:
        standing = msgspec.structs.replace(standing, admission=earlier.admission, line=earlier.line)
    standings[standing.id] = standing


def _merge(batch: Batch, extra: Batch) -> None:
    batch.reviews += extra.reviews
    batch.closed += extra.closed
    batch.mail += extra.mail
    batch.snapshots += extra.snapshots
    batch.tasks += extra.tasks
    batch.tasks_ended += extra.tasks_ended
    batch.withdrawn += extra.withdrawn
    batch.outbox += extra.outbox
    batch.audit += extra.audit
    batch.ledger += extra.ledger
    batch.ledger_attempts += extra.ledger_attempts
    batch.job_index += extra.job_index
    batch.callbacks += extra.callbacks
    batch.credit_entries += extra.credit_entries
    batch.settlements += extra.settlements
    batch.reserves += extra.reserves
