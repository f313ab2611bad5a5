"""The executions of the memory runtime.

All of it happens on one event loop. A fact is decided, recorded and takes effect without a suspension, so no reader
sees an execution halfway. Handlers report from their own tasks.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from tenuto.errors import ConcurrencyConflict, EngineClosed, InvalidTransition, NotFound, NotSupported
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref, lease_id
from tenuto.kernel.decide import Decision
from tenuto.kernel.definition import plain_name
from tenuto.kernel.effects import DispatchAttempt, RequestHold, RunAttempt
from tenuto.kernel.events import Entry
from tenuto.kernel.evolve import HOLD
from tenuto.kernel.state import Execution
from tenuto.runtime.executor import Job
from tenuto.runtime.executor.held_execution import Inbox, Record, Ticket
from tenuto.runtime.executor.observers import Observers
from tenuto.runtime.executor.program_registry import ProgramRegistry
from tenuto.runtime.executor.slots import RESUME
from tenuto.runtime.executor.timers import WakeTimer
from tenuto.runtime.executor.worker import Worker
from tenuto.runtime.shared.in_flight import InFlight
from tenuto.runtime.shared.job_rows import add_job_rows, with_cause
from tenuto.runtime.shared.outbox_relay import Relay
from tenuto.runtime.start_request import StartRequest, Submitted, key_conflict
from tenuto.storage.credits import not_enough
from tenuto.storage.memory.credits import MemoryBooks
from tenuto.storage.memory.outbox import MemoryOutbox
from tenuto.storage.memory.registry import MemoryRegistry
from tenuto.storage.memory.status_changes import MemoryStatusChanges
from tenuto.storage.port import Batch
from tenuto.storage.status_changes import StatusChange
from tenuto.views import Waiting, finished_at
from tenuto.views.jobs import callback_row, is_job
from tenuto.views.ledger import Reserve, bookings
from tenuto.views.messages import Announced
from tenuto.views.projections import audit

from .concurrency_keys import ConcurrencyKeys


class MemoryExecutions:
    """Starts executions and decides for them. It is their `Controller`."""

    def __init__(
        self,
        worker: Worker,
        registry: ProgramRegistry,
        observers: Observers,
        in_flight: InFlight,
        outbox: MemoryOutbox,
        announced: Announced | None,
        relay: Relay | None,
        inbox: Inbox,
        beside: Callable[[], MemoryRegistry],
    ) -> None:
        self._worker = worker
        self._registry = registry
        self._observers = observers
        self._in_flight = in_flight
        self._outbox = outbox
        self._announced = announced
        self._relay = relay
        self._now = worker.now
        self.limits = worker.limits
        self.inbox = inbox
        self.records: dict[str, Record] = {}
        self.in_order: list[Record] = []
        self.audited_in: MemoryRegistry | None = None
        self.status_changes = MemoryStatusChanges()
        self._beside = beside
        self._by_key: dict[tuple[str, str], tuple[str, str]] = {}
        self._keys = ConcurrencyKeys()
        self._books: MemoryBooks | None = None
        self._timer = WakeTimer(worker.environment, self.records, self._wake)

    def books(self) -> MemoryBooks:
        """The accounts, created on first use."""
        if self._books is None:
            self._books = MemoryBooks()
        return self._books

    def find(self, tenant: str | None, execution_id: str) -> Record:
        record = self.records.get(execution_id)
        if record is None or (tenant is not None and record.state.tenant != tenant):
            raise NotFound(f"There is no execution {execution_id!r}.")
        if record.flaw is not None:
            raise record.flaw
        return record

    def count_active(self, tenant: str) -> int:
        return sum(record.is_active and record.state.tenant == tenant for record in self.in_order)

    def jobs(self) -> list[Job]:
        """All handlers that run."""
        return [job for record in self.records.values() for job in (*record.jobs.values(), *record.zombies.values())]

    def stop_timer(self) -> None:
        self._timer.close()

    def close(self) -> None:
        self.stop_timer()
        for record in self.records.values():
            record.fail_waiters(EngineClosed("The engine was closed while the execution was under way."))

    # -- Starts and commands -------------------------------------------------------------------------------------------

    async def submit(self, request: StartRequest) -> Submitted:
        self._worker.check_open()
        if request.connection is not None:
            raise NotSupported("memory:// has no database, and so no transaction to start an execution in.")
        key, tenant = request.idempotency_key, request.tenant
        if key is not None and (seen := self._by_key.get((tenant, key))) is not None:
            if seen[1] != request.digest:
                raise key_conflict(request, seen[0])
            return Submitted(seen[0], created=False)
        program = request.program
        self._refuse_conflict(request)
        self._refuse_unpaid(request)
        self._in_flight.check(tenant)
        self._in_flight.enter(tenant)
        record = Record(self, self._registry.performer(program.name, program.version), key)
        admitted = self._keys.join(record, tenant, request.concurrency_key)
        id = request.execution_id or self._worker.environment.new_id()
        self.apply(record, request.fact(id, self._now(), admitted=admitted, owned=self._worker.works))
        self.records[id] = record
        self.in_order.append(record)
        if key is not None:
            self._by_key[tenant, key] = (id, request.digest)
        return Submitted(id, created=True)

    def _refuse_unpaid(self, request: StartRequest) -> None:
        if request.execution_id is None:
            return
        reserve = Reserve(execution=request.execution_id, tenant=request.tenant, amount=request.hold, starts=True)
        match self.books().refusal(reserve):
            case "insufficient_credits":
                raise not_enough(request.hold, self.books().available(request.tenant))
            case "not_created":
                raise InvalidTransition("The run was cancelled or deleted.", hint="create a new run")

    def _refuse_conflict(self, request: StartRequest) -> None:
        key, name = request.concurrency_key, request.program.name
        if request.on_conflict == "reject" and key is not None and self._keys.is_held(request.tenant, name, key):
            raise ConcurrencyConflict(f"Another execution of {plain_name(name)!r} holds the key {key!r}.")

    async def tell(self, tenant: str | None, execution_id: str, fact: f.Fact) -> f.Answer:
        self._worker.check_open()
        record = self.find(tenant, execution_id)
        fact = with_cause(fact, self._worker.environment.new_id)
        if isinstance(fact, f.Retry):
            return self._retry(record, fact)
        return self.apply(record, fact, RESUME if isinstance(fact, f.Resume | f.Decide) else None)

    def _retry(self, record: Record, fact: f.Retry) -> f.Answer:
        state = record.state
        if state.finished != "failed":
            return self.apply(record, fact, RESUME)
        if state.hold > (available := self.books().available(state.tenant) if state.hold else 0):
            raise not_enough(state.hold, available)
        self._in_flight.check(state.tenant)
        admitted = self._keys.join(record, state.tenant, state.concurrency_key)
        fact = msgspec.structs.replace(fact, admitted=admitted, owned=self._worker.works)
        self._activate(record)
        answer = self.apply(record, fact, RESUME)
        if isinstance(answer, f.Refused):
            self._finish(record)
        return answer

    def prune(self, before: int) -> int:
        """Removes executions that ended before that and have no open review. Returns their number."""
        ended = [record for record in self.in_order if _ended(record, before)]
        for record in ended:
            del self.records[record.state.id]
            if record.idempotency_key is not None:
                del self._by_key[record.state.tenant, record.idempotency_key]
        if ended:
            self.in_order = [record for record in self.in_order if record.state.id in self.records]
        return len(ended)

    # -- Decisions -----------------------------------------------------------------------------------------------------

    def apply(self, record: Record, fact: f.Fact, rank: int | None = None) -> f.Answer:
        """Decides a fact. The decision takes effect at once. `rank`: the class of its attempts in the queues."""
        state = record.state
        try:
            decision = record.decide(fact, self._now())
        except Exception as error:
            record.fail(error)
            raise
        self._note_job(record, fact, decision)
        if decision.entries:
            if state.status != record.kept_status:
                self._note_status(record)
            if self.audited_in is not None:
                for row in audit(state, decision.entries, record.history[0].actor):
                    self.audited_in.note_now(row)
            if self._announced is not None:
                self._announce(state, decision.entries)
            if state.hold or state.plan.run is not None:
                self.books().book(bookings(state, decision.entries), self._now())
            self._take_effect(record, decision.entries, rank)
        if record.parked and isinstance(fact, f.Cancel):
            self._return_parked(record)
        if state.timers or record.wake_at is not None:
            self._timer.schedule(record)
        if record.waiters and (state.finished is not None or state.reviews):
            record.answer_waiters()
        return decision.answer

    def _note_status(self, record: Record) -> None:
        state, started = record.state, record.payloads.started
        record.kept_status = state.status
        change = StatusChange(
            id=state.id,
            tenant=state.tenant,
            definition=started.definition,
            version=started.version,
            status=state.status,
            seq=state.seq,
            created_at=record.history[0].at,
            ended_at=finished_at(state, record.history),
            error_class="" if state.failure is None else state.failure.error_class,
        )
        self.status_changes.add(state.at, change)

    def _note_job(self, record: Record, fact: f.Fact, decision: Decision) -> None:
        callback = callback_row(record.state, fact, decision.answer)
        if callback is not None or (decision.entries and is_job(record.state)):
            batch = Batch(session=None)
            key = record.idempotency_key if isinstance(fact, f.Start) else None
            add_job_rows(batch, record.state, decision.entries, callback, key)
            self._beside().write_now(batch)

    def _take_effect(self, record: Record, entries: list[Entry], rank: int | None) -> None:
        state = record.state
        changed, state.changed = state.changed, []
        if self._observers.all:
            self._observers.decided(record, entries)
        if changed:
            self._worker.follow_agenda(record, changed, rank)
            if state.retries and HOLD in changed:
                self._worker.call_soon(partial(self._grant_hold, record, state.agenda[HOLD]))
        if record.is_active and state.finished is not None:
            self._finish(record)

    def _announce(self, state: Execution, entries: Sequence[Entry]) -> None:
        assert self._announced is not None
        rows = self._announced.rows(state, entries)
        if rows:
            self._outbox.add(rows)
            if self._relay is not None:
                self._relay.nudge()

    def _grant_hold(self, record: Record, effect: object) -> None:
        assert isinstance(effect, RequestHold)
        if effect.amount and self.books().available(record.state.tenant) < effect.amount:
            self.apply(record, f.HoldRefused(at=self._now()), RESUME)
            return
        admitted = self._keys.join(record, record.state.tenant, record.state.concurrency_key)
        self._activate(record)
        self.apply(record, f.HoldGranted(at=self._now(), amount=effect.amount, admitted=admitted), RESUME)

    def _activate(self, record: Record) -> None:
        """A finished execution begins another run."""
        if not record.is_active:
            record.is_active = True
            self._in_flight.enter(record.state.tenant)

    def _finish(self, record: Record) -> None:
        """Frees the tenant's place and the concurrency key."""
        if record.is_active:
            self._in_flight.leave(record.state.tenant)
        record.is_active = False
        following = self._keys.leave(record)
        if following is not None:
            key = following.state.concurrency_key
            assert key is not None
            self.apply(following, f.Admitted(at=self._now(), key=key))

    def _wake(self, record: Record, now: int) -> None:
        self.apply(record, f.Tick(at=now))

    # -- Attempts: as their controller ---------------------------------------------------------------------------------

    def begin(self, ticket: Ticket) -> None:
        self.apply(ticket.record, self._worker.begun(ticket.ref))
        self._worker.begin(ticket)

    def report(self, record: Record, ref: Ref, fact: f.Fact) -> None:
        self.apply(record, fact)

    def report_unsafe(self, record: Record, ref: Ref, fact: f.Reported) -> None:
        self.apply(record, fact)

    def cannot_run(self, record: Record, ref: Ref, why: Waiting) -> None:
        self._worker.park(record, ref, why)
        if record.state.cancel is not None:
            self._worker.run_errand(record, partial(self._return_parked, record))

    def _return_parked(self, record: Record) -> None:
        """Attempts that cannot run here have not begun: a cancel does not wait for them."""
        agenda = record.state.agenda
        refs = tuple(ref for ref in record.parked if ref.phase in ("forward", "plan") and ref in agenda)
        if refs:
            self.apply(record, f.Returned(at=self._now(), refs=refs))

    def handler_ended(self, record: Record, path: str, job: Job) -> None:
        """Executions stay in memory."""

    def slot_freed(self, record: Record) -> None:
        """Executions stay in memory."""

    def resume_parked(self) -> None:
        """Code was registered: parked attempts may be able to run."""
        for record in self._worker.take_parked():
            self._worker.resume(record, list(record.parked))

    # -- For tests -----------------------------------------------------------------------------------------------------

    def lose_worker(self, execution_id: str, running: Ref) -> None:
        """Behaves as if the process that ran this attempt had died, and another had taken over its execution."""
        record = self.records[execution_id]
        state = record.state
        if isinstance(state.agenda.get(running), DispatchAttempt):  # of a queue: only its lease expires
            self._lose_task(record, running)
            return
        local = list(_local_attempts(state))
        for ref in local:
            record.tickets.pop(ref, None)
            record.parked.pop(ref, None)
            job = record.jobs.pop(ref, None)
            if job is not None:
                job.stop()
        record.held.clear()
        record.epoch += 1
        self.apply(record, f.Taken(at=self._now(), epoch=record.epoch))
        # Attempts that had not begun are granted as they were: on the agenda, without a change.
        again = [ref for ref in local if ref in state.agenda and ref not in record.tickets and ref not in record.jobs]
        self._worker.resume(record, again)

    def _lose_task(self, record: Record, ref: Ref) -> None:
        job = record.jobs.pop(ref, None)
        if job is not None:
            job.stop()
        lease = lease_id(record.state.id, ref)
        self.apply(record, f.Reported(at=self._now(), ref=ref, outcome=f.TimedOut(), lease=lease))


def _local_attempts(state: Execution) -> Iterator[Ref]:
    return (key for key, effect in state.agenda.items() if isinstance(key, Ref) and type(effect) is RunAttempt)


def _ended(record: Record, before: int) -> bool:
    ended_at = finished_at(record.state, record.history)
    return ended_at is not None and ended_at < before and not record.state.reviews
