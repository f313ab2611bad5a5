"""An execution in memory, and what this process has under way for it."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol, TypeAlias

from msgspec import Raw

from tenuto.errors import ResultTimeout
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref
from tenuto.kernel.decide import Decision, decide
from tenuto.kernel.events import Entry, ExecutionStarted
from tenuto.kernel.state import Execution
from tenuto.runtime.clock import Clock
from tenuto.storage.pruning import ONCE
from tenuto.views import NOTHING_UNDER_WAY, Activity, Until, Waiting, has_reached
from tenuto.views.reading import Reading

from . import Job, Payloads, Performer, Role
from .limits import Limits
from .slots import HIGH, NORMAL

RANKS = {"high": HIGH, "normal": NORMAL}


Inbox: TypeAlias = Callable[[str, str, object], AbstractAsyncContextManager[bool]]


class Controller(Protocol):
    """The part of a runtime that is responsible for a record.

    For an execution that this process owns, it decides what follows from its attempts. For an execution of which this
    process only runs tasks, it reports to the owner.
    """

    @property
    def limits(self) -> Limits: ...

    @property
    def inbox(self) -> Inbox:
        """Whether a consumer receives an id for the first time."""

    def begin(self, ticket: "Ticket") -> None:
        """Records that a handler is about to be called. Once this is committed, `Worker.begin` must be called."""

    def report(self, record: "Record", ref: Ref, fact: f.Fact) -> None:
        """An attempt was dispatched, or has ended."""

    def report_unsafe(self, record: "Record", ref: Ref, fact: f.Reported) -> None:
        """An attempt that is not safe to retry has ended: its report must not be lost."""

    def cannot_run(self, record: "Record", ref: Ref, why: Waiting) -> None:
        """This process lacks the handler of an attempt, or cannot read its input."""

    def handler_ended(self, record: "Record", path: str, job: Job) -> None:
        """A handler that was no longer wanted has ended."""

    def slot_freed(self, record: "Record") -> None:
        """While the worker closes: an attempt of this record has ended."""


class Ticket(NamedTuple):
    """An attempt on its way to a slot."""

    record: "Record"
    ref: Ref
    role: Role


class Record:
    """One execution, and what this process has under way for it. To its attempts it is the `Host`."""

    is_remote = False  # another process decides what follows from its attempts

    __slots__ = (
        "beginning",
        "controller",
        "epoch",
        "errands",
        "expanded",
        "flaw",
        "held",
        "history",
        "idempotency_key",
        "is_active",
        "jobs",
        "kept_status",
        "longest_tail",
        "owned",
        "parked",
        "payloads",
        "performer",
        "rank",
        "shown",
        "snapshot_seq",
        "state",
        "tail",
        "tickets",
        "uncommitted",
        "unread",
        "waiters",
        "wake_at",
        "zombies",
    )

    def __init__(self, controller: Controller, performer: Performer, idempotency_key: str | None) -> None:
        self.controller = controller
        self.performer = performer
        self.idempotency_key = idempotency_key
        self.state = Execution(performer.program.plan)
        self.history: list[Entry] = []
        self.payloads: Payloads
        self.rank = NORMAL
        self.epoch = 1
        self.kept_status = ""  # as its row shows it
        self.owned = True  # this process has the right to go on with it
        self.is_active = True  # it counts for its concurrency key
        self.uncommitted = 0  # decisions whose record is not kept yet
        self.errands = 0  # facts that are about to be delivered
        self.jobs: dict[Ref, Job] = {}
        self.tickets: dict[Ref, Ticket] = {}  # granted, and waiting for a slot or a limit
        self.beginning: dict[Ref, Ticket] = {}  # of those: have their slot, and wait until that they begin is on record
        self.parked: dict[Ref, Waiting] = {}
        self.zombies: dict[str, Job] = {}  # by path: no longer wanted, and still running
        self.held: dict[str, Ticket] = {}  # by path: waits until the zombie there ends
        self.waiters: list[tuple[Until, asyncio.Future[Reading]]] = []
        self.wake_at: int | None = None
        self.shown: dict[str, Raw] = {}
        self.flaw: Exception | None = None
        # Of executions in a database: what their last snapshot covers, and how much was recorded since.
        self.snapshot_seq = 0
        self.expanded: list[int] = []  # entries before it that hold the items of fan-outs
        self.tail = 0  # bytes
        self.longest_tail = 0
        self.unread = 0  # up to here, entries may be missing in the history

    def note(self, entries: Sequence[Entry]) -> None:
        if not self.history:
            started = entries[0].event
            assert isinstance(started, ExecutionStarted)
            self.payloads = Payloads(started, self.history)
            self.rank = RANKS[started.priority]
        self.history.extend(entries)
        self.payloads.note(entries)

    def decide(self, fact: f.Fact, now: int) -> Decision:
        decision = decide(self.state, fact, now, self.epoch)
        if decision.entries:
            self.note(decision.entries)
        return decision

    def fail(self, error: Exception) -> None:
        """The kernel contradicted itself: handlers stop, and waiters raise instead of waiting for ever."""
        self.flaw = error
        for job in (*self.jobs.values(), *self.zombies.values()):
            job.stop()
        self.fail_waiters(error)

    def reading(self) -> Reading:
        activity = NOTHING_UNDER_WAY if self.state.finished is not None else self._activity()
        program = self.performer.program
        return Reading(program, self.state, self.history, idempotency_key=self.idempotency_key, activity=activity)

    def observed(self) -> Reading:
        """For observers: without what is under way, which takes time in proportion to it."""
        return Reading(self.performer.program, self.state, self.history, idempotency_key=self.idempotency_key)

    def _activity(self) -> Activity:
        waiting = dict(self.parked)
        for ref, ticket in self.tickets.items():
            spent = self.controller.limits.spent(ticket.role.limits)
            waiting[ref] = Waiting("slot") if spent is None else Waiting("limit", spent)
        running = [ref for ref, job in self.jobs.items() if not job.stopped and not job.attempt.role.dispatches]
        return Activity(running, waiting, dict(self.shown))

    @property
    def is_idle(self) -> bool:
        """Nothing runs here, nothing is about to: it could be let go of."""
        return not (self.jobs or self.tickets or self.zombies or self.held or self.uncommitted or self.errands)

    # For callers that wait

    async def wait(self, until: Until, timeout_ms: int | None, clock: Clock) -> Reading:
        if has_reached(self.state, until) and not self.uncommitted:
            return self.reading()
        waiter: asyncio.Future[Reading] = asyncio.get_running_loop().create_future()
        self.waiters.append((until, waiter))
        timer = None
        if timeout_ms is not None:
            timer = clock.call_later(timeout_ms, lambda: _time_out(waiter, self.state.id))
        try:
            return await waiter
        except BaseException:
            self.waiters = [pair for pair in self.waiters if pair[1] is not waiter]
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def answer_waiters(self) -> None:
        """Answers those for which the execution has come far enough, once that is committed."""
        if self.uncommitted:
            return
        reading: Reading | None = None
        waiting: list[tuple[Until, asyncio.Future[Reading]]] = []
        for until, waiter in self.waiters:
            if waiter.done():
                continue
            if has_reached(self.state, until):
                reading = reading or self.reading()
                waiter.set_result(reading)
            else:
                waiting.append((until, waiter))
        self.waiters = waiting

    def fail_waiters(self, error: Exception) -> None:
        for _, waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)

    # For attempts

    def progress(self, path: str) -> Raw | None:
        return self.shown.get(path)

    def keep_progress(self, path: str, progress: Raw) -> None:
        self.shown[path] = progress

    def once(self, key: str, connection: object) -> AbstractAsyncContextManager[bool]:
        return self.controller.inbox(ONCE + self.state.id, key, connection)


def _time_out(waiter: "asyncio.Future[Reading]", execution_id: str) -> None:
    if not waiter.done():
        waiter.set_exception(ResultTimeout(f"Execution {execution_id} had not settled in time; it goes on regardless."))
