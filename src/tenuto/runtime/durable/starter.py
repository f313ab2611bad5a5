"""From a start request to an execution that is on record, and from a refusal to what the submitter is told."""

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import ClassVar

from tenuto.errors import (
    ConcurrencyConflict,
    IdempotencyConflict,
    StorageError,
    TenutoError,
)
from tenuto.kernel import facts as f
from tenuto.kernel.codec import encode_entries
from tenuto.kernel.decide import decide
from tenuto.kernel.definition import plain_name
from tenuto.kernel.state import Execution
from tenuto.runtime.executor import Performer
from tenuto.runtime.executor.held_execution import Record
from tenuto.runtime.port import Submitted
from tenuto.runtime.shared.in_flight import tenant_is_full
from tenuto.runtime.start_request import StartRequest
from tenuto.storage.caller_connections import Caller, caller_of, check_database
from tenuto.storage.caller_transactions import find_existing, start_within
from tenuto.storage.port import EVERYTHING, Append, Batch, Hints, NewExecution
from tenuto.views.projections import PRIORITIES, standing
from tenuto.views.reading import Reading

from . import tenant_admission as crowds
from .batched_reads import Together
from .committer import Fate
from .held_executions import Started, not_kept
from .late_reports import Straggling

IN_HAND = 4_000  # executions that one process holds at most
NUDGE_SECONDS = (0.005, 0.05)  # most callers commit soon after they have started something


class StartedForOthers(Started, gc=False):
    """Nothing is done with it here but to tell who submitted it. Over HTTP that is an answer to be written: hundreds of
    them at once would keep the loop from those who are only to hear that there is no room."""

    weight: ClassVar[int] = 10


