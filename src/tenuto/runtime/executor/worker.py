"""Runs the attempts of the executions that a process holds.

The memory and the durable runtime share this worker. It decides nothing: each record has a controller, which decides
what follows from a report, or passes the report on to the process that does.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias, runtime_checkable

from tenuto.authoring.program import Handler
from tenuto.errors import EngineClosed
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref, lease_id, step_id
from tenuto.kernel.effects import DispatchAttempt, Effect, EffectKey
from tenuto.kernel.evolve import holder_of
from tenuto.kernel.state import Execution
from tenuto.runtime.clock import Environment
from tenuto.runtime.observer import Observer
from tenuto.runtime.supervision import report
from tenuto.runtime.vitals import LaneLoad
from tenuto.views import Waiting
from tenuto.views.jobs import is_job, route

from . import Attempt, Ending, Job, Parked, Role, Tasks, Threads
from .attempt_log import log_failure
from .held_execution import Record, Ticket
from .limits import Limits
from .observers import Observers
from .slots import RESUME, UNDO, Lane

ASYNC_SLOTS = 200
THREADS = 32
CANCEL_MS = 1_000  # how long handlers that were cancelled may take to clean up

Interpose: TypeAlias = Callable[[Execution, Ref, Handler], Handler]
Then: TypeAlias = Callable[[f.Answer], None]


@runtime_checkable
class Interposed(Protocol):
    """A runtime that lets a caller wrap every handler."""

    interpose: Interpose | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """`worker`: whether handlers run in this process. `logs_failures`: no observer logs failed attempts."""

    observers: Sequence[Observer] = ()
    worker: bool = True
    queues: Sequence[str] = ("default",)
    slots: int = ASYNC_SLOTS
    threads: int = THREADS
    logs_failures: bool = False


def _always() -> bool:
    return True


def _nothing_to_fetch(ticket: Ticket, then: Callable[[Ticket], None]) -> bool:
    return False


class Worker:
    """Gives attempts a slot, calls their handlers, and reports what came of them.

    `may_start`: whether attempts may begin now. `dispatch`: wakes the task workers of a queue, one of which takes the
    attempt; if it is None, this process runs attempts of its queues itself. `fetch`: whether the attempt reads entries
    that are not in memory; they are fetched, and the ticket enters again.
    """

    def __init__(
        self,
        environment: Environment,
        options: WorkerOptions,
        limits: Limits,
        observers: Observers,
        *,
        may_start: Callable[[], bool] = _always,
        dispatch: Callable[[str], None] | None = None,
        fetch: Callable[[Ticket, Callable[[Ticket], None]], bool] = _nothing_to_fetch,
    ) -> None:
        self.environment = environment
        self.interpose: Interpose | None = None  # wraps each handler, for traces and tests
        self.on_idle: Callable[[], None] | None = None  # for tests: called when no handler runs
        self.now = environment.now_ms
        self.works = options.worker
        self._logs_failures = options.logs_failures
        self.queues = frozenset(options.queues)
        self.paused_queues: set[str] = set()
        self.limits = limits
        self.async_lane: Lane[Record, Ticket] = Lane(options.slots, limits, self._start)
        self.thread_lane: Lane[Record, Ticket] = Lane(options.threads, limits, self._start)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.closing = False
        self.parked: dict[Record, None] = {}  # have attempts that cannot run here
        self.late: list[Callable[[], None]] = []  # to be called when attempts may begin again
        self._observers = observers
        self._may_start = may_start
        self._dispatch = dispatch
        self._fetch = fetch
        self._tasks = Tasks()
        self._threads = Threads(options.threads)
        self._quiet: asyncio.Future[None] | None = None

    # -- Lifecycle -----------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        if self.loop is None or self.closing:
            raise EngineClosed(hint="use it inside `async with Engine(…) as engine:`")

    @property
    def is_open(self) -> bool:
        return self.loop is not None and not self.closing

    @property
    def running(self) -> int:
        """How many slots are taken."""
        return self.async_lane.running + self.thread_lane.running

    def lane_loads(self) -> dict[str, LaneLoad]:
        """A process that runs no handlers has no slots, whatever its settings say."""
        lanes = {"async": self.async_lane, "thread": self.thread_lane}
        return {
            name: LaneLoad(lane.size if self.works else 0, lane.running, lane.waiting) for name, lane in lanes.items()
        }

    async def drain(self, grace_ms: int, jobs: Callable[[], list[Job]]) -> None:
        """Starts nothing more, and waits for running handlers as long as allowed."""
        self.closing = True
        self.admit_late()  # attempts that were late to begin free their slots
        if grace_ms and jobs():
            await self.wait_until_quiet(grace_ms)

    async def stop(self, jobs: list[Job]) -> None:
        """Cancels these handlers, and gives them a moment to clean up."""
        for job in jobs:
            job.stop()
        if any(job.is_task for job in jobs):
            await self.wait_until_quiet(CANCEL_MS)

    async def wait_until_quiet(self, patience_ms: int) -> None:
        """Waits until no handler runs, at most as long as given, in real time."""
        if self.running:
            self._quiet = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._quiet], timeout=patience_ms / 1_000)
            self._quiet = None

    def _fall_quiet(self) -> None:
        if self._quiet is not None and not self._quiet.done() and not self.running:
            self._quiet.set_result(None)
        if self.on_idle is not None:
            self.call_soon(self.on_idle)

    def close(self) -> None:
        self.limits.close()
        self._threads.close()

    def call_soon(self, call: Callable[[], object]) -> None:
        assert self.loop is not None
        self.loop.call_soon(call)

    def run_errand(self, record: Record, call: Callable[[], object]) -> None:
        """Calls soon, and before the record may be released."""
        record.errands += 1
        self.call_soon(partial(self._run_errand, record, call))

    def _run_errand(self, record: Record, call: Callable[[], object]) -> None:
        record.errands -= 1
        call()

    # -- The agenda ----------------------------------------------------------------------------------------------------

    def follow_agenda(self, record: Record, changed: list[EffectKey], rank: int | None) -> None:
        """Takes up attempts that came onto the agenda, and drops those that left it.

        `rank` is the class of these attempts in the queues. None: that of their execution.
        """
        agenda = record.state.agenda
        for key in changed:
            if isinstance(key, str):
                continue  # an effect that is no attempt
            effect = agenda.get(key)
            if effect is None:
                self.drop(record, key)
            elif key not in record.jobs and key not in record.tickets and key not in record.parked:
                self._take_up(record, key, effect, rank)

    def _take_up(self, record: Record, ref: Ref, effect: Effect, rank: int | None) -> None:
        holder = holder_of(record.state, ref)
        assert holder is not None
        node = holder.node
        role = record.performer.role(node, ref.phase)
        if type(effect) is DispatchAttempt:
            if role.dispatches and holder.open is not None and holder.open.dispatched_at:
                return  # an earlier owner has sent it: its report is awaited
            if role.dispatches and role.handler_name is None:  # nothing to send: another process finds it by itself
                self.run_errand(record, partial(self._dispatched, record, ref))
                return
            if node.queue is not None and not self._runs_queue(record, ref, node.queue):
                return
        if role.handler is None or not self.works:
            record.controller.cannot_run(record, ref, Waiting("no_worker", role.handler_name or ""))
            return
        lane = self._lane(role)
        waits = lane.waiting or role.limits or role.begins or record.zombies or record.unread or self.closing
        if not waits and lane.running < lane.size and self._may_start():
            lane.running += 1  # most attempts have nothing to wait for
            self._run(record, ref, role)
            return
        self.enter(Ticket(record, ref, role), rank)

    def _runs_queue(self, record: Record, ref: Ref, queue: str) -> bool:
        if self._dispatch is not None:
            self._dispatch(queue)  # its task was stored with the grant
            return False
        if queue in self.paused_queues:
            record.controller.cannot_run(record, ref, Waiting("bus", step_id(ref.path)))
            return False
        if queue not in self.queues:
            record.controller.cannot_run(record, ref, Waiting("no_worker", f"queue {queue}"))
            return False
        return True

    def drop(self, record: Record, ref: Ref) -> None:
        """The attempt is settled, by its own report or without it. A handler that still runs becomes a zombie."""
        record.tickets.pop(ref, None)
        if record.parked:
            record.parked.pop(ref, None)
            if not record.parked:
                self.parked.pop(record, None)
        if record.held and (held := record.held.get(ref.path)) is not None and held.ref == ref:
            del record.held[ref.path]
        job = record.jobs.get(ref)
        if job is None:
            return
        if job.attempt.role.dispatches:
            job.forget()  # it may have been answered before it returned: let it finish
        elif not job.timed_out:
            job.stop()
        del record.jobs[ref]
        record.zombies[ref.path] = job

    def bury(self, record: Record, path: str) -> None:
        """A zombie has ended: the attempt that waited for this may start."""
        job = record.zombies.pop(path)
        ticket = record.held.pop(path, None)
        if ticket is not None:
            self.enter(ticket, None)
        record.controller.handler_ended(record, path, job)

    def park(self, record: Record, ref: Ref, why: Waiting) -> None:
        """The attempt waits until code that it needs is registered."""
        record.parked[ref] = why
        self.parked[record] = None

    def take_parked(self) -> list[Record]:
        """All records with parked attempts, for the caller to resume."""
        parked, self.parked = self.parked, {}
        return list(parked)

    def resume(self, record: Record, refs: list[Ref]) -> None:
        """Takes up these attempts again, if they are still on the agenda."""
        for ref in refs:
            record.parked.pop(ref, None)
            effect = record.state.agenda.get(ref)
            if effect is not None:
                self._take_up(record, ref, effect, RESUME)

    def forget(self, record: Record) -> None:
        """Gives up everything under way for this execution."""
        for job in record.jobs.values():
            job.stop()
        record.jobs.clear()
        for ticket in list(record.beginning.values()):
            self._leave_beginning(ticket)
        record.tickets.clear()
        record.parked.clear()
        self.parked.pop(record, None)
        record.held.clear()

    # -- Slots ---------------------------------------------------------------------------------------------------------

    def _lane(self, role: Role) -> Lane[Record, Ticket]:
        assert role.handler is not None
        return self.async_lane if role.handler.is_async else self.thread_lane

    def enter(self, ticket: Ticket, rank: int | None) -> None:
        """The attempt waits for a slot."""
        record, ref, role = ticket
        record.tickets[ref] = ticket
        if ref.phase == "compensate":
            rank = UNDO
        elif rank is None:
            rank = record.rank
        self._lane(role).enter(record.state.tenant, record, rank, role.limits, ticket)

    def _enter_again(self, ticket: Ticket) -> None:
        if ticket.record.tickets.get(ticket.ref) is ticket:
            self.enter(ticket, RESUME)

    def admit_late(self) -> None:
        """Attempts may begin again."""
        late, self.late = self.late, []
        for enter in late:
            self.call_soon(enter)

    def _start(self, ticket: Ticket) -> bool:
        """A slot is free. False: the attempt is no longer wanted, or has to wait for its predecessor to end."""
        record, ref, role = ticket
        if record.tickets.get(ref) is not ticket or self.closing:
            return False
        if not self._may_start():
            self.late.append(partial(self._enter_again, ticket))
            return False
        if record.zombies and ref.path in record.zombies:
            record.held[ref.path] = ticket
            return False
        if record.unread and self._fetch(ticket, self._enter_again):
            return False
        if role.begins and (why := self._attempt(record, ref, role).unreadable()) is not None:
            del record.tickets[ref]  # before it is recorded that it begins
            record.controller.cannot_run(record, ref, Waiting("incompatible", why))
            return False
        if role.begins or record.is_remote:
            record.beginning[ref] = ticket
            record.controller.begin(ticket)
            return True
        del record.tickets[ref]
        self._run(record, ref, role)
        return True

    def begun(self, ref: Ref) -> f.Begun:
        return f.Begun(at=self.now(), ref=ref, worker=self.environment.worker, build=self.environment.build)

    def begin(self, ticket: Ticket) -> None:
        """It is recorded that the attempt begins. If it was settled meanwhile, it frees its slot."""
        record, ref, role = ticket
        if record.beginning.get(ref) is not ticket:
            return  # given up, and its slot with it
        known = record.tickets.get(ref) is ticket
        wanted = ref in record.state.agenda
        if known and wanted and not self.closing:
            if not self._may_start():
                self.late.append(partial(self.begin, ticket))
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
        self.call_soon(self._pump)
        if self.closing and not self.running:
            self._fall_quiet()

    def _pump(self) -> None:
        self.async_lane.pump()
        self.thread_lane.pump()

    # -- Handlers ------------------------------------------------------------------------------------------------------

    def _attempt(self, record: Record, ref: Ref, role: Role) -> Attempt:
        rate = self.environment.credits.per_1000_tokens
        return Attempt(record.performer, role, record.state, record.payloads, record, ref, self.now(), rate)

    def _run(self, record: Record, ref: Ref, role: Role) -> None:
        loop = self.loop
        assert loop is not None
        attempt = self._attempt(record, ref, role)
        if self.interpose is not None:
            attempt.handler = self.interpose(record.state, ref, attempt.handler)
        job = Job(attempt, self.environment.clock, self._ended)
        record.jobs[ref] = job
        if self._observers.of_starts:
            self._observers.started(record, ref)
        if attempt.handler.is_async:
            job.run(self._tasks)
        else:
            job.run_in_thread(loop, self._threads)

    def _ended(self, job: Job, ending: Ending) -> None:
        """The handler has ended, or its time is over and it continues."""
        attempt = job.attempt
        record, ref = attempt.host, attempt.ref
        assert isinstance(record, Record)
        if not job.ended:
            self._report(record, job, ending)
            return
        if record.jobs.get(ref) is job:
            del record.jobs[ref]
        lane = self._lane(attempt.role)
        lane.leave(attempt.role.limits)
        if ending is not None:
            if self._logs_failures and isinstance(ending, f.Failed):
                log_failure(attempt, ending)
            self._report(record, job, ending)
        if record.zombies and record.zombies.get(ref.path) is job:
            self.bury(record, ref.path)
        if attempt.role.limits:
            self._pump()  # attempts that wait for the same limit may be in the other lane
        elif lane.waiting:
            lane.pump()
        if not self.running:
            self._fall_quiet()
        if self.closing:
            record.controller.slot_freed(record)

    def _report(self, record: Record, job: Job, ending: Ending) -> None:
        """If the report cannot be applied, its slot is freed all the same."""
        try:
            self._report_ending(record, job, ending)
        except Exception as error:
            report(f"Execution {record.state.id} could not go on.", error)

    def _report_ending(self, record: Record, job: Job, ending: Ending) -> None:
        attempt = job.attempt
        ref, role, controller = attempt.ref, attempt.role, record.controller
        if ending is None:
            return
        if isinstance(ending, Parked):
            if ref in record.state.agenda:
                controller.cannot_run(record, ref, Waiting(ending.reason, ending.why))
            return
        if role.dispatches:
            self._report_dispatch(record, ref, ending)
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
            controller.report_unsafe(record, ref, fact)
        else:
            controller.report(record, ref, fact)

    def _report_dispatch(self, record: Record, ref: Ref, outcome: f.Outcome) -> None:
        match outcome:
            case f.Succeeded():
                self._dispatched(record, ref)
                return
            case f.Failed():
                failure = outcome
            case _:
                failure = f.Failed(error_class="TRANSIENT", code="dispatch_timeout", summary="it was not sent in time")
        record.controller.report(record, ref, f.DispatchRefused(at=self.now(), ref=ref, failure=failure))

    def _dispatched(self, record: Record, ref: Ref) -> None:
        lane, key = route(record.state) if is_job(record.state) else (-1, "")
        record.controller.report(record, ref, f.Dispatched(at=self.now(), ref=ref, lane=lane, routing_key=key))
