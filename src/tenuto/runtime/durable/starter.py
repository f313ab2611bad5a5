"""Starts executions, and raises the errors of refused starts."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from tenuto.errors import (
    ConcurrencyConflict,
    InvalidTransition,
    StorageError,
    TenutoError,
)
from tenuto.kernel import facts as f
from tenuto.kernel.codec import encode_entries
from tenuto.kernel.decide import decide
from tenuto.kernel.definition import plain_name
from tenuto.kernel.state import Execution
from tenuto.runtime.executor.held_execution import Record
from tenuto.runtime.executor.observers import Observers
from tenuto.runtime.executor.program_registry import ProgramRegistry
from tenuto.runtime.executor.worker import Worker
from tenuto.runtime.shared.in_flight import tenant_is_full
from tenuto.runtime.start_request import StartRequest, Submitted, key_conflict
from tenuto.storage.caller_connections import Caller, caller_of, check_database
from tenuto.storage.caller_transactions import find_existing, start_within
from tenuto.storage.credits import not_enough
from tenuto.storage.port import EVERYTHING, Append, Batch, NewExecution, Store
from tenuto.views.projections import PRIORITIES, standing

from .batched_reads import BatchedReads
from .claimer import MAX_HELD, Claimer
from .committer import Fate
from .decision_writer import DecisionWrite, DecisionWriter
from .definition_cache import DefinitionCache
from .held_executions import HeldExecutions, not_committed
from .reader import Reader
from .session import CurrentSession
from .tenant_admission import TenantAdmission
from .wakeups import Wakeups

# The start of an execution that this process does not run only answers the submitter. Over HTTP that is a response to
# write, and hundreds of them at once would delay requests that are only refused.
UNOWNED_WEIGHT = 10
NUDGE_SECONDS = (0.005, 0.05)  # most callers commit soon after they have started something


class StartWrite(DecisionWrite, gc=False):
    starter: "Starter"
    fate: asyncio.Future[Fate]

    def settle(self, fate: Fate) -> None:
        self.starter.settle(self, fate)


class Starter:
    """Starts executions: held by this process, if it can run them and has room, or else for the next claim."""

    def __init__(
        self,
        store: Store,
        current: CurrentSession,
        wakeups: Wakeups,
        admission: TenantAdmission,
        worker: Worker,
        registry: ProgramRegistry,
        cache: DefinitionCache,
        held: HeldExecutions,
        writer: DecisionWriter,
        observers: Observers,
        claimer: Claimer,
        reader: Reader,
        check_open: Callable[[], None],
        until_reopened: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._current = current
        self._wakeups = wakeups
        self._admission = admission
        self._worker = worker
        self._registry = registry
        self._cache = cache
        self._held = held
        self._writer = writer
        self._observers = observers
        self._claimer = claimer
        self._reader = reader
        self._check_open = check_open
        self._until_reopened = until_reopened
        self._seen_keys = BatchedReads(store.executions.find_by_keys)

    async def submit(self, request: StartRequest) -> Submitted:
        self._check_open()
        if request.connection is not None:
            return await self._submit_within(caller_of(request.connection), request)
        # Before admission: a start that is admitted is written at once.
        await self._cache.ensure_stored(request.program)
        admission, tenant = self._admission, request.tenant
        if admission.must_read_capacity(tenant):
            await admission.read_capacity(tenant)
        if not admission.must_wait(tenant):
            return await self._submit_at_once(request)
        try:
            while admission.must_wait(tenant):
                was_called = await admission.wait(tenant)
                self._check_open()
                if not was_called:
                    return await self._turned_away(request)
            return await self._submit_at_once(request)
        finally:
            admission.pass_on(tenant)

    async def _submit_at_once(self, request: StartRequest) -> Submitted:
        if self._admission.refuse(request.tenant):
            return await self._turned_away(request)
        return await self._start_submitted(request)

    async def _turned_away(self, request: StartRequest) -> Submitted:
        """Answers a known idempotency key even if the tenant is at its limit."""
        tenant, key = request.tenant, request.idempotency_key
        seen = None if key is None else await self._seen_keys.find((tenant, key))
        if seen is None:
            raise tenant_is_full(tenant)
        return replayed(request, *seen)

    async def _start_submitted(self, request: StartRequest) -> Submitted:
        program = request.program
        performer = self._registry.performer(program.name, program.version)
        while True:
            owned = (
                self._cache.runs(performer)
                and len(self._held.records) < MAX_HELD
                and performer not in self._claimer.limited
            )
            record = Record(self._held, performer, request.idempotency_key)
            id = request.execution_id or self._worker.environment.new_id()
            fate = await self._start_record(record, id, request, owned=owned)
            if fate == "committed":
                self._admission.accepted(request.tenant)
                return Submitted(
                    id, created=True, as_started=None if owned else partial(self._reader.as_started, record)
                )
            if fate not in ("fenced", "not_owner"):
                return await self._not_started(request, fate)
            await self._until_reopened()  # the session was lost, and another one is opened
            self._check_open()

    async def _start_record(self, record: Record, id: str, request: StartRequest, *, owned: bool) -> Fate:
        settled: asyncio.Future[Fate] = asyncio.get_running_loop().create_future()
        fact = request.fact(id, self._worker.now(), admitted=request.concurrency_key is None, owned=owned)
        record.epoch = 1 if owned else 0  # without an owner, no attempt can be lost
        start = new_execution(request, fact, self._current.session.id if owned else None)
        decision = record.decide(fact, fact.at)
        changed, record.state.changed = record.state.changed, []
        if owned:
            self._held.records[id] = record
            record.uncommitted += 1
            self._held.timer.schedule(record)
        write = StartWrite(
            self._held,
            record,
            decision.entries,
            changed,
            None,
            decision.answer,
            None,
            self,
            settled,
            execution=id,
            start=start,
            weight=1 if owned else UNOWNED_WEIGHT,
        )
        try:
            self._writer.write(write, release=not owned)
        except Exception:  # it cannot be written, so it was not started
            self._held.lose(record)
            raise
        self._admission.enter(request.tenant)
        committer = self._current.committer
        try:
            fate = await settled
        except asyncio.CancelledError:
            committer.withdraw(write)
            raise
        if request.concurrency_key is not None:
            self._wakeups.notify_all(EVERYTHING)
        if not owned:
            self._held.announce_work()
        return fate

    def settle(self, write: StartWrite, fate: Fate) -> None:
        start = write.start
        assert start is not None
        self._admission.leave(start.tenant)
        try:
            if start.owner is not None:
                self._held.settle(write, fate)
            elif fate == "committed" and self._observers.all:
                self._observers.decided(write.record, write.entries)
        finally:  # even if something that follows fails, it is started
            if not write.fate.done():
                write.fate.set_result(fate)

    async def _not_started(self, request: StartRequest, fate: Fate) -> Submitted:
        if fate == "duplicate_key":
            assert request.idempotency_key is not None
            at = (request.tenant, request.idempotency_key)
            return replayed(request, *(await self._store.executions.find_by_keys([at]))[at])
        if fate in ("parked", "unknown"):
            raise not_committed("", fate)
        if fate == "tenant_limit":
            self._admission.refused(request.tenant)
        if fate == "insufficient_credits":
            raise not_enough(request.hold, (await self._store.credits.account(request.tenant)).available)
        raise refusal_of(request, fate)

    async def _submit_within(self, caller: Caller, request: StartRequest) -> Submitted:
        """Starts in the caller's transaction. Any worker claims the execution once that is committed."""
        await check_database(caller, self._current.session.id)
        await self._cache.ensure_stored_within(caller, request.program)
        id = self._worker.environment.new_id()
        refusal = await start_within(caller, self._unowned_start(id, request))
        if refusal == "duplicate_key":
            assert request.idempotency_key is not None
            existing = await find_existing(caller, request.tenant, request.idempotency_key)
            assert existing is not None
            return replayed(request, *existing)
        if refusal is not None:
            raise refusal_of(request, refusal)
        for seconds in NUDGE_SECONDS:
            asyncio.get_running_loop().call_later(seconds, self._held.announce_work)
        return Submitted(id, created=True)

    def _unowned_start(self, id: str, request: StartRequest) -> Batch:
        state = Execution(request.program.plan)
        fact = request.fact(id, self._worker.now(), admitted=request.concurrency_key is None, owned=False)
        decision = decide(state, fact, fact.at, 0)
        extra = self._writer.extra_rows(state, decision.entries, state.changed, fact.actor)
        batch = extra or Batch(session=None)
        batch.starts = [new_execution(request, fact, None)]
        batch.standings = {id: standing(state, decision.entries, 0, release=True)}
        batch.appends = [Append(id, decision.entries[0].seq, len(decision.entries), encode_entries(decision.entries))]
        return batch


