"""A worker: the executions that this process holds, and the attempts it runs for them.

What the memory and the durable runtime have in common. A fact is decided on the newest state at once; what it records
is kept by the runtime, and takes effect then: at once in memory, after the commit on a database. Until then no attempt
is started for it, no caller is answered, nobody who waits is told.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias, runtime_checkable

from tenuto.authoring.program import Handler
from tenuto.errors import EngineClosed, ResultTimeout
from tenuto.kernel import facts as f
from tenuto.kernel.address import Phase, Ref, lease_id
from tenuto.kernel.decide import Decision, decide
from tenuto.kernel.effects import DispatchAttempt, Effect, EffectKey, RequestHold, RunAttempt
from tenuto.kernel.events import Entry
from tenuto.kernel.evolve import holder_of
from tenuto.kernel.state import Execution
from tenuto.runtime.clock import Environment
from tenuto.runtime.observer import Observer
from tenuto.runtime.supervision import report
from tenuto.runtime.vitals import LaneLoad, Vitals
from tenuto.views import Until, Waiting, has_reached
from tenuto.views.reading import Reading

from . import Attempt, Ending, Job, Parked, Role, Tasks, Threads
from .held_execution import Record, Ticket
from .limits import Limits, Names
from .program_registry import ProgramRegistry
from .slots import RESUME, UNDO, Lane
from .timers import Alarms

ASYNC_SLOTS = 200
THREADS = 32
UNHEARD = "An observer failed; the execution goes on."

Interpose: TypeAlias = Callable[[Execution, Ref, Handler], Handler]
Then: TypeAlias = Callable[[f.Answer], None]


@runtime_checkable
class Interposed(Protocol):
    """A runtime that lets a caller wrap every handler."""

    interpose: Interpose | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """`worker`: whether handlers run in this process."""

    observers: Sequence[Observer] = ()
    worker: bool = True
    queues: Sequence[str] = ("default",)
    slots: int = ASYNC_SLOTS
    threads: int = THREADS


class Worker(ABC):
    """The part of a runtime that decides facts and runs attempts."""

    def __init__(self, environment: Environment, options: WorkerOptions) -> None:
        self.environment = environment
        self.interpose: Interpose | None = None  # for tests: what is called in place of a handler
        self.on_idle: Callable[[], None] | None = None  # for tests: nothing runs, and somebody waits
        self.now = environment.now_ms
        self.observers = tuple(options.observers)
        self._hear_starts = tuple(observer for observer in self.observers if observer.hears_starts)
        self.works = options.worker
        self.queues = frozenset(options.queues)
        self.bounds: Limits = self._make_limits()
        self.async_lane: Lane[Record, Ticket] = Lane(options.slots, self.bounds, self._start)
        self.thread_lane: Lane[Record, Ticket] = Lane(options.threads, self.bounds, self._start)
        self._async = Tasks()
        self._threads = Threads(options.threads)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.closing = False
        self._hands_over = False  # while closing: what has no handler running is for others to go on with
        self._quiet: asyncio.Future[None] | None = None
        self.registered = ProgramRegistry(prepares=options.worker)
        self.registered.on_replaced.append(self._unpark)
        self.provide = self.registered.provide
        self.provided = self.registered.provided
        self.provide_handler = self.registered.provide_handler
        self.records: dict[str, Record] = {}
        self._parked: dict[Record, None] = {}
        self._late: list[Callable[[], None]] = []  # what would begin, when it may
        self.alarms = Alarms(environment, self.records, self._ring)

    # -- What a runtime adds -------------------------------------------------------------------------------------------

    @abstractmethod
    def apply(self, record: Record, fact: f.Fact, rank: int | None = None, then: Then | None = None) -> f.Answer:
        """Decides. What follows, follows when that is kept. `rank` is where its attempts stand in the queues."""

    @abstractmethod
    def _request_hold(self, record: Record, effect: RequestHold) -> None:
        """Credits are asked for: report `HoldGranted` or `HoldRefused`."""

    @abstractmethod
    def _make_limits(self) -> Limits:
        """What the lanes ask. Called while the worker is being made."""

    @abstractmethod
    def inbox(self, consumer: str, id: str, connection: object) -> AbstractAsyncContextManager[bool]:
        """Whether this consumer meets this id for the first time."""

    def _finished(self, record: Record) -> None:
        """The execution came to its end, and that is kept."""
        record.is_active = False

    def release_if_idle(self, record: Record) -> None:  # noqa: B027  (memory keeps everything)
        """Nothing may be left to do here for this execution."""

    # -- Life ----------------------------------------------------------------------------------------------------------

    def _under_way(self) -> list[Job]:
        return [job for record in self.records.values() for job in (*record.jobs.values(), *record.zombies.values())]

    async def stop_work(self, grace_ms: int) -> list[Job]:
        """Starts nothing more, waits for running handlers as long as allowed, then stops them, and says which.

        Timers go on as long as handlers do: what is beside them may have a time by which it ends.
        """
        self.closing = True
        self.admit_late_attempts()  # what was late to begin leaves its slot: it does not begin here
        if self._under_way() and grace_ms:
            await self._wait_for_quiet(grace_ms)
        self._hands_over = False  # from here on nobody knows what became of those that end without a report
        self.alarms.close()
        stopped = self._under_way()
        for job in stopped:
            job.stop()
        if any(job.is_task for job in stopped):
            await self._wait_for_quiet(1_000)  # for what they do when they are cancelled
        return stopped

    async def _wait_for_quiet(self, patience_ms: int) -> None:
        if self.running:
            self._quiet = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._quiet], timeout=patience_ms / 1_000)
            self._quiet = None

    def close_up(self) -> None:
        self.bounds.close()
        self._threads.close()
        self.alarms.close()
        for record in self.records.values():
            self.fail_waiters(record, EngineClosed("The engine was closed while the execution was under way."))

    def check_open(self) -> None:
        if self.loop is None or self.closing:
            raise EngineClosed(hint="use it inside `async with Engine(…) as engine:`")

    @property
    def running(self) -> int:
        """How many handlers run."""
        return self.async_lane.running + self.thread_lane.running

    def _lanes(self) -> dict[str, LaneLoad]:
        """One that does not work has no room for a handler, whatever it was given."""
        lanes = {"async": self.async_lane, "thread": self.thread_lane}
        return {
            name: LaneLoad(lane.size if self.works else 0, lane.running, lane.waiting) for name, lane in lanes.items()
        }

    def vitals(self) -> Vitals:
        is_open = self.loop is not None and not self.closing
        return Vitals(is_open=is_open, held=len(self.records), lanes=self._lanes())

    # -- Facts ---------------------------------------------------------------------------------------------------------

    def decide(self, record: Record, fact: f.Fact) -> Decision:
        try:
            decision = decide(record.state, fact, self.now(), record.epoch)
        except Exception as error:
            self._break(record, error)
            raise
        if decision.entries:
            record.note(decision.entries)
        return decision

    def _act(self, record: Record, entries: list[Entry], changed: list[EffectKey], rank: int | None) -> None:
        """What was decided is kept: it takes effect."""
        if self.observers:
            self.tell_observers(record, entries)
        if changed:
            self.follow_agenda(record, changed, rank)
        if record.is_active and record.state.finished is not None:
            self._finished(record)

    def tell_observers(self, record: Record, entries: list[Entry]) -> None:
        reading = record.observed()
        for observer in self.observers:
            try:
                observer.decided(reading, entries)
            except Exception as error:
                report(UNHEARD, error)

    def _break(self, record: Record, error: Exception) -> None:
        """The kernel contradicted itself. Whoever waits hears of it, rather than wait for ever."""
        record.flaw = error
        for job in (*record.jobs.values(), *record.zombies.values()):
            job.stop()
        self.fail_waiters(record, error)

    def fail_waiters(self, record: Record, error: Exception) -> None:
        for _, waiter in record.waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def follow_agenda(self, record: Record, changed: list[EffectKey], rank: int | None) -> None:
        """Takes up what came onto the agenda, and drops what left it."""
        agenda = record.state.agenda
        for key in changed:
            effect = agenda.get(key)
            if isinstance(key, str):
                if isinstance(effect, RequestHold):
                    self._request_hold(record, effect)
            elif effect is None:
                self._drop(record, key)
            elif key not in record.jobs and key not in record.tickets and key not in record.parked:
                self._take_up(record, key, effect, rank)

    def _later(self, call: Callable[[], None]) -> None:
        assert self.loop is not None
        self.loop.call_soon(call)

    def _soon(self, record: Record, call: Callable[[], None]) -> None:
        """Before the record is let go of; not at all if it was given up meanwhile."""
        record.errands += 1
        self._later(partial(self._run_errand, record, call))

    def _run_errand(self, record: Record, call: Callable[[], None]) -> None:
        record.errands -= 1
        if self.records.get(record.state.id) is record:
            call()

    # -- Attempts ------------------------------------------------------------------------------------------------------

    def _take_up(self, record: Record, ref: Ref, effect: Effect, rank: int | None) -> None:
        holder = holder_of(record.state, ref)
        assert holder is not None
        node = holder.node
        role = record.performer.role(node, ref.phase)
        if type(effect) is DispatchAttempt:
            if role.dispatches and holder.open is not None and holder.open.dispatched_at:
                return  # it was sent by an earlier owner: what is left is to wait
            if role.dispatches and role.handler_name is None:  # whoever answers finds the work by himself
                self._soon(record, partial(self._dispatched, record, ref))
                return
            if node.queue is not None and not self._dispatch_to_queue(record, ref, role):
                return
        if role.handler is None or not self.works:
            self._park(record, ref, Waiting("no_worker", role.handler_name or ""))
            return
        lane = self._lane(role)
        waits = lane.waiting or role.limits or role.begins or record.zombies or record.unread or self.closing
        if not waits and lane.running < lane.size and self._may_start():
            lane.running += 1  # the way most attempts go: there is nothing to wait for
            self._run(record, ref, role)
            return
        ticket = Ticket(record, ref, role)
        record.tickets[ref] = ticket
        lane.enter(record.state.tenant, record, self._rank(record, ref.phase, rank), role.limits, ticket)

    def _dispatch_to_queue(self, record: Record, ref: Ref, role: Role) -> bool:
        """Whether this process runs the attempt of a queue by itself."""
        if role.node.queue in self.queues:
            return True
        self._park(record, ref, Waiting("no_worker", f"queue {role.node.queue}"))
        return False

    def _rank(self, record: Record, phase: Phase, rank: int | None) -> int:
        if phase == "compensate":
            return UNDO
        return record.rank if rank is None else rank

    def _lane(self, role: Role) -> Lane[Record, Ticket]:
        assert role.handler is not None
        return self.async_lane if role.handler.is_async else self.thread_lane

    def _start(self, ticket: Ticket) -> bool:
        """A slot is free. False: the attempt is no longer wanted, or has to wait for its predecessor to end."""
        record, ref, role = ticket
        if record.tickets.get(ref) is not ticket or self.closing:
            return False
        if not self._may_start():
            self._late.append(partial(self.enter_again, ticket))
            return False
        if record.zombies and ref.path in record.zombies:
            record.held[ref.path] = ticket
            return False
        if record.unread and self._has_to_read(ticket):
            return False
        if role.begins and (why := self._attempt(record, ref, role).unreadable()) is not None:
            del record.tickets[ref]  # before anything says that it begins
            self._park(record, ref, Waiting("incompatible", why))
            return False
        if role.begins or record.is_guest:
            record.beginning[ref] = ticket
            self._ask_to_begin(ticket)
            return True
        del record.tickets[ref]
        self._run(record, ref, role)
        return True

    def _may_start(self) -> bool:
        """Whether an attempt may begin now: a process that may be taken for dead begins none. It is let in later."""
        return True

    def admit_late_attempts(self) -> None:
        """Attempts may begin again."""
        late, self._late = self._late, []
        for enter in late:
            self._later(enter)

    def enter_again(self, ticket: Ticket) -> None:
        record, ref, role = ticket
        if record.tickets.get(ref) is ticket:
            rank = self._rank(record, ref.phase, RESUME)
            self._lane(role).enter(record.state.tenant, record, rank, role.limits, ticket)

    def _has_to_read(self, ticket: Ticket) -> bool:
        """Whether something that the attempt reads is not in memory. It is fetched, and the ticket enters again."""
        return False

    def _ask_to_begin(self, ticket: Ticket) -> None:
        """Has it recorded that the handler is about to be called. When it is, `_begin` follows."""
        self.apply(ticket.record, self._begun(ticket.ref), then=lambda _: self._begin(ticket))

    def _begun(self, ref: Ref) -> f.Begun:
        return f.Begun(at=self.now(), ref=ref, worker=self.environment.worker, build=self.environment.build)

    def _begin(self, ticket: Ticket) -> None:
        """That it begins is on record. It may have been settled meanwhile: then it gives its slot back."""
        record, ref, role = ticket
        if record.beginning.get(ref) is not ticket:
            return  # given up, and its slot with it
        known = record.tickets.get(ref) is ticket
        wanted = ref in record.state.agenda
        if known and wanted and not self.closing:
            if not self._may_start():
                self._late.append(partial(self._begin, ticket))
                return
            del record.beginning[ref]
            del record.tickets[ref]
            self._run(record, ref, role)
            return
        if known and not wanted:
            del record.tickets[ref]
        self._leave_beginning(ticket)

    def _leave_beginning(self, ticket: Ticket) -> None:
        del ticket.record.beginning[ticket.ref]
        self._lane(ticket.role).leave(ticket.role.limits)
        self._later(self._pump)
        if self.closing and not self.running:
            self._fall_quiet()

    def _attempt(self, record: Record, ref: Ref, role: Role) -> Attempt:
        return Attempt(record.performer, role, record.state, record.payloads, record, ref, self.now())

    def _run(self, record: Record, ref: Ref, role: Role) -> None:
        loop = self.loop
        assert loop is not None
        attempt = self._attempt(record, ref, role)
        if self.interpose is not None:
            attempt.handler = self.interpose(record.state, ref, attempt.handler)
        job = Job(attempt, self.environment.clock, self._report)
        record.jobs[ref] = job
        if self._hear_starts:
            reading = record.observed()
            for observer in self._hear_starts:
                try:
                    observer.started(reading, ref)
                except Exception as error:
                    report(UNHEARD, error)
        if attempt.handler.is_async:
            job.run(self._async)
        else:
            job.run_in_thread(loop, self._threads)

    def _report(self, job: Job, ending: Ending) -> None:
        attempt = job.attempt
        record, ref = attempt.host, attempt.ref
        assert isinstance(record, Record)
        if not job.ended:
            self._take_ending(record, job, ending)
            return
        if record.jobs.get(ref) is job:
            del record.jobs[ref]
        lane = self._lane(attempt.role)
        lane.leave(attempt.role.limits)
        if ending is not None:
            self._take_ending(record, job, ending)
        if record.zombies and record.zombies.get(ref.path) is job:
            self._bury(record, ref.path)
        if attempt.role.limits:
            self._pump()  # what it leaves room for may wait in the other lane
        elif lane.waiting:
            lane.pump()
        if not self.running:
            self._fall_quiet()
        if self.closing:
            self.release_if_idle(record)

    def _take_ending(self, record: Record, job: Job, ending: Ending) -> None:
        """If that goes wrong, it is set aside; its slot, and those who wait for one, are none the worse for it."""
        try:
            self._apply_ending(record, job, ending)
        except Exception as error:
            report(f"Execution {record.state.id} could not go on.", error)

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
            at=self.now(),
            ref=ref,
            outcome=ending,
            started_at=attempt.started_at,
            worker=environment.worker,
            build=environment.build,
            lease=None if role.node.queue is None else lease_id(record.state.id, ref),
        )
        if role.begins:
            self._answer_for_certain(record, ref, fact)
        else:
            self._answer(record, ref, fact)

    def _answer(self, record: Record, ref: Ref, fact: f.Fact) -> None:
        """What came of an attempt."""
        self.apply(record, fact)

    def _answer_for_certain(self, record: Record, ref: Ref, fact: f.Reported) -> None:
        """The same of one that is not made again: nobody else may ever know."""
        self._answer(record, ref, fact)

    def _apply_dispatch(self, record: Record, ref: Ref, outcome: f.Outcome) -> None:
        match outcome:
            case f.Succeeded():
                self._dispatched(record, ref)
            case f.Failed():
                self._answer(record, ref, f.DispatchRefused(at=self.now(), ref=ref, failure=outcome))
            case _:
                failure = f.Failed(error_class="TRANSIENT", code="dispatch_timeout", summary="it was not sent in time")
                self._answer(record, ref, f.DispatchRefused(at=self.now(), ref=ref, failure=failure))

    def _dispatched(self, record: Record, ref: Ref) -> None:
        self._answer(record, ref, f.Dispatched(at=self.now(), ref=ref))

    def _drop(self, record: Record, ref: Ref) -> None:
        """The attempt is settled: by its own report, or without it."""
        record.tickets.pop(ref, None)
        if record.parked:
            record.parked.pop(ref, None)
            if not record.parked:
                self._parked.pop(record, None)
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
            lane = self._lane(ticket.role)
            lane.enter(record.state.tenant, record, record.rank, ticket.role.limits, ticket)

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
        self.async_lane.pump()
        self.thread_lane.pump()

    def _wanted(self) -> dict[Names, int]:
        """How many attempts wait for which limits, and would find a slot."""
        wanted = self.async_lane.wanted()
        for names, number in self.thread_lane.wanted().items():
            wanted[names] = wanted.get(names, 0) + number
        return wanted

    def forget_work(self, record: Record) -> list[Ref]:
        """Everything under way here for this execution is given up. Gives what was on its agenda to run locally."""
        agenda = record.state.agenda
        local = [key for key, effect in agenda.items() if isinstance(key, Ref) and type(effect) is RunAttempt]
        for job in record.jobs.values():
            job.stop()
        record.jobs.clear()
        for ticket in list(record.beginning.values()):
            self._leave_beginning(ticket)
        record.tickets.clear()
        record.parked.clear()
        self._parked.pop(record, None)
        record.held.clear()
        return local

    def _ring(self, record: Record, now: int) -> None:
        self.apply(record, f.Tick(at=now))

    # -- Waiting -------------------------------------------------------------------------------------------------------

    async def wait_for(self, record: Record, until: Until, timeout_ms: int | None) -> Reading:
        if has_reached(record.state, until) and not record.uncommitted:
            return record.reading()
        waiter: asyncio.Future[Reading] = asyncio.get_running_loop().create_future()
        record.waiters.append((until, waiter))
        timer = None
        if timeout_ms is not None:
            timer = self.environment.clock.call_later(timeout_ms, lambda: _time_out(waiter, record.state.id))
        if self.on_idle is not None:
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
        if record.uncommitted:
            return
        reading: Reading | None = None
        waiting: list[tuple[Until, asyncio.Future[Reading]]] = []
        for until, waiter in record.waiters:
            if waiter.done():
                continue
            if has_reached(record.state, until):
                reading = reading or record.reading()
                waiter.set_result(reading)
            else:
                waiting.append((until, waiter))
        record.waiters = waiting

    @property
    def is_awaited(self) -> bool:
        return any(not waiter.done() for record in self.records.values() for _, waiter in record.waiters)

    def _fall_quiet(self) -> None:
        if self._quiet is not None and not self._quiet.done() and not self.running:
            self._quiet.set_result(None)
        if self.on_idle is not None:
            self._later(self.on_idle)


def _time_out(waiter: "asyncio.Future[Reading]", execution_id: str) -> None:
    if not waiter.done():
        waiter.set_exception(ResultTimeout(f"Execution {execution_id} had not settled in time; it goes on regardless."))
