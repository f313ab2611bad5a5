"""Reads executions: those held here once their decisions are committed, all others from the store."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal

from tenuto.errors import NotFound
from tenuto.kernel.address import Ref
from tenuto.kernel.codec import decode_entries
from tenuto.kernel.events import Entry
from tenuto.kernel.evolve import evolve, holder_of
from tenuto.kernel.state import Execution, ExecutionStatus
from tenuto.runtime.executor import Performer, Role
from tenuto.runtime.executor.held_execution import Record
from tenuto.runtime.executor.worker import Worker
from tenuto.runtime.shared.executions import Summary
from tenuto.runtime.shared.filters import Filter
from tenuto.runtime.shared.overview import Figures
from tenuto.runtime.shared.pages import id_at
from tenuto.storage.port import ExecutionRow, Executions, Loaded, Store
from tenuto.storage.reviews import ReviewsWanted, StoredReview
from tenuto.views import NOTHING_UNDER_WAY, Activity, Until, Waiting, has_reached
from tenuto.views.pages import Page
from tenuto.views.projections import work_of
from tenuto.views.reading import Reading

from . import snapshots
from .batched_reads import BatchedReads
from .definition_cache import DefinitionCache
from .finished_readings import FinishedReadings
from .held_executions import HeldExecutions, Moved
from .queued_attempts import has_queued, with_queued
from .restoration import Restorer
from .rows import summary
from .rows import wanted as stored_filter
from .watcher import Watcher
from .worker_capabilities import Workers

LAST_SEQ = 2**31 - 1
LOADS = 4  # concurrent ones of a tenant
TAKEN_MS = 2_000  # a worker with a free slot has claimed a waiting execution by then
LOADED_AT_ONCE = 16  # histories may be long, and all callers of a batch wait for the last one


async def _load(executions: Executions, short: bool, ids: Sequence[str]) -> dict[str, Loaded]:
    return {loaded.row.id: loaded for loaded in await executions.load(ids, short=short)}


class Reader:
    """Reads executions: those that are held here once their decisions are committed, all others from the store."""

    def __init__(
        self,
        store: Store,
        worker: Worker,
        cache: DefinitionCache,
        held: HeldExecutions,
        restorer: Restorer,
        watcher: Watcher,
        check_open: Callable[[], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._cache = cache
        self._held = held
        self._restorer = restorer
        self._watcher = watcher
        self._check_open = check_open
        self._progress = held.progress
        self._asked_by: dict[tuple[str | None, bool], BatchedReads[str, Loaded]] = {}
        self._workers = Workers(store.tasks.serving)
        self._finished = FinishedReadings()

    async def row(self, tenant: str | None, execution_id: str) -> ExecutionRow:
        row = await self._store.for_tenant(tenant).executions.find(execution_id)
        if row is None or (tenant is not None and row.tenant != tenant):
            raise NotFound(f"There is no execution {execution_id!r}.")
        return row

    async def read(self, tenant: str | None, execution_id: str) -> Reading:
        return await self._shown(execution_id, await self._read_as_decided(tenant, execution_id))

    async def read_state(self, tenant: str | None, execution_id: str) -> Reading:
        return await self._shown(execution_id, await self._read_as_decided(tenant, execution_id, short=True))

    async def _shown(self, execution_id: str, reading: Reading) -> Reading:
        if self._held.find_held(execution_id) is None and reading.state.finished is None:
            reading.activity = await self._progress.show(execution_id, reading.activity)
        if reading.program.plan.has_queues and has_queued(reading.state):
            reading.activity = await with_queued(self._store.tasks, execution_id, reading.activity)
        return reading

    async def read_all(self, tenant: str | None, ids: Sequence[str]) -> list[Reading]:
        here = {id for id in ids if self._held.find_held(id) is not None}
        readings: list[Reading] = []
        for id in here:
            with suppress(NotFound):
                readings.append(await self._read_as_decided(tenant, id))
        for loaded in await self._store.for_tenant(tenant).executions.load([id for id in ids if id not in here]):
            if loaded.bodies and tenant in (None, loaded.row.tenant):
                readings.append(await self._reading(loaded))
        for reading in readings:
            if has_queued(reading.state):
                reading.activity = await with_queued(self._store.tasks, reading.state.id, reading.activity)
        return readings

    async def _read_as_decided(self, tenant: str | None, execution_id: str, *, short: bool = False) -> Reading:
        record = self._held.find_held(execution_id)
        if record is not None and (tenant is None or record.state.tenant == tenant):
            reading = record.reading()
            is_brief = short and record.unread > 0 and record.state.finished is None
            if is_brief:
                reading = snapshots.detached(reading)
            if record.parked and not self._cache.runs(record.performer):  # decided here, and about to be handed over
                unclaimed = await self._unclaimed(record.performer, reading.state, "")
                reading.activity = replace(reading.activity, waiting=unclaimed.waiting)
            if record.unread and not is_brief:
                await self._restorer.read_all(record)
            if not record.uncommitted or await self._held.is_committed(execution_id):
                return reading
        known = self._finished.find(execution_id)
        if known is not None and tenant in (None, known.state.tenant):
            if await self._is_current(tenant, known):
                return known
            self._finished.drop(execution_id)
        found = await self._loaded(tenant, execution_id, short=short)
        if found is None or (tenant is not None and found.row.tenant != tenant) or not found.bodies:
            raise NotFound(f"There is no execution {execution_id!r}.")  # or it is being pruned at this moment
        if found.snapshot is None:
            reading = await self._reading(found)
            self._finished.add(reading)
            return reading
        brief = await self._short_reading(found)
        return await self._read_as_decided(tenant, execution_id) if brief is None else brief

    async def _is_current(self, tenant: str | None, known: Reading) -> bool:
        """Whether the last entry is still the last one, and the execution was not pruned."""
        bodies = await self._store.for_tenant(tenant).executions.bodies(known.state.id, known.length, LAST_SEQ)
        return len(bodies) == 1 and decode_entries(bodies[0])[-1].seq == known.length

    async def _loaded(self, tenant: str | None, execution_id: str, *, short: bool) -> Loaded | None:
        asked = self._asked_by.get((tenant, short))
        if asked is None:
            self._asked_by = {key: asked for key, asked in self._asked_by.items() if not asked.is_idle}
            load = partial(_load, self._store.for_tenant(tenant).executions, short)
            asked = self._asked_by[tenant, short] = BatchedReads(load, at_once=LOADED_AT_ONCE, lanes=LOADS)
        return await asked.find(execution_id)

    async def _short_reading(self, loaded: Loaded) -> Reading | None:
        """Reads by the snapshot. None if the execution is finished, or this release cannot read the snapshot."""
        row = loaded.row
        performer = await self._cache.stored_performer(row.definition, row.version)
        state = snapshots.state_of(performer.program.plan, loaded)
        if state is None or state.finished is not None:
            return None
        activity = await self._unclaimed(performer, state, row.parked) if row.owner is None else NOTHING_UNDER_WAY
        history = snapshots.first_of(loaded, state)
        return Reading(performer.program, state, history, idempotency_key=row.key, activity=activity)

    async def _reading(self, loaded: Loaded) -> Reading:
        performer = await self._cache.stored_performer(loaded.row.definition, loaded.row.version)
        state = Execution(performer.program.plan)
        entries = [entry for body in loaded.bodies for entry in decode_entries(body)]
        for entry in entries:
            evolve(state, entry)
        row = loaded.row
        activity = await self._unclaimed(performer, state, row.parked) if row.owner is None else NOTHING_UNDER_WAY
        return Reading(performer.program, state, entries, idempotency_key=row.key, activity=activity)

    async def as_started(self, record: Record) -> Reading:
        """The state that `start` recorded, as if no worker had claimed it yet."""
        activity = await self._unclaimed(record.performer, record.state, "")
        program, key = record.performer.program, record.idempotency_key
        return Reading(program, record.state, record.history, idempotency_key=key, activity=activity)

    async def _unclaimed(self, performer: Performer, state: Execution, parked: str) -> Activity:
        """The activity of an execution without an owner: it waits for a worker with its handlers, a limit or a slot."""
        waiting: dict[Ref, Waiting] = {}
        if parked:
            reason, _, what = parked.partition(": ")
            if what:
                why = Waiting("no_worker" if reason == "no_worker" else "incompatible", what)
                waiting = dict.fromkeys(work_of(state), why)
            return Activity(waiting=waiting) if waiting else Activity(set_aside=parked)
        work = list(work_of(state))
        if not work:
            return NOTHING_UNDER_WAY
        has_worker = self._cache.runs(performer) or await self._workers.can_run(performer.program)
        for ref in work:
            if (holder := holder_of(state, ref)) is not None:
                wait = self._why_unclaimed(state, performer.role(holder.node, ref.phase), has_worker)
                if wait is not None:
                    waiting[ref] = wait
        return Activity(waiting=waiting)

    def _why_unclaimed(self, state: Execution, role: Role, has_worker: bool) -> Waiting | None:
        if not has_worker:
            return Waiting("no_worker", role.handler_name or "")
        spent = self._worker.limits.spent(role.limits)
        if spent is not None:
            return Waiting("limit", spent)
        return Waiting("slot") if self._worker.now() - state.at > TAKEN_MS else None

    async def entries(self, tenant: str | None, execution_id: str, after: int, *, again: bool = False) -> list[Entry]:
        seen = self._store.for_tenant(tenant)
        # The entries of one decision are one row, and a reader that comes back may have stopped in the middle of one.
        if again:
            bodies = (await seen.executions.tails({execution_id: after})).get(execution_id, [])
        else:
            bodies = await seen.executions.bodies(execution_id, after + 1, LAST_SEQ)
        return [entry for body in bodies for entry in decode_entries(body) if entry.seq > after]

    async def events(self, tenant: str | None, execution_id: str, after: int, limit: int) -> list[Entry]:
        await self.row(tenant, execution_id)
        last = min(after + limit, LAST_SEQ)
        bodies = await self._store.for_tenant(tenant).executions.bodies(execution_id, min(after + 1, LAST_SEQ), last)
        return [entry for body in bodies for entry in decode_entries(body) if after < entry.seq <= last]

    async def tails(self, after: Mapping[str, int]) -> dict[str, list[Entry]]:
        """The entries of several executions after these numbers."""
        found = await self._store.executions.tails(after)
        return {
            id: [entry for body in bodies for entry in decode_entries(body) if entry.seq > after[id]]
            for id, bodies in found.items()
        }

    async def wait(self, tenant: str | None, execution_id: str, until: Until, timeout_ms: int | None) -> Reading:
        loop = asyncio.get_running_loop()
        deadline = None if timeout_ms is None else loop.time() + timeout_ms / 1_000
        while True:
            left = None if deadline is None else max(0, int((deadline - loop.time()) * 1_000))
            record = self._held.find_held(execution_id)
            if record is not None and (tenant is None or record.state.tenant == tenant):
                with suppress(Moved):
                    reading = await record.wait(until, left, self._worker.environment.clock)
                    if record.unread:
                        await self._restorer.read_all(record)
                    return reading
                continue
            reading = await self.read(tenant, execution_id)
            while not has_reached(reading.state, until):
                if self._held.find_held(execution_id) is not None:
                    break
                if self._watcher.is_closed:  # until then, handlers may wait for other executions, even during the drain
                    self._check_open()
                left = None if deadline is None else max(0, int((deadline - loop.time()) * 1_000))
                moved = await self._watcher.until_moved(execution_id, reading.state.status, left)
                if moved is None:
                    break
                reading = await self._reading(moved)
            else:
                return reading

    # -- Lists ---------------------------------------------------------------------------------------------------------

    async def summaries(self, wanted: Filter, cursor: str | None, limit: int) -> Page[Summary]:
        rows = await self._store.for_tenant(wanted.tenant).executions.page(
            stored_filter(wanted), id_at(cursor), limit + 1
        )
        more = rows[limit - 1].id if len(rows) > limit else None
        return Page([summary(row) for row in rows[:limit]], more)

    async def count(self, wanted: Filter, by: Literal["status", "definition"]) -> dict[str, int]:
        return await self._store.for_tenant(wanted.tenant).executions.count(stored_filter(wanted), by)

    async def statuses(self, tenant: str | None, ids: Sequence[str]) -> dict[str, ExecutionStatus]:
        return await self._store.for_tenant(tenant).executions.statuses(ids, tenant)  # type: ignore[return-value]  # the column holds nothing else

    async def review_rows(self, wanted: ReviewsWanted, cursor: str | None, limit: int) -> list[StoredReview]:
        return await self._store.for_tenant(wanted.tenant).reviews.page(wanted, id_at(cursor), limit)

    async def review_row(self, tenant: str | None, id: str) -> StoredReview | None:
        return await self._store.for_tenant(tenant).reviews.find(id)

    async def figures(self, tenant: str | None, soonest: int) -> Figures:
        """What the overview of a tenant is made from."""
        rows = await self._store.operations.overview(tenant)
        reviews = await self._store.reviews.soonest(tenant, soonest)
        return Figures(rows, reviews, [each.queues for each in await self._store.tasks.serving()])