def new_execution(request: StartRequest, fact: f.Start, owner: str | None) -> NewExecution:
    return NewExecution(
        id=fact.execution,
        tenant=request.tenant,
        definition=request.program.name,
        version=request.program.version,
        priority=PRIORITIES[request.priority],
        correlation_id=fact.correlation_id,
        target_type=request.target[0] if request.target else "",
        target_id=request.target[1] if request.target else "",
        key=request.idempotency_key,
        request_hash=request.digest,
        concurrency_key=request.concurrency_key,
        reject_conflict=request.on_conflict == "reject",
        created_at=fact.at,
        owner=owner,
    )


def replayed(request: StartRequest, id: str, request_hash: str) -> Submitted:
    """The key was seen: the same request gives the same execution, another one is refused."""
    if request_hash != request.digest:
        raise key_conflict(request, id)
    return Submitted(id, created=False)


def refusal_of(request: StartRequest, fate: Fate) -> TenutoError:
    if fate == "conflict":
        name, key = plain_name(request.program.name), request.concurrency_key
        return ConcurrencyConflict(f"Another execution of {name!r} holds the key {key!r}.")
    if fate == "tenant_limit":
        return tenant_is_full(request.tenant)
    if fate == "not_created":
        return InvalidTransition("The run was cancelled or deleted before it started.", hint="create a new run")
    return StorageError("this process lost its session while it started the execution", code="session_lost")
