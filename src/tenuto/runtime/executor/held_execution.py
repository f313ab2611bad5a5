"""An execution that a process holds, and what it has under way for it."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from msgspec import Raw

from tenuto.kernel.address import Ref
from tenuto.kernel.events import Entry, ExecutionStarted
from tenuto.kernel.state import Execution
from tenuto.storage.pruning import ONCE
from tenuto.views import NOTHING_UNDER_WAY, Activity, Until, Waiting
from tenuto.views.reading import Reading

from . import Job, Payloads, Performer, Role
from .limits import Limits
from .slots import HIGH, NORMAL

RANKS = {"high": HIGH, "normal": NORMAL}


class Holder(Protocol):
    """The worker, to those it holds."""

    bounds: Limits

    def inbox(self, consumer: str, id: str, connection: object) -> AbstractAsyncContextManager[bool]: ...


class Ticket(NamedTuple):
    """An attempt on its way to a slot."""

    record: "Record"
    ref: Ref
    role: Role


class Record:
    """One execution, and what this process has under way for it. To its attempts it is the `Host`."""

    is_guest = False  # attempts run here, but others decide what comes of them

    __slots__ = (
        "beginning",
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
        "worker",
        "zombies",
    )

    def __init__(self, worker: Holder, performer: Performer, idempotency_key: str | None) -> None:
        self.worker = worker
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
        self.errands = 0  # facts that are about to be told
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
            spent = self.worker.bounds.spent(ticket.role.limits)
            waiting[ref] = Waiting("slot") if spent is None else Waiting("limit", spent)
        running = [ref for ref, job in self.jobs.items() if not job.stopped and not job.attempt.role.dispatches]
        return Activity(running, waiting, dict(self.shown))

    @property
    def is_idle(self) -> bool:
        """Nothing runs here, nothing is about to: it could be let go of."""
        return not (self.jobs or self.tickets or self.zombies or self.held or self.uncommitted or self.errands)

    # For attempts

    def progress(self, path: str) -> Raw | None:
        return self.shown.get(path)

    def keep_progress(self, path: str, progress: Raw) -> None:
        self.shown[path] = progress

    def once(self, key: str, connection: object) -> AbstractAsyncContextManager[bool]:
        return self.worker.inbox(ONCE + self.state.id, key, connection)
