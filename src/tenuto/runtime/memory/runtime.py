"""Wires the parts of the memory runtime, and reads what they hold.

Nothing is stored: this runtime is for tests and short-lived sagas, and the reference for the behaviour of others.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Literal

import msgspec

from tenuto.authoring.program import Program
from tenuto.errors import NotFound
from tenuto.kernel.definition import names_in_filter
from tenuto.kernel.events import Entry
from tenuto.kernel.state import ExecutionStatus
from tenuto.runtime.clock import Environment
from tenuto.runtime.executor import Performer
from tenuto.runtime.executor.held_execution import Record
from tenuto.runtime.executor.limits import LocalLimits
from tenuto.runtime.executor.observers import Observers
from tenuto.runtime.executor.program_registry import ProgramRegistry
from tenuto.runtime.executor.worker import ASYNC_SLOTS, THREADS, Interpose, Worker, WorkerOptions
from tenuto.runtime.observer import Observer
from tenuto.runtime.publication import Published, check_startable, definition_row
from tenuto.runtime.shared.documents import Documents, Summary
from tenuto.runtime.shared.filters import Filter
from tenuto.runtime.shared.in_flight import InFlight
from tenuto.runtime.shared.outbox_relay import Relay
from tenuto.runtime.shared.pages import id_at, number_at
from tenuto.runtime.shared.retention import Pruned
from tenuto.runtime.vitals import Vitals
from tenuto.storage.catalog import Catalog, DefinitionStatus
from tenuto.storage.memory.outbox import MemoryOutbox
from tenuto.storage.memory.registry import MemoryRegistry
from tenuto.storage.notices import Notice, Notices
from tenuto.storage.operations import BacklogRow
from tenuto.storage.outbox import OutboxStore
from tenuto.storage.registry import Registry
from tenuto.storage.reviews import ReviewsWanted, StoredReview, fits
from tenuto.views import LimitRow, TenantLimitRow, Until, WorkerRow, finished_at, has_reached, rfc3339
from tenuto.views.messages import Announced, Publish
from tenuto.views.pages import Page
from tenuto.views.projections import AuditRow, reviews
from tenuto.views.projections import ReviewRow as StoredRow
from tenuto.views.reading import Reading

from .executions import MemoryExecutions


class MemoryRuntime:
    """The runtime behind `memory://`."""

    def __init__(
        self,
        environment: Environment,
        *,
        observers: Sequence[Observer] = (),
        worker: bool = True,
        queues: Sequence[str] = ("default",),
        slots: int = ASYNC_SLOTS,
        threads: int = THREADS,
        logs_failures: bool = False,
        announced: Announced | None = None,
        publish: Publish | None = None,
    ) -> None:
        options = WorkerOptions(
            observers=observers,
            worker=worker,
            queues=queues,
            slots=slots,
            threads=threads,
            logs_failures=logs_failures,
        )
        self.environment = environment
        self.now = environment.now_ms
        self._limits = LocalLimits(environment.clock)
        self._observers = Observers(observers)
        self._programs = ProgramRegistry(prepares=worker)
        self._worker = Worker(environment, options, self._limits, self._observers)
        self._received: set[tuple[str, str]] = set()
        self._notices = _Notices(environment)
        self._in_flight = InFlight()
        self._awaited: dict[Record, None] = {}
        self._registry: MemoryRegistry | None = None
        self._catalog: Catalog | None = None
        self._in_catalog: dict[tuple[str, int], DefinitionStatus] = {}
        self._opened_at = 0
        self._outbox = MemoryOutbox()
        self._relay = None if publish is None else Relay(self._outbox, publish, self.now, lambda: "memory")
        self._executions = MemoryExecutions(
            self._worker,
            self._programs,
            self._observers,
            self._in_flight,
            self._outbox,
            announced,
            self._relay,
            self.inbox,
        )
        self._programs.on_replaced.append(self._executions.resume_parked)

        self.provide = self._programs.provide
        self.provided = self._programs.provided
        self.provide_handler = self._programs.provide_handler
        self.knows = self._programs.knows
        self.submit = self._executions.submit
        self.tell = self._executions.tell
        self.lose_worker = self._executions.lose_worker
        documents = Documents(self, lambda _: self.registry, self.now)
        self.act = documents.act
        self.answer_letter = documents.answer_letter
        self.reprocess = documents.reprocess
        self.document = documents.document
        self.follow = documents.follow
        self.summaries = documents.summaries
        self.reviews = documents.reviews
        self.dead_letters = documents.dead_letters
        self.review_page = documents.review_page
        self.review = documents.review
        self.note = documents.note
        self.audit = documents.audit
        self.audit_chain = documents.audit_chain
        self.verify_audit = documents.verify_audit

    def check_scope(self, tenant: str) -> None:
        """Any tenant: the process that embeds the engine is trusted."""

    @property
    def observers(self) -> tuple[Observer, ...]:
        return self._observers.all

    @property
    def interpose(self) -> Interpose | None:
        """Wraps each handler."""
        return self._worker.interpose

    @interpose.setter
    def interpose(self, interpose: Interpose | None) -> None:
        self._worker.interpose = interpose

    @property
    def registry(self) -> Registry:
        return self._kept_beside()

    def _kept_beside(self) -> MemoryRegistry:
        """Made when it is first asked for. What happened before is not audited."""
        if self._registry is None:
            self._registry = self._executions.audited_in = MemoryRegistry()
        return self._registry

    # -- Life ----------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self._worker.loop = asyncio.get_running_loop()
        self._opened_at = self.now()
        if self._relay is not None:
            self._relay.start()

    async def close(self, grace_ms: int) -> None:
        worker, executions = self._worker, self._executions
        await worker.drain(grace_ms, executions.jobs)  # timers continue: running handlers may wait for one
        executions.stop_timer()
        await worker.stop(executions.jobs())
        if self._relay is not None:
            await self._relay.stop(grace_ms / 1_000, drain=True)
        worker.close()
        executions.close()

    def vitals(self) -> Vitals:
        worker = self._worker
        return Vitals(is_open=worker.is_open, held=len(self._executions.records), lanes=worker.lane_loads())

    # -- Definitions ---------------------------------------------------------------------------------------------------

    @property
    def programs(self) -> list[Program]:
        return [performer.program for performer in self._programs.performers.values()]

    async def publish(self, program: Program, note: AuditRow | None = None) -> bool:
        self.provide(program)
        if self._catalog is not None:
            await self.keep_definitions()
        return False

    async def program(self, name: str, version: int | None) -> Program:
        performer = self._programs.performer(name, version)
        if self._in_catalog:
            performer = self._startable(performer, version)
        return performer.program

    def _startable(self, performer: Performer, version: int | None) -> Performer:
        """Once definitions have been given a status: the newest that is published, or the one that was asked for."""
        name = performer.program.name
        if version is None:
            known = [
                found
                for other, found in self._programs.performers
                if other == name and self._in_catalog.get((other, found), "published") == "published"
            ]
            performer = self._programs.performers[name, max(known)] if known else performer
        at = (name, performer.program.version)
        check_startable(*at, self._in_catalog.get(at, "published"))
        return performer

    @property
    def catalog(self) -> Catalog:
        if self._catalog is None:
            self._catalog = self._kept_beside().catalog
        return self._catalog

    async def keep_definitions(self) -> None:
        catalog = self.catalog
        for program in self.programs:
            row = definition_row(program, self.now())
            if not await catalog.add(row) and await catalog.replace(row):
                await catalog.move(row.name, row.version, "draft", "published", row.created_at)

    def note_definition(self, name: str, version: int, status: DefinitionStatus) -> None:
        self._in_catalog[name, version] = status

    async def definitions(self) -> list[Published]:
        plans = [program.plan for program in self.programs]
        return [Published(definition=p.definition, status="published", plan_hash=p.hash) for p in plans]

    # -- Starting ------------------------------------------------------------------------------------------------------

    def is_crowded(self, tenant: str, under_way: int = 0) -> bool:
        return False  # a refusal costs no more here than this question

    @property
    def outbox(self) -> OutboxStore:
        return self._outbox

    @asynccontextmanager
    async def _inbox(self, key: tuple[str, str]) -> AsyncIterator[bool]:
        first = key not in self._received
        yield first
        self._received.add(key)

    async def prune(self, keep_ms: int) -> Pruned:
        return Pruned(executions=self._executions.prune(self.now() - keep_ms))

    def inbox(self, consumer: str, id: str, connection: object) -> AbstractAsyncContextManager[bool]:
        """There is no transaction to be part of: the id counts as received when the block succeeds."""
        return self._inbox((consumer, id))

    @property
    def notices(self) -> Notices:
        return self._notices

    async def check(self) -> None:
        """There is no database that could be unreachable."""

    async def backlog(self) -> list[BacklogRow]:
        opened: dict[str, list[int]] = {}
        for record in self._executions.in_order:
            for review in record.state.reviews.values():
                opened.setdefault(review.kind, []).append(review.opened_at)
        rows = [BacklogRow("reviews", kind, len(times), min(times)) for kind, times in opened.items()]
        return [*rows, BacklogRow("now", "", 0, self.now())]

    # -- Reading -------------------------------------------------------------------------------------------------------

    async def read(self, tenant: str | None, execution_id: str) -> Reading:
        return self._executions.find(tenant, execution_id).reading()

    async def look(self, tenant: str | None, execution_id: str) -> Reading:
        return await self.read(tenant, execution_id)

    async def read_all(self, tenant: str | None, ids: Sequence[str]) -> list[Reading]:
        return [self._executions.find(tenant, id).reading() for id in ids]

    async def entries(self, tenant: str | None, execution_id: str, after: int, *, again: bool = False) -> list[Entry]:
        return self._executions.find(tenant, execution_id).history[after:]

    async def wait(self, tenant: str | None, execution_id: str, until: Until, timeout_ms: int | None) -> Reading:
        record = self._executions.find(tenant, execution_id)
        if has_reached(record.state, until):
            return record.reading()
        self._worker.check_open()
        if self._worker.on_idle is not None:
            self._awaited[record] = None
            self._worker.call_soon(self._worker.on_idle)
        return await record.wait(until, timeout_ms, self.environment.clock)

    async def executions(self, wanted: Filter, cursor: str | None, limit: int) -> Page[Summary]:
        last = len(self._executions.in_order) - 1
        if wanted.newest_first:
            positions = range(min(number_at(cursor), last) if cursor else last, -1, -1)
        else:
            positions = range(number_at(cursor) if cursor else 0, last + 1)
        found: list[Summary] = []
        for position in positions:
            record = self._executions.in_order[position]
            if _fits(record, wanted):
                if len(found) == limit:
                    return Page(found, str(position))
                found.append(_summary(record))
        return Page(found)

    async def count(self, wanted: Filter, by: Literal["status", "definition"]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for record in self._executions.in_order:
            if _fits(record, wanted):
                group = record.state.status if by == "status" else record.performer.program.name
                counts[group] = counts.get(group, 0) + 1
        return counts

    async def review_rows(self, wanted: ReviewsWanted, cursor: str | None, limit: int) -> list[StoredReview]:
        cursor = id_at(cursor)
        rows = [row for record in self._executions.in_order for row in _stored_reviews(record) if fits(row, wanted)]
        return sorted((row for row in rows if cursor is None or row.id > cursor), key=lambda row: row.id)[:limit]

    async def review_row(self, tenant: str | None, id: str) -> StoredReview | None:
        with suppress(NotFound):
            for row in _stored_reviews(self._executions.find(tenant, id.rpartition(".")[0])):
                if row.id == id:
                    return row
        return None

    async def workers(self) -> list[WorkerRow]:
        """This process is the only worker."""
        if not self._worker.works:
            return []
        at_work = sum(record.state.finished is None for record in self._executions.in_order)
        return [
            {
                "id": self.environment.worker,
                "worker": self.environment.worker,
                "build": self.environment.build,
                "queues": sorted(self._worker.queues),
                "started_at": rfc3339(self._opened_at),
                "expires_at": None,
                "executions": at_work,
            }
        ]

    async def limit(
        self, name: str, *, rate: tuple[int, int] | None, concurrency: int | None, note: AuditRow | None = None
    ) -> None:
        is_lifted = rate is None and concurrency is None
        acts = not is_lifted or any(row["name"] == name for row in await self.limits())
        self._limits.set(name, rate, concurrency)
        if note is not None and acts:
            self._kept_beside().note_now(note)

    async def limits(self) -> list[LimitRow]:
        return self._limits.rows()

    async def tenant_limit(self, tenant: str, max_in_flight: int | None, note: AuditRow | None = None) -> None:
        active = sum(record.is_active and record.state.tenant == tenant for record in self._executions.in_order)
        acts = max_in_flight is not None or bool(self._in_flight.rows(tenant))
        self._in_flight.limit(tenant, max_in_flight, active)
        if note is not None and acts:
            self._kept_beside().note_now(note)

    async def tenant_limits(self, tenant: str | None) -> list[TenantLimitRow]:
        return self._in_flight.rows(tenant)

    async def room(self, tenant: str) -> int | None:
        self._worker.check_open()
        if self._worker.on_idle is not None:
            self._worker.call_soon(self._worker.on_idle)
        return await self._in_flight.room(tenant)

    async def statuses(self, tenant: str | None, ids: Sequence[str]) -> dict[str, ExecutionStatus]:
        records = self._executions.records
        states = (records[id].state for id in ids if id in records)
        return {state.id: state.status for state in states if tenant in (None, state.tenant)}

    # -- For tests -----------------------------------------------------------------------------------------------------

    async def quiet(self, patience_ms: int) -> None:
        """Waits until no handler runs, at most as long as given, in real time."""
        await self._worker.wait_until_quiet(patience_ms)

    @property
    def running(self) -> int:
        """How many handlers run."""
        return self._worker.running

    @property
    def on_idle(self) -> Callable[[], None] | None:
        """Called when no handler runs and a caller waits."""
        return self._worker.on_idle

    @on_idle.setter
    def on_idle(self, call: Callable[[], None] | None) -> None:
        self._worker.on_idle = call

    @property
    def is_awaited(self) -> bool:
        """Whether a caller waits for an execution, or for room to start another."""
        self._awaited = {record: None for record in self._awaited if any(not w.done() for _, w in record.waiters)}
        return bool(self._awaited) or self._in_flight.is_awaited


class _Notices:
    """Implements `Notices`."""

    def __init__(self, environment: Environment) -> None:
        self.now = environment.now_ms
        self._kept: dict[str, Notice] = {}

    async def begin_notice(self, notice: Notice) -> Notice:
        return self._kept.setdefault(notice.key, msgspec.structs.replace(notice, begun_at=self.now()))

    async def end_notice(self, key: str, receipt: bytes) -> None:
        if (kept := self._kept[key]).receipt is None:
            self._kept[key] = msgspec.structs.replace(kept, sent_at=self.now(), receipt=receipt)

    async def notice(self, key: str) -> Notice | None:
        return self._kept.get(key)


def _stored_reviews(record: Record) -> list[StoredReview]:
    """As a database would have them."""
    found: dict[str, StoredReview] = {}
    for row in reviews(record.state, record.history):
        if isinstance(row, StoredRow):
            found[row.id] = StoredReview(**msgspec.structs.asdict(row))
        else:
            closed = {"resolution": row.resolution, "resolved_by": row.actor, "resolved_at": row.closed_at}
            found[row.id] = msgspec.structs.replace(found[row.id], **closed)
    return list(found.values())


def _fits(record: Record, wanted: Filter) -> bool:
    state = record.state
    started = record.payloads.started
    target = started.target[1] if started.target is not None else None
    return (
        wanted.tenant in (None, state.tenant)
        and wanted.status in (None, state.status)
        and (wanted.definition is None or started.definition in names_in_filter(wanted.definition, wanted.tenant))
        and wanted.correlation_id in (None, state.correlation_id)
        and wanted.target_id in (None, target)
        and (wanted.since_ms is None or record.history[0].at >= wanted.since_ms)
        and (wanted.before_ms is None or record.history[0].at < wanted.before_ms)
        and not (wanted.active and state.finished is not None)
        and wanted.version in (None, started.version)
        and (
            wanted.error_class is None
            or (state.failure is not None and state.failure.error_class == wanted.error_class)
        )
        and (wanted.q is None or _is_found_by(record, wanted.q))
    )


def _is_found_by(record: Record, text: str) -> bool:
    state, target = record.state, record.payloads.started.target
    return (
        state.id.startswith(text)
        or text in (record.idempotency_key, state.correlation_id)
        or (target is not None and target[1] == text)
    )


def _summary(record: Record) -> Summary:
    state, started = record.state, record.payloads.started
    return Summary(
        execution_id=state.id,
        tenant=state.tenant,
        definition=started.definition,
        version=started.version,
        status=state.status,
        correlation_id=state.correlation_id,
        target=started.target,
        started_at=record.history[0].at,
        ended_at=finished_at(state, record.history),
        error_class="" if state.failure is None else state.failure.error_class,
    )
