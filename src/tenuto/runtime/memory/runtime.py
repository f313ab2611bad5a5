"""Everything in one process, and nothing kept: for tests, for short-lived sagas, and as the measure of the others.

All of it happens on one event loop. A fact is decided, recorded and acted upon in one go, without a suspension, so an
execution is never seen halfway. Handlers report from their own tasks; what that starts is on its way before they end.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Literal

import msgspec

from tenuto.authoring.program import Program
from tenuto.errors import ConcurrencyConflict, IdempotencyConflict, NotFound, NotSupported
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref, lease_id
from tenuto.kernel.definition import names_in_filter, plain_name
from tenuto.kernel.effects import DispatchAttempt, RequestHold, RunAttempt
from tenuto.kernel.events import Entry
from tenuto.kernel.state import Execution, ExecutionStatus
from tenuto.runtime.clock import Environment
from tenuto.runtime.executor import Performer
from tenuto.runtime.executor.held_execution import Record
from tenuto.runtime.executor.limits import LocalLimits
from tenuto.runtime.executor.slots import RESUME
from tenuto.runtime.executor.worker import ASYNC_SLOTS, THREADS, Then, Worker, WorkerOptions
from tenuto.runtime.observer import Observer
from tenuto.runtime.publication import Published, check_startable, definition_row
from tenuto.runtime.shared.documents import Documents, Summary
from tenuto.runtime.shared.filters import Filter
from tenuto.runtime.shared.in_flight import InFlight
from tenuto.runtime.shared.outbox_relay import Relay
from tenuto.runtime.shared.pages import id_at, number_at
from tenuto.runtime.shared.retention import Pruned
from tenuto.runtime.start_request import StartRequest, Submitted
from tenuto.storage.catalog import Catalog, DefinitionStatus
from tenuto.storage.memory.outbox import MemoryOutbox
from tenuto.storage.memory.registry import MemoryRegistry
from tenuto.storage.notices import Notice, Notices
from tenuto.storage.operations import BacklogRow
from tenuto.storage.outbox import OutboxStore
from tenuto.storage.registry import Registry
from tenuto.storage.reviews import ReviewsWanted, StoredReview, fits
from tenuto.views import LimitRow, TenantLimitRow, Until, Waiting, WorkerRow, finished_at, has_reached, rfc3339
from tenuto.views.messages import Announced, Publish
from tenuto.views.pages import Page
from tenuto.views.projections import AuditRow, audit, reviews
from tenuto.views.projections import ReviewRow as StoredRow
from tenuto.views.reading import Reading


class MemoryRuntime(Worker):
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
        announced: Announced | None = None,
        publish: Publish | None = None,
    ) -> None:
        options = WorkerOptions(observers=observers, worker=worker, queues=queues, slots=slots, threads=threads)
        super().__init__(environment, options)
        self._in_order: list[Record] = []
        self._by_key: dict[tuple[str, str], tuple[str, str]] = {}
        self._lines: dict[tuple[str, str, str], deque[Record]] = {}
        self._made: set[tuple[str, str]] = set()
        self._notices = _Notices(environment)
        self._in_flight = InFlight()
        self._awaited: dict[Record, None] = {}
        self._registry: MemoryRegistry | None = None
        self._catalog: Catalog | None = None
        self._in_catalog: dict[tuple[str, int], DefinitionStatus] = {}
        self._opened_at = 0
        self._announced = announced
        self._outbox = MemoryOutbox()
        self._relay = None if publish is None else Relay(self._outbox, publish, self.now, lambda: "memory")

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

    def _make_limits(self) -> LocalLimits:
        self._named_limits = LocalLimits(self.environment.clock, self._pump)
        return self._named_limits

    @property
    def registry(self) -> Registry:
        return self._kept_beside()

    def _kept_beside(self) -> MemoryRegistry:
        """Made when it is first asked for; what happened before that nobody audited."""
        if self._registry is None:
            self._registry = MemoryRegistry()
        return self._registry

    # -- Life ----------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._opened_at = self.now()
        if self._relay is not None:
            self._relay.start()

    async def close(self, grace_ms: int) -> None:
        await self.stop_work(grace_ms)
        if self._relay is not None:
            await self._relay.stop(grace_ms / 1_000, drain=True)
        self.close_up()

    # -- Definitions ---------------------------------------------------------------------------------------------------

    @property
    def programs(self) -> list[Program]:
        return [performer.program for performer in self.registered.performers.values()]

    async def publish(self, program: Program, note: AuditRow | None = None) -> bool:
        self.provide(program)
        if self._catalog is not None:
            await self.keep_definitions()
        return False

    async def program(self, name: str, version: int | None) -> Program:
        performer = self.registered.performer(name, version)
        if self._in_catalog:
            performer = self._startable(performer, version)
        return performer.program

    def _startable(self, performer: Performer, version: int | None) -> Performer:
        """Once definitions have been given a status: the newest that is published, or the one that was asked for."""
        name = performer.program.name
        if version is None:
            known = [
                found
                for other, found in self.registered.performers
                if other == name and self._in_catalog.get((other, found), "published") == "published"
            ]
            performer = self.registered.performers[name, max(known)] if known else performer
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

    def knows(self, name: str) -> bool:
        return self.registered.knows(name)

    def note_definition(self, name: str, version: int, status: DefinitionStatus) -> None:
        self._in_catalog[name, version] = status

    async def definitions(self) -> list[Published]:
        plans = [program.plan for program in self.programs]
        return [Published(definition=p.definition, status="published", plan_hash=p.hash) for p in plans]

    # -- Starting ------------------------------------------------------------------------------------------------------

    def is_crowded(self, tenant: str, under_way: int = 0) -> bool:
        return False  # a refusal costs no more here than this question

    async def submit(self, request: StartRequest) -> Submitted:
        self.check_open()
        if request.connection is not None:
            raise NotSupported("memory:// has no database, and so no transaction to start an execution in.")
        key = request.idempotency_key
        if key is not None and (seen := self._by_key.get((request.tenant, key))) is not None:
            if seen[1] != request.digest:
                raise IdempotencyConflict(f"The idempotency key {key!r} was used before with another request.")
            return Submitted(seen[0], created=False)
        program = request.program
        self._refuse_conflict(request)
        self._in_flight.check(request.tenant)
        self._in_flight.enter(request.tenant)
        record = Record(self, self.registered.performer(program.name, program.version), key)
        admitted = self._join_line(record, request)
        id = self.environment.new_id()
        self.apply(record, request.fact(id, self.now(), admitted=admitted, owned=self.works))
        self.records[id] = record
        self._in_order.append(record)
        if key is not None:
            self._by_key[request.tenant, key] = (id, request.digest)
        return Submitted(id, created=True)

    # -- Facts ---------------------------------------------------------------------------------------------------------

    async def tell(self, tenant: str | None, execution_id: str, fact: f.Fact) -> f.Answer:
        self.check_open()
        record = self._find(tenant, execution_id)
        if isinstance(fact, f.Retry):
            return self._retry(record, fact)
        return self.apply(record, fact, RESUME if isinstance(fact, f.Resume | f.Decide) else None)

    def apply(self, record: Record, fact: f.Fact, rank: int | None = None, then: Then | None = None) -> f.Answer:
        """There is nothing to wait for between deciding and acting."""
        state = record.state
        decision = self.decide(record, fact)
        if decision.entries:
            if self._registry is not None:
                for row in audit(state, decision.entries, record.history[0].actor):
                    self._registry.note_now(row)
            if self._announced is not None:
                self._announce(state, decision.entries)
            changed, state.changed = state.changed, []
            self._act(record, decision.entries, changed, rank)
        if record.parked and isinstance(fact, f.Cancel):
            self._call_off_parked(record)
        if state.timers or record.wake_at is not None:
            self.alarms.set(record)
        if then is not None:
            then(decision.answer)
        if record.waiters and (state.finished is not None or state.reviews):
            self._tell_waiters(record)
        return decision.answer

    def _park(self, record: Record, ref: Ref, why: Waiting) -> None:
        super()._park(record, ref, why)
        if record.state.cancel is not None:
            self._soon(record, partial(self._call_off_parked, record))

    def _call_off_parked(self, record: Record) -> None:
        """What cannot run here was never begun: a cancel does not wait for it."""
        agenda = record.state.agenda
        refs = tuple(ref for ref in record.parked if ref.phase in ("forward", "plan") and ref in agenda)
        if refs:
            self.apply(record, f.Returned(at=self.now(), refs=refs))

    def _announce(self, state: Execution, entries: Sequence[Entry]) -> None:
        assert self._announced is not None
        rows = self._announced.rows(state, entries)
        if rows:
            self._outbox.add(rows)
            if self._relay is not None:
                self._relay.nudge()

    @property
    def outbox(self) -> OutboxStore:
        return self._outbox

    def _request_hold(self, record: Record, effect: RequestHold) -> None:
        self._later(partial(self._grant_hold, record, effect.amount))  # nobody keeps accounts here

    def _grant_hold(self, record: Record, amount: int) -> None:
        admitted = self._join_line(record, None)
        self._activate(record)
        self.apply(record, f.HoldGranted(at=self.now(), amount=amount, admitted=admitted), RESUME)

    @asynccontextmanager
    async def _inbox(self, key: tuple[str, str]) -> AsyncIterator[bool]:
        first = key not in self._made
        yield first
        self._made.add(key)

    async def prune(self, keep_ms: int) -> Pruned:
        before = self.now() - keep_ms
        ended = [record for record in self._in_order if _is_over(record, before)]
        for record in ended:
            del self.records[record.state.id]
            if record.idempotency_key is not None:
                del self._by_key[record.state.tenant, record.idempotency_key]
        if ended:
            self._in_order = [record for record in self._in_order if record.state.id in self.records]
        return Pruned(executions=len(ended))

    def inbox(self, consumer: str, id: str, connection: object) -> AbstractAsyncContextManager[bool]:
        """There is no transaction to be part of: the id counts as met when the block ends well."""
        return self._inbox((consumer, id))

    @property
    def notices(self) -> Notices:
        return self._notices

    async def check(self) -> None:
        """There is nothing that could be out of reach."""

    async def backlog(self) -> list[BacklogRow]:
        opened: dict[str, list[int]] = {}
        for record in self._in_order:
            for review in record.state.reviews.values():
                opened.setdefault(review.kind, []).append(review.opened_at)
        rows = [BacklogRow("reviews", kind, len(times), min(times)) for kind, times in opened.items()]
        return [*rows, BacklogRow("now", "", 0, self.now())]

    # -- One at a time per key -----------------------------------------------------------------------------------------

    def _refuse_conflict(self, request: StartRequest) -> None:
        key, name = request.concurrency_key, request.program.name
        if request.on_conflict == "reject" and key is not None and (request.tenant, name, key) in self._lines:
            raise ConcurrencyConflict(f"Another execution of {plain_name(name)!r} holds the key {key!r}.")

    def _join_line(self, record: Record, request: StartRequest | None) -> bool:
        """Whether it is its turn at once. `request` is None for another run of what was started before."""
        if request is not None:
            key, tenant, name = request.concurrency_key, request.tenant, request.program.name
        else:
            key, tenant, name = record.state.concurrency_key, record.state.tenant, record.performer.program.name
        if key is None:
            return True
        line = self._lines.get((tenant, name, key))
        if line is None:
            self._lines[tenant, name, key] = deque((record,))
            return True
        line.append(record)
        return False

    def _retry(self, record: Record, fact: f.Retry) -> f.Answer:
        if record.state.finished != "failed":
            return self.apply(record, fact, RESUME)
        self._in_flight.check(record.state.tenant)
        fact = msgspec.structs.replace(fact, admitted=self._join_line(record, None), owned=self.works)
        self._activate(record)
        answer = self.apply(record, fact, RESUME)
        if isinstance(answer, f.Refused):
            self._finished(record)
        return answer

    def _activate(self, record: Record) -> None:
        """Another run of what was over."""
        if not record.is_active:
            record.is_active = True
            self._in_flight.enter(record.state.tenant)

    def _finished(self, record: Record) -> None:
        """Whoever waits for its key is next."""
        state = record.state
        if record.is_active:
            self._in_flight.leave(state.tenant)
        super()._finished(record)
        if state.concurrency_key is None:
            return
        at = (state.tenant, record.performer.program.name, state.concurrency_key)
        line = self._lines.get(at)
        if line is None or record not in line:
            return
        had_turn = line[0] is record
        line.remove(record)
        if not line:
            del self._lines[at]
        elif had_turn:
            self.apply(line[0], f.Admitted(at=self.now(), key=state.concurrency_key))

    # -- Reading -------------------------------------------------------------------------------------------------------

    def _find(self, tenant: str | None, execution_id: str) -> Record:
        record = self.records.get(execution_id)
        if record is None or (tenant is not None and record.state.tenant != tenant):
            raise NotFound(f"There is no execution {execution_id!r}.")
        if record.flaw is not None:
            raise record.flaw
        return record

    async def read(self, tenant: str | None, execution_id: str) -> Reading:
        return self._find(tenant, execution_id).reading()

    async def look(self, tenant: str | None, execution_id: str) -> Reading:
        return await self.read(tenant, execution_id)

    async def read_all(self, tenant: str | None, ids: Sequence[str]) -> list[Reading]:
        return [self._find(tenant, id).reading() for id in ids]

    async def entries(self, tenant: str | None, execution_id: str, after: int, *, again: bool = False) -> list[Entry]:
        return self._find(tenant, execution_id).history[after:]

    async def wait(self, tenant: str | None, execution_id: str, until: Until, timeout_ms: int | None) -> Reading:
        record = self._find(tenant, execution_id)
        if has_reached(record.state, until):
            return record.reading()
        self.check_open()
        if self.on_idle is not None:
            self._awaited[record] = None
        return await self.wait_for(record, until, timeout_ms)

    async def executions(self, wanted: Filter, cursor: str | None, limit: int) -> Page[Summary]:
        last = len(self._in_order) - 1
        if wanted.newest_first:
            positions = range(min(number_at(cursor), last) if cursor else last, -1, -1)
        else:
            positions = range(number_at(cursor) if cursor else 0, last + 1)
        found: list[Summary] = []
        for position in positions:
            record = self._in_order[position]
            if _fits(record, wanted):
                if len(found) == limit:
                    return Page(found, str(position))
                found.append(_summary(record))
        return Page(found)

    async def count(self, wanted: Filter, by: Literal["status", "definition"]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for record in self._in_order:
            if _fits(record, wanted):
                group = record.state.status if by == "status" else record.performer.program.name
                counts[group] = counts.get(group, 0) + 1
        return counts

    async def review_rows(self, wanted: ReviewsWanted, cursor: str | None, limit: int) -> list[StoredReview]:
        cursor = id_at(cursor)
        rows = [row for record in self._in_order for row in _stored_reviews(record) if fits(row, wanted)]
        return sorted((row for row in rows if cursor is None or row.id > cursor), key=lambda row: row.id)[:limit]

    async def review_row(self, tenant: str | None, id: str) -> StoredReview | None:
        with suppress(NotFound):
            for row in _stored_reviews(self._find(tenant, id.rpartition(".")[0])):
                if row.id == id:
                    return row
        return None

    async def workers(self) -> list[WorkerRow]:
        """This process, which is all there is."""
        if not self.works:
            return []
        at_work = sum(record.state.finished is None for record in self._in_order)
        return [
            {
                "id": self.environment.worker,
                "worker": self.environment.worker,
                "build": self.environment.build,
                "queues": sorted(self.queues),
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
        self._named_limits.set(name, rate, concurrency)
        if note is not None and acts:
            self._kept_beside().note_now(note)
        self._pump()

    async def limits(self) -> list[LimitRow]:
        return self._named_limits.rows(self._wanted())

    async def tenant_limit(self, tenant: str, max_in_flight: int | None, note: AuditRow | None = None) -> None:
        active = sum(record.is_active and record.state.tenant == tenant for record in self._in_order)
        acts = max_in_flight is not None or bool(self._in_flight.rows(tenant))
        self._in_flight.limit(tenant, max_in_flight, active)
        if note is not None and acts:
            self._kept_beside().note_now(note)

    async def tenant_limits(self, tenant: str | None) -> list[TenantLimitRow]:
        return self._in_flight.rows(tenant)

    async def room(self, tenant: str) -> int | None:
        self.check_open()
        if self.on_idle is not None:
            self._later(self.on_idle)
        return await self._in_flight.room(tenant)

    async def statuses(self, tenant: str | None, ids: Sequence[str]) -> dict[str, ExecutionStatus]:
        states = (self.records[id].state for id in ids if id in self.records)
        return {state.id: state.status for state in states if tenant in (None, state.tenant)}

    # -- For tests -----------------------------------------------------------------------------------------------------

    async def quiet(self, patience_ms: int) -> None:
        """Waits until no handler runs, at most so long in real time."""
        await self._wait_for_quiet(patience_ms)

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for an execution that has not come so far, or for room to start another."""
        self._awaited = {record: None for record in self._awaited if any(not w.done() for _, w in record.waiters)}
        return bool(self._awaited) or self._in_flight.is_awaited

    def lose_worker(self, execution_id: str, running: Ref) -> None:
        """As if the process that ran this attempt had died, and another had taken its execution over."""
        record = self.records[execution_id]
        state = record.state
        if isinstance(state.agenda.get(running), DispatchAttempt):  # of a queue: its lease runs out, and that is all
            self._lose_task(record, running)
            return
        local = [key for key, effect in state.agenda.items() if isinstance(key, Ref) and type(effect) is RunAttempt]
        for ref in local:
            record.tickets.pop(ref, None)
            record.parked.pop(ref, None)
            job = record.jobs.pop(ref, None)
            if job is not None:
                job.stop()
        record.held.clear()
        record.epoch += 1
        self.apply(record, f.Taken(at=self.now(), epoch=record.epoch))
        # What had not begun is granted as it was, and so is on the agenda without having changed.
        again = [ref for ref in local if ref in state.agenda and ref not in record.tickets and ref not in record.jobs]
        self._take_up_again(record, again)

    def _lose_task(self, record: Record, ref: Ref) -> None:
        job = record.jobs.pop(ref, None)
        if job is not None:
            job.stop()
        lease = lease_id(record.state.id, ref)
        self.apply(record, f.Reported(at=self.now(), ref=ref, outcome=f.TimedOut(), lease=lease))


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


def _is_over(record: Record, before: int) -> bool:
    """Whether it ended before that, and waits for nobody."""
    ended_at = finished_at(record.state, record.history)
    return ended_at is not None and ended_at < before and not record.state.reviews


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