class Starter(Straggling):
    """A worker that starts what is submitted: here, if it can run it and has room, or for whoever claims it."""

    def _prepare_starting(self) -> None:
        self._held_up: frozenset[Performer] = frozenset()
        self._seen_keys = Together(self._store.by_keys)

    @abstractmethod
    async def _until_reopened(self) -> None:
        """Waits for the next session, if this process lost its own."""

    @abstractmethod
    def _hear(self, hints: Hints) -> None:
        """Looks at what the hints are about, soon."""

    @abstractmethod
    async def _as_started(self, record: Record) -> Reading:
        """How an execution stood that was started here for whoever claims it."""

    def is_crowded(self, tenant: str, under_way: int = 0) -> bool:
        return self._crowds.is_full(tenant) or self._crowds.has_enough(tenant, under_way)

    async def submit(self, request: StartRequest) -> Submitted:
        self._check_open()
        if request.connection is not None:
            return await self._submit_within(caller_of(request.connection), request)
        await self._ensure_stored(request.program)  # before the door: who has passed it enters at once
        tenant = request.tenant
        if self._crowds.must_look(tenant):
            await self._look_for_room(tenant)
        if not self._must_wait(tenant):
            return await self._submit_at_once(request)
        try:
            while self._must_wait(tenant):
                patience_s = crowds.PATIENCE_S if self._crowds.is_known(tenant) else None
                self._crowds.waits(tenant)
                was_called = await self._door.wait(tenant, patience_s)
                self._check_open()
                if not was_called:
                    return await self._turned_away(request)
            return await self._submit_at_once(request)
        finally:
            self._door.pass_on(tenant)

    async def _submit_at_once(self, request: StartRequest) -> Submitted:
        if self._crowds.refuse(request.tenant):
            return await self._turned_away(request)
        return await self._start_submitted(request)

    def _must_wait(self, tenant: str) -> bool:
        if self._door.is_closed(tenant) and not self._crowds.is_known(tenant):
            return True
        return self._crowds.is_worth_waiting(tenant)

    async def _turned_away(self, request: StartRequest) -> Submitted:
        """A known key is answered, however many there are."""
        tenant, key = request.tenant, request.idempotency_key
        seen = None if key is None else await self._seen_keys.find((tenant, key))
        if seen is None:
            raise tenant_is_full(tenant)
        return replayed(request, *seen)

    async def _look_for_room(self, tenant: str) -> None:
        """If it cannot be seen, or there is no limit any more, whoever comes asks by his start, and hears why."""
        room: int | None = None
        try:
            with suppress(StorageError):
                for use in await self._store.limits.tenants(tenant):
                    room = use.max_in_flight - use.in_flight
        finally:
            if room is None:
                self._crowds.forget(tenant)
            else:
                self._crowds.told(tenant, room - self._door.inside(tenant))
            self._door.call_all(tenant)

    def _hear_of_room(self, left: Mapping[str, int]) -> None:
        for tenant, room in left.items():
            self._crowds.told(tenant, room - self._door.inside(tenant))
            if self._crowds.is_known(tenant):
                self._door.call_all(tenant)

    async def _start_submitted(self, request: StartRequest) -> Submitted:
        program = request.program
        performer = self._performer(program.name, program.version)
        while True:
            owned = self._runs(performer) and len(self._records) < IN_HAND and performer not in self._held_up
            record = Record(self, performer, request.idempotency_key)
            id = self.environment.new_id()
            fate = await self._start_record(record, id, request, owned=owned)
            if fate == "committed":
                self._crowds.accepted(request.tenant)
                return Submitted(id, created=True, as_started=None if owned else partial(self._as_started, record))
            if fate not in ("fenced", "not_owner"):
                return await self._not_started(request, fate)
            await self._until_reopened()  # this process was taken for dead, and begins again
            self._check_open()

    async def _start_record(self, record: Record, id: str, request: StartRequest, *, owned: bool) -> Fate:
        assert self._loop is not None
        settled: asyncio.Future[Fate] = self._loop.create_future()
        fact = request.fact(id, self._now(), admitted=request.concurrency_key is None, owned=owned)
        record.epoch = 1 if owned else 0  # what nobody owns is nobody's loss
        start = new_execution(request, fact, self._session.id if owned else None)
        decision = self._decide(record, fact)
        changed, record.state.changed = record.state.changed, []
        if owned:
            self._records[id] = record
            record.unkept += 1
            self._alarms.set(record)
        kept = (Started if owned else StartedForOthers)(
            self, record, decision.entries, changed, None, decision.answer, None, settled, execution=id, start=start
        )
        try:
            self._write(kept, release=not owned)
        except Exception:  # it cannot be written, and so was never started
            self._lose(record)
            raise
        self._door.enter(request.tenant)
        committer = self._committer
        try:
            fate = await settled
        except asyncio.CancelledError:
            committer.withdraw(kept)
            raise
        if request.concurrency_key is not None:
            self._hear(EVERYTHING)
        if not owned:
            self._hint_at_work()
        return fate

    async def _not_started(self, request: StartRequest, fate: Fate) -> Submitted:
        if fate == "duplicate_key":
            assert request.idempotency_key is not None
            at = (request.tenant, request.idempotency_key)
            return replayed(request, *(await self._store.by_keys([at]))[at])
        if fate in ("parked", "unknown"):
            raise not_kept("", fate)
        if fate == "tenant_limit" and self._crowds.refused(request.tenant):
            self._door.call_all(request.tenant)
        raise refusal_of(request, fate)

    async def _submit_within(self, caller: Caller, request: StartRequest) -> Submitted:
        """In the caller's transaction: nobody owns it, and any worker claims it when that is committed."""
        assert self._loop is not None
        await check_database(caller, self._session.id)
        await self._ensure_stored_within(caller, request.program)
        id = self.environment.new_id()
        refusal = await start_within(caller, self._unowned_start(id, request))
        if refusal == "duplicate_key":
            assert request.idempotency_key is not None
            existing = await find_existing(caller, request.tenant, request.idempotency_key)
            assert existing is not None
            return replayed(request, *existing)
        if refusal is not None:
            raise refusal_of(request, refusal)
        for seconds in NUDGE_SECONDS:
            self._loop.call_later(seconds, self._hint_at_work)
        return Submitted(id, created=True)

    def _unowned_start(self, id: str, request: StartRequest) -> Batch:
        state = Execution(request.program.plan)
        fact = request.fact(id, self._now(), admitted=request.concurrency_key is None, owned=False)
        decision = decide(state, fact, fact.at, 0)
        extra = self._extra(state, decision.entries, state.changed, decision.answer, fact.actor)
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
        key = request.idempotency_key
        raise IdempotencyConflict(f"The idempotency key {key!r} was used before with another request.")
    return Submitted(id, created=False)


def refusal_of(request: StartRequest, fate: Fate) -> TenutoError:
    if fate == "conflict":
        name, key = plain_name(request.program.name), request.concurrency_key
        return ConcurrencyConflict(f"Another execution of {name!r} holds the key {key!r}.")
    if fate == "tenant_limit":
        return tenant_is_full(request.tenant)
    return StorageError("this process lost its session while it started the execution", code="session_lost")
