"""Everything in one process, and nothing kept: for tests, for short-lived sagas, and as the measure of the others.

All of it happens on one event loop. A fact is decided, recorded and acted upon in one go, without a suspension, so an
execution is never seen halfway. Handlers report from their own tasks; what that starts is on its way before they end.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import count, islice
from typing import Literal, NamedTuple, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Raw

from tenuto.errors import (
    ConcurrencyConflict,
    DefinitionError,
    EngineClosed,
    IdempotencyConflict,
    NotFound,
    Problem,
    ResultTimeout,
)
from tenuto.kernel import facts as f
from tenuto.kernel.address import Phase, Ref, lease_id
from tenuto.kernel.decide import decide
from tenuto.kernel.decide.attempts import holder_of
from tenuto.kernel.effects import DispatchAttempt, Effect, RequestHold, RunAttempt
from tenuto.kernel.events import Entry, ExecutionStarted
from tenuto.kernel.state import Execution
from tenuto.program import Handler, Program
from tenuto.runtime import (
    Environment,
    Filter,
    Observer,
    Page,
    Published,
    Reading,
    Submission,
    Submitted,
    Summary,
    Timer,
    Until,
)
from tenuto.view import (
    NOTHING_UNDER_WAY,
    Activity,
    DeadLetterRow,
    ReviewRow,
    Waiting,
    dead_letter_rows,
    is_settled,
    review_rows,
)

from .perform import Attempt, Ending, Job, Parked, Payloads, Performer, Role, Threads
from .slots import HIGH, NORMAL, RESUME, UNDO, Lane, Limits

T = TypeVar("T")

ASYNC_SLOTS = 200
THREADS = 32
_RANKS = {"high": HIGH, "normal": NORMAL}

Interpose: TypeAlias = "Callable[[Execution, Ref, Handler], Handler]"


class Ticket(NamedTuple):
    """An attempt on its way to a slot."""

    record: "Record"
    ref: Ref
    role: Role


class Record:
    """One execution, and what this process has under way for it. To its attempts it is the `Host`."""

    __slots__ = (
        "flaw",
        "held",
        "history",
        "idempotency_key",
        "is_active",
        "jobs",
        "parked",
        "payloads",
        "performer",
        "rank",
        "runtime",
        "shown",
        "state",
        "tickets",
        "waiters",
        "wake_at",
        "zombies",
    )

    def __init__(self, runtime: "MemoryRuntime", performer: Performer, idempotency_key: str | None) -> None:
        self.runtime = runtime
        self.performer = performer
        self.idempotency_key = idempotency_key
        self.state = Execution(performer.program.plan)
        self.history: list[Entry] = []
        self.payloads: Payloads
        self.rank = NORMAL
        self.is_active = True  # it counts for its concurrency key
        self.jobs: dict[Ref, Job] = {}
        self.tickets: dict[Ref, Ticket] = {}  # granted, and waiting for a slot or a limit
        self.parked: dict[Ref, Waiting] = {}
        self.zombies: dict[str, Job] = {}  # by path: no longer wanted, and still running
        self.held: dict[str, Ticket] = {}  # by path: waits until the zombie there ends
        self.waiters: list[tuple[Until, asyncio.Future[Reading]]] = []
        self.wake_at: int | None = None
        self.shown: dict[str, Raw] = {}
        self.flaw: Exception | None = None

    def reading(self) -> Reading:
        activity = NOTHING_UNDER_WAY if self.state.finished is not None else self._activity()
        program = self.performer.program
        return Reading(program, self.state, self.history, idempotency_key=self.idempotency_key, activity=activity)

    def _activity(self) -> Activity:
        waiting = dict(self.parked)
        for ref, ticket in self.tickets.items():
            spent = self.runtime.limits.spent(ticket.role.limits)
            waiting[ref] = Waiting("slot") if spent is None else Waiting("limit", spent)
        running = [ref for ref, job in self.jobs.items() if not job.stopped and not job.attempt.role.dispatches]
        return Activity(running, waiting)

    # For attempts

    def progress(self, path: str) -> Raw | None:
        return self.shown.get(path)

    def keep_progress(self, path: str, progress: Raw) -> None:
        self.shown[path] = progress

    def once(self, key: str, connection: object) -> AbstractAsyncContextManager[bool]:
        return self.runtime.once(key)


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
    ) -> None:
        self.environment = environment
        self.interpose: Interpose | None = None  # for tests: what is called in place of a handler
        self.on_idle: Callable[[], None] | None = None  # for tests: nothing runs, and somebody waits
        self._now = environment.now_ms
        self._observers = tuple(observers)
        self._works = worker
        self._queues = frozenset(queues)
        self.limits = Limits(environment.clock, self._pump)
        self._tasks: Lane[Record, Ticket] = Lane(slots, self.limits, self._start)
        self._in_threads: Lane[Record, Ticket] = Lane(threads, self.limits, self._start)
        self._threads = Threads(threads)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self._quiet: asyncio.Future[None] | None = None
        self._handlers: dict[str, Handler] = {}
        self._performers: dict[tuple[str, int], Performer] = {}
        self._newest: dict[str, Performer] = {}
        self._records: dict[str, Record] = {}
        self._in_order: list[Record] = []
        self._by_key: dict[tuple[str, str], tuple[str, str]] = {}
        self._lines: dict[tuple[str, str, str], deque[Record]] = {}
        self._parked: dict[Record, None] = {}
        self._alarms: list[tuple[int, int, Record]] = []
        self._alarm_numbers = count()
        self._alarm: Timer | None = None
        self._alarm_at = 0
        self._made: set[str] = set()
        self._awaited: dict[Record, None] = {}

    # -- Life ----------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def close(self, grace_ms: int) -> None:
        self._closing = True
        jobs = self._under_way()
        if jobs and grace_ms:
            await self.quiet(grace_ms)
        stopped = self._under_way()
        for job in stopped:
            job.stop()
        if any(job.is_task for job in stopped):
            await self.quiet(1_000)  # for what they do when they are cancelled
        self._close_up()

    def _under_way(self) -> list[Job]:
        return [job for record in self._in_order for job in (*record.jobs.values(), *record.zombies.values())]

    async def quiet(self, patience_ms: int) -> None:
        """Waits until no handler runs, at most so long in real time."""
        if self.running:
            self._quiet = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._quiet], timeout=patience_ms / 1_000)
            self._quiet = None

    def _close_up(self) -> None:
        self.limits.close()
        self._threads.close()
        if self._alarm is not None:
            self._alarm.cancel()
        for record in self._in_order:
            for _, waiter in record.waiters:
                if not waiter.done():
                    waiter.set_exception(EngineClosed("The engine was closed while the execution was under way."))

    @property
    def running(self) -> int:
        """How many handlers run."""
        return self._tasks.running + self._in_threads.running

    @property
    def programs(self) -> list[Program]:
        return [performer.program for performer in self._performers.values()]

    # -- Definitions ---------------------------------------------------------------------------------------------------

    def provide(self, program: Program) -> None:
        known = self._performers.get((program.name, program.version))
        if known is None:
            performer = Performer(program, self._handlers)
            self._performers[program.name, program.version] = performer
            newest = self._newest.get(program.name)
            if newest is None or newest.program.version < program.version:
                self._newest[program.name] = performer
            return
        if known.program.plan.hash != program.plan.hash:
            raise _changed(known.program, program)
        known.replace(program)
        self._unpark()

    def provide_handler(self, handler: Handler) -> None:
        self._handlers[handler.name] = handler
        for performer in self._performers.values():
            performer.replace(performer.program)
        self._unpark()

    async def publish(self, program: Program) -> None:
        self.provide(program)

    async def program(self, name: str, version: int | None) -> Program:
        return self._performer(name, version).program

    def _performer(self, name: str, version: int | None) -> Performer:
        performer = self._newest.get(name) if version is None else self._performers.get((name, version))
        if performer is None:
            names = ", ".join(sorted(self._newest)) or "none"
            which = f"{name!r} in version {version}" if version else f"named {name!r}"
            raise NotFound(f"There is no definition {which}.", hint=f"register it first; registered: {names}")
        return performer

    async def definitions(self) -> list[Published]:
        plans = [program.plan for program in self.programs]
        return [Published(definition=p.definition, status="published", plan_hash=p.hash) for p in plans]

    # -- Starting ------------------------------------------------------------------------------------------------------

    async def submit(self, submission: Submission) -> Submitted:
        self._check_open()
        key = submission.idempotency_key
        if key is not None and (seen := self._by_key.get((submission.tenant, key))) is not None:
            if seen[1] != submission.digest:
                raise IdempotencyConflict(f"The idempotency key {key!r} was used before with another request.")
            return Submitted(seen[0], created=False)
        program = submission.program
        record = Record(self, self._performer(program.name, program.version), key)
        admitted = self._join_line(record, submission)
        record.rank = _RANKS[submission.priority]
        id = self.environment.new_id()
        self.apply(record, self._start_fact(id, submission, admitted=admitted))
        self._records[id] = record
        self._in_order.append(record)
        if key is not None:
            self._by_key[submission.tenant, key] = (id, submission.digest)
        return Submitted(id, created=True)

    def _start_fact(self, id: str, submission: Submission, *, admitted: bool) -> f.Start:
        return f.Start(
            at=self._now(),
            actor=submission.actor,
            execution=id,
            tenant=submission.tenant,
            input=submission.input,
            by_step=submission.by_step,
            each=submission.each,
            headers=submission.headers,
            variables=submission.variables,
            correlation_id=submission.correlation_id or id,
            target=submission.target,
            priority=submission.priority,
            concurrency_key=submission.concurrency_key,
            admitted=admitted,
        )

    def _check_open(self) -> None:
        if self._loop is None or self._closing:
            raise EngineClosed(hint="use it inside `async with Engine(…) as engine:`")

    # -- Facts ---------------------------------------------------------------------------------------------------------

    async def tell(self, tenant: str | None, execution_id: str, fact: f.Fact) -> f.Answer:
        self._check_open()
        record = self._find(tenant, execution_id)
        if isinstance(fact, f.Retry):
            return self._retry(record, fact)
        return self.apply(record, fact, RESUME if isinstance(fact, f.Resume | f.Decide) else None)

    def apply(self, record: Record, fact: f.Fact, rank: int | None = None) -> f.Answer:
        """Decides, records, and acts. `rank` is where the attempts that it grants stand in the queues."""
        state = record.state
        try:
            decision = decide(state, fact, self._now())
        except Exception as error:
            self._break(record, error)
            raise
        entries = decision.entries
        if entries:
            self._record(record, entries)
        if state.changed:
            self._follow(record, rank)
        if state.timers or record.wake_at is not None:
            self._set_alarm(record)
        if state.finished is not None and record.is_active:
            self._finished(record)
        if record.waiters and (state.finished is not None or state.reviews):
            self._tell_waiters(record)
        return decision.answer

    def _break(self, record: Record, error: Exception) -> None:
        """The kernel contradicted itself. Whoever waits hears of it, rather than wait for ever."""
        record.flaw = error
        for job in (*record.jobs.values(), *record.zombies.values()):
            job.stop()
        for _, waiter in record.waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _record(self, record: Record, entries: list[Entry]) -> None:
        if not record.history:
            started = entries[0].event
            assert isinstance(started, ExecutionStarted)
            record.payloads = Payloads(started, record.history)
        record.history.extend(entries)
        record.payloads.note(entries)
        if self._observers:
            reading = record.reading()
            for observer in self._observers:
                observer.decided(reading, entries)

    def _follow(self, record: Record, rank: int | None) -> None:
        """Takes up what came onto the agenda, and drops what left it."""
        state = record.state
        changed, state.changed = state.changed, []
        for key in changed:
            effect = state.agenda.get(key)
            if isinstance(key, str):
                if isinstance(effect, RequestHold):  # nobody keeps accounts here
                    self._later(partial(self._grant_hold, record, effect.amount))
            elif effect is None:
                self._drop(record, key)
            else:
                self._take_up(record, key, effect, rank)

    def _later(self, call: Callable[[], None]) -> None:
        assert self._loop is not None
        self._loop.call_soon(call)

    def _grant_hold(self, record: Record, amount: int) -> None:
        admitted = self._join_line(record, None)
        self.apply(record, f.HoldGranted(at=self._now(), amount=amount, admitted=admitted), RESUME)

    # -- Attempts ------------------------------------------------------------------------------------------------------

    def _take_up(self, record: Record, ref: Ref, effect: Effect, rank: int | None) -> None:
        holder = holder_of(record.state, ref)
        assert holder is not None
        node = holder.node
        role = record.performer.role(node, ref.phase)
        if type(effect) is DispatchAttempt:
            if role.dispatches and role.handler_name is None:  # whoever answers finds the work by himself
                self._later(partial(self._dispatched, record, ref))
                return
            if not role.dispatches and node.queue not in self._queues:
                self._park(record, ref, Waiting("no_worker", f"queue {node.queue}"))
                return
        if role.handler is None or not self._works or self._closing:
            self._park(record, ref, Waiting("no_worker", role.handler_name or ""))
            return
        lane = self._tasks if role.handler.is_async else self._in_threads
        if lane.running < lane.size and not (lane.waiting or role.limits or role.begins or record.zombies):
            lane.running += 1  # the way most attempts go: nothing to wait for
            self._run(record, ref, role)
            return
        ticket = Ticket(record, ref, role)
        record.tickets[ref] = ticket
        lane.enter(record, self._rank(record, ref.phase, rank), role.limits, ticket)

    def _rank(self, record: Record, phase: Phase, rank: int | None) -> int:
        if phase == "compensate":
            return UNDO
        return record.rank if rank is None else rank

    def _lane(self, role: Role) -> Lane[Record, Ticket]:
        assert role.handler is not None
        return self._tasks if role.handler.is_async else self._in_threads

    def _start(self, ticket: Ticket) -> bool:
        """A slot is free. False: the attempt is no longer wanted, or has to wait for its predecessor to end."""
        record, ref, role = ticket
        if record.tickets.get(ref) is not ticket or self._closing:
            return False
        if record.zombies and ref.path in record.zombies:
            record.held[ref.path] = ticket
            return False
        del record.tickets[ref]
        if role.begins:
            environment = self.environment
            self.apply(record, f.Begun(at=self._now(), ref=ref, worker=environment.worker, build=environment.build))
            if ref not in record.state.agenda:  # a timer that was due came first
                return False
        self._run(record, ref, role)
        return True

    def _run(self, record: Record, ref: Ref, role: Role) -> None:
        loop = self._loop
        assert loop is not None
        attempt = Attempt(record.performer, role, record.state, record.payloads, record, ref, self._now())
        if self.interpose is not None:
            attempt.handler = self.interpose(record.state, ref, attempt.handler)
        job = Job(attempt, self.environment.clock, self._report)
        record.jobs[ref] = job
        if self._observers:
            reading = record.reading()
            for observer in self._observers:
                observer.started(reading, ref)
        if attempt.handler.is_async:
            job.run(loop)
        else:
            job.run_in_thread(loop, self._threads)

    def _report(self, job: Job, ending: Ending) -> None:
        attempt = job.attempt
        record, ref, role = cast(Record, attempt.host), attempt.ref, attempt.role
        if not job.ended:
            self._apply_ending(record, job, ending)
            return
        if record.jobs.get(ref) is job:
            del record.jobs[ref]
        lane = self._lane(role)
        lane.leave(role.limits)
        if ending is not None:
            self._apply_ending(record, job, ending)
        if record.zombies and record.zombies.get(ref.path) is job:
            self._bury(record, ref.path)
        if lane.waiting:
            lane.pump()
        if not lane.running and not self.running:
            self._fall_quiet()

    def _apply_ending(self, record: Record, job: Job, ending: Ending) -> None:
        attempt = job.attempt
        ref, role = attempt.ref, attempt.role
        if ending is None:
            return
        if isinstance(ending, Parked):
            if ref in record.state.agenda:
                self._park(record, ref, Waiting("incompatible", ending.why))
            return
        if role.dispatches:
            self._apply_dispatch(record, ref, ending)
            return
        environment = self.environment
        fact = f.Reported(
            at=self._now(),
            ref=ref,
            outcome=ending,
            started_at=attempt.started_at,
            worker=environment.worker,
            build=environment.build,
            lease=None if role.node.queue is None else lease_id(record.state.id, ref),
        )
        self.apply(record, fact)

    def _apply_dispatch(self, record: Record, ref: Ref, outcome: f.Outcome) -> None:
        match outcome:
            case f.Succeeded():
                self._dispatched(record, ref)
            case f.Failed():
                self.apply(record, f.DispatchRefused(at=self._now(), ref=ref, failure=outcome))
            case _:
                failure = f.Failed(error_class="TRANSIENT", code="dispatch_timeout", summary="it was not sent in time")
                self.apply(record, f.DispatchRefused(at=self._now(), ref=ref, failure=failure))

    def _dispatched(self, record: Record, ref: Ref) -> None:
        self.apply(record, f.Dispatched(at=self._now(), ref=ref))

    def _drop(self, record: Record, ref: Ref) -> None:
        """The attempt is settled: by its own report, or without it."""
        record.tickets.pop(ref, None)
        record.parked.pop(ref, None)
        if record.held and (held := record.held.get(ref.path)) is not None and held.ref == ref:
            del record.held[ref.path]
        job = record.jobs.get(ref)
        if job is None:
            return
        if job.attempt.role.dispatches:
            job.forget()  # it may have been answered before it returned: let it
        elif not job.timed_out:
            job.stop()
        del record.jobs[ref]
        record.zombies[ref.path] = job

    def _bury(self, record: Record, path: str) -> None:
        del record.zombies[path]
        ticket = record.held.pop(path, None)
        if ticket is not None:
            self._lane(ticket.role).enter(record, record.rank, ticket.role.limits, ticket)

    def _park(self, record: Record, ref: Ref, why: Waiting) -> None:
        record.parked[ref] = why
        self._parked[record] = None

    def _unpark(self) -> None:
        """Something was registered: what waited for it may have what it needs."""
        parked, self._parked = self._parked, {}
        for record in parked:
            self._take_up_again(record, list(record.parked))

    def _take_up_again(self, record: Record, refs: list[Ref]) -> None:
        for ref in refs:
            record.parked.pop(ref, None)
            effect = record.state.agenda.get(ref)
            if effect is not None:
                self._take_up(record, ref, effect, RESUME)

    def _pump(self) -> None:
        self._tasks.pump()
        self._in_threads.pump()

    # -- Worker loss, for tests ----------------------------------------------------------------------------------------

    def lose_worker(self, execution_id: str) -> None:
        """As if the process that ran this execution had died, and another had taken it over."""
        record = self._records[execution_id]
        state = record.state
        local = [key for key, effect in state.agenda.items() if isinstance(key, Ref) and type(effect) is RunAttempt]
        for ref in local:
            record.tickets.pop(ref, None)
            record.parked.pop(ref, None)
            job = record.jobs.pop(ref, None)
            if job is not None:
                job.stop()
        record.held.clear()
        self.apply(record, f.Taken(at=self._now(), epoch=state.epoch + 1))
        # What had not begun is granted as it was, and so is on the agenda without having changed.
        self._take_up_again(record, [ref for ref in local if ref in state.agenda and ref not in record.tickets])

    # -- Time ----------------------------------------------------------------------------------------------------------

    def _set_alarm(self, record: Record) -> None:
        wake_at = record.state.wake_at
        if wake_at == record.wake_at:
            return
        record.wake_at = wake_at
        if wake_at is not None:
            heapq.heappush(self._alarms, (wake_at, next(self._alarm_numbers), record))
            if self._alarm is None or wake_at < self._alarm_at:
                self._arm()

    def _arm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._alarms and not self._closing:
            self._alarm_at = self._alarms[0][0]
            self._alarm = self.environment.clock.call_later(max(0, self._alarm_at - self._now()), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        now = self._now()
        while self._alarms and self._alarms[0][0] <= now:
            due, _, record = heapq.heappop(self._alarms)
            if record.wake_at == due:
                record.wake_at = None
                self.apply(record, f.Tick(at=now))
        self._arm()

    # -- One at a time per key -----------------------------------------------------------------------------------------

    def _join_line(self, record: Record, submission: Submission | None) -> bool:
        """Whether it is its turn at once. `submission` is None for another run of what was started before."""
        if submission is not None:
            key, tenant, name = submission.concurrency_key, submission.tenant, submission.program.name
        else:
            key, tenant, name = record.state.concurrency_key, record.state.tenant, record.performer.program.name
        if key is None:
            return True
        line = self._lines.get((tenant, name, key))
        if line is None:
            self._lines[tenant, name, key] = deque((record,))
            return True
        if submission is not None and submission.on_conflict == "reject":
            raise ConcurrencyConflict(f"Another execution of {name!r} holds the key {key!r}.")
        line.append(record)
        return False

    def _retry(self, record: Record, fact: f.Retry) -> f.Answer:
        if record.state.finished == "failed":
            fact = msgspec.structs.replace(fact, admitted=self._join_line(record, None))
        answer = self.apply(record, fact, RESUME)
        if record.state.finished is not None:
            self._leave_line(record)  # it was refused
        else:
            record.is_active = True
        return answer

    def _finished(self, record: Record) -> None:
        record.is_active = False
        self._leave_line(record)

    def _leave_line(self, record: Record) -> None:
        state = record.state
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
            self.apply(line[0], f.Admitted(at=self._now(), key=state.concurrency_key))

    # -- Reading -------------------------------------------------------------------------------------------------------

    def _find(self, tenant: str | None, execution_id: str) -> Record:
        record = self._records.get(execution_id)
        if record is None or (tenant is not None and record.state.tenant != tenant):
            raise NotFound(f"There is no execution {execution_id!r}.")
        if record.flaw is not None:
            raise record.flaw
        return record

    async def read(self, tenant: str | None, execution_id: str) -> Reading:
        return self._find(tenant, execution_id).reading()

    async def wait(self, tenant: str | None, execution_id: str, until: Until, timeout_ms: int | None) -> Reading:
        record = self._find(tenant, execution_id)
        if _has_come(record.state, until):
            return record.reading()
        self._check_open()
        waiter: asyncio.Future[Reading] = asyncio.get_running_loop().create_future()
        record.waiters.append((until, waiter))
        timer = None
        if timeout_ms is not None:
            timer = self.environment.clock.call_later(timeout_ms, lambda: _time_out(waiter, execution_id))
        if self.on_idle is not None:
            self._awaited[record] = None
            self._later(self.on_idle)
        try:
            return await waiter
        except BaseException:
            record.waiters = [pair for pair in record.waiters if pair[1] is not waiter]
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _tell_waiters(self, record: Record) -> None:
        reading: Reading | None = None
        waiting: list[tuple[Until, asyncio.Future[Reading]]] = []
        for until, waiter in record.waiters:
            if waiter.done():
                continue
            if _has_come(record.state, until):
                reading = reading or record.reading()
                waiter.set_result(reading)
            else:
                waiting.append((until, waiter))
        record.waiters = waiting

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for an execution that has not come so far."""
        self._awaited = {record: None for record in self._awaited if any(not w.done() for _, w in record.waiters)}
        return bool(self._awaited)

    def _fall_quiet(self) -> None:
        if self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)
        if self.on_idle is not None:
            self._later(self.on_idle)

    async def executions(self, wanted: Filter, cursor: str | None, limit: int) -> Page[Summary]:
        first = int(cursor) if cursor else 0
        found: list[Summary] = []
        for position, record in enumerate(islice(self._in_order, first, None), first):
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

    async def reviews(self, wanted: Filter, cursor: str | None, limit: int) -> Page[ReviewRow]:
        rows = (row for record in self._with_reviews(wanted) for row in review_rows(record.state))
        return _page([row for row in rows if wanted.kind in (None, row["kind"])], cursor, limit)

    async def dead_letters(self, wanted: Filter, cursor: str | None, limit: int) -> Page[DeadLetterRow]:
        rows = (row for r in self._with_reviews(wanted) for row in dead_letter_rows(r.state, r.history))
        return _page([row for row in rows if wanted.error_class in (None, row["error_class"])], cursor, limit)

    def _with_reviews(self, wanted: Filter) -> Iterator[Record]:
        return (record for record in self._in_order if record.state.reviews and _fits(record, wanted))

    async def limit(self, name: str, *, rate: tuple[int, int] | None, concurrency: int | None) -> None:
        self.limits.set(name, rate, concurrency)
        self._pump()

    @asynccontextmanager
    async def once(self, key: str) -> AsyncIterator[bool]:
        """There is no transaction to be part of: the key counts as used when the block ends well."""
        first = key not in self._made
        yield first
        self._made.add(key)


def _has_come(state: Execution, until: Until) -> bool:
    return state.finished is not None or (until == "settled" and is_settled(state))


def _time_out(waiter: "asyncio.Future[Reading]", execution_id: str) -> None:
    if not waiter.done():
        waiter.set_exception(ResultTimeout(f"Execution {execution_id} had not settled in time; it goes on regardless."))


def _fits(record: Record, wanted: Filter) -> bool:
    state = record.state
    started = record.payloads.started
    target = started.target[1] if started.target is not None else None
    return (
        wanted.tenant in (None, state.tenant)
        and wanted.status in (None, state.status)
        and wanted.definition in (None, started.definition)
        and wanted.correlation_id in (None, state.correlation_id)
        and wanted.target_id in (None, target)
        and (wanted.since_ms is None or record.history[0].at >= wanted.since_ms)
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
    )


def _page(rows: list[T], cursor: str | None, limit: int) -> Page[T]:
    first = int(cursor) if cursor else 0
    return Page(rows[first : first + limit], str(first + limit) if first + limit < len(rows) else None)


def _changed(old: Program, new: Program) -> DefinitionError:
    text = "its plan is not the one that is known under this version: give it a new version"
    return DefinitionError(
        f"Definition {new.name!r}, version {new.version}, was changed.",
        problems=[Problem(f"{new.name}@{new.version}", "changed_plan", text)],
        code="definition_changed",
    )
