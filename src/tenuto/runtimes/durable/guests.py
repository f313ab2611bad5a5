"""Attempts that this process runs as a guest: it takes them from the queues it serves, whoever owns their executions.

What a guest does with a task is told in `storage/tasks.py`; this is the worker's side of it. A visit is made to the
execution: its history is folded as it is found, and followed while attempts of it run here, but nothing is decided.
What comes of an attempt goes to the owner through the mailbox, and so does the question whether the attempt of a step
that is not safe to retry may begin: its handler is called when `AttemptBegun` is on record.

The owner of an execution is no exception: if it serves the queue, it takes the task like any other worker.
"""

import asyncio
import logging
import random
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from msgspec import Raw, Struct

from tenuto.errors import StorageError
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref, lease_id
from tenuto.kernel.codec import decode_answer, decode_entries, encode_fact
from tenuto.kernel.events import ExecutionStarted
from tenuto.kernel.evolve import evolve, holder_of
from tenuto.program import Handler, Program
from tenuto.runtimes.enduring import enduring
from tenuto.runtimes.perform import Job, Performer, Role
from tenuto.runtimes.record import Record, Ticket
from tenuto.runtimes.worker import Worker
from tenuto.spread import spread
from tenuto.storage.store import EVERYTHING, WORK, Hints, Loaded, Store, mail_for, tasks_in
from tenuto.storage.tasks import ANY_PLAN, Answered, Beginning, Held, Letter, Taking, Task, TaskKey
from tenuto.view import Waiting

from .gathering import Gathering
from .session import Session

logger = logging.getLogger("tenuto.durable")

TAKE_AT_ONCE = 100
RESTING = 64  # executions that are kept in memory for a while after the last attempt: more of theirs may come
FIRST_LOOK_SECONDS = 0.005


class Visit(Record):
    """An execution that attempts run here for, and that is decided elsewhere."""

    __slots__ = ("news", "takings")

    is_guest = True

    def __init__(self, worker: Worker, performer: Performer, idempotency_key: str | None) -> None:
        super().__init__(worker, performer, idempotency_key)
        self.news: dict[str, Raw] = {}  # how far steps are, by path, since that was last told
        self.takings: dict[Ref, Taking] = {}  # the last of each attempt

    def keep_progress(self, path: str, progress: Raw) -> None:
        super().keep_progress(path, progress)
        self.news[path] = progress

    def follow(self, bodies: list[bytes]) -> None:
        entries = [entry for body in bodies for entry in decode_entries(body)]
        if entries:
            for entry in entries:
                evolve(self.state, entry)
            self.note(entries)
            self.state.changed.clear()

    def lags(self, held: Held) -> bool:
        """Whether the execution was paused, resumed or cancelled since: a handler that asks is told."""
        state = self.state
        is_paused = state.pause is not None
        return is_paused != (held.status == "paused") or (held.cancel_requested and state.cancel is None)


class Asking(NamedTuple):
    ticket: Ticket
    since: float


class Returned(Struct, frozen=True):
    taking: Taking
    why: str


class GuestWorker(Worker):
    """A worker that also runs attempts of executions that it does not hold."""

    _store: Store
    _session: Session
    _lease_ms: int
    _poll_ms: int

    def _prepare_guests(self) -> None:
        self._visits: dict[str, Visit] = {}
        self._rested: dict[str, Visit] = {}
        self._in_hand: dict[Taking, Visit] = {}
        self._untold: set[Taking] = set()  # answered or given back, and the database has not confirmed it yet
        self._asking: dict[str, Asking] = {}  # by letter: whether they may begin
        self._works_on: tuple[frozenset[str], frozenset[str]] | None = None
        self._served: tuple[str, frozenset[str]] | None = None
        self._gave_back = False
        self._may_hold = False
        self._look_at = self._beat_at = self._sweep_at = 0.0
        self._hints_of_tasks: Hints = frozenset((*EVERYTHING, *(tasks_in(queue) for queue in self._queues)))
        self._knock = asyncio.Event()
        self._guesting: asyncio.Task[None] | None = None
        self._leaving = False
        self._beginnings = Gathering[Ticket]("tenuto-beginnings", self._send_beginnings)
        self._answers = Gathering[Answered]("tenuto-answers", self._send_answers)
        self._returns = Gathering[Returned]("tenuto-returns", self._send_returns)

    # -- What a runtime adds -------------------------------------------------------------------------------------------

    @abstractmethod
    async def _stored_performer(self, name: str, version: int | None) -> Performer: ...

    @abstractmethod
    async def _restore(self, record: Record, loaded: Loaded) -> None:
        """Brings a new record to where its execution stands."""

    @abstractmethod
    def _nudge(self, hint: str) -> None:
        """Looks at what the hint is about, soon."""

    @abstractmethod
    async def _take(self, execution_id: str) -> None:
        """Becomes the owner of an execution that nobody owns, to decide what is in its mailbox."""

    # -- Life ----------------------------------------------------------------------------------------------------------

    def _open_guests(self) -> None:
        if self._works and self._queues:
            for gathering in (self._beginnings, self._answers, self._returns):
                gathering.start()
            self._guesting = asyncio.create_task(self._keep_visiting(), name="tenuto-guests")

    @property
    def _is_visiting(self) -> bool:
        """Whether queues that are served are looked at; also true where there are none."""
        ended = self._guesting is not None and self._guesting.done()
        ended = ended or any(gathering.has_ended for gathering in (self._beginnings, self._answers, self._returns))
        return self._leaving or not ended

    async def _leave_queues(self, patience_s: float) -> None:
        """Takes nothing more, and gives back what was not begun. What runs here goes on."""
        if self._guesting is None:
            return
        self._leaving = True
        self._knock.set()
        await asyncio.wait([self._guesting], timeout=patience_s)  # what it is taking just now is in hand then
        self._guesting.cancel()
        await asyncio.wait([self._guesting])
        for visit in self._visits.values():
            for ticket in list(visit.tickets.values()):
                self._give_back(visit, ticket.ref, "")
        self._stop_asking()

    async def _close_guests(self, patience_s: float) -> None:
        for gathering in (self._beginnings, self._answers, self._returns):
            await gathering.stop(patience_s)

    def _forget_visits(self) -> None:
        """The session is over: what it had taken is others' to run, and what it had begun is lost."""
        visits, self._visits = self._visits, {}
        self._rested.clear()
        self._in_hand.clear()
        for visit in visits.values():
            self._forget_work(visit)
        self._stop_asking()

    def _stop_asking(self) -> None:
        """Those who asked whether they may begin are no longer wanted, and leave their slots."""
        asking, self._asking = self._asking, {}
        for each in asking.values():
            self._begin(each.ticket)

    def _under_way(self) -> list[Job]:
        visited = (job for visit in self._visits.values() for job in (*visit.jobs.values(), *visit.zombies.values()))
        return [*super()._under_way(), *visited]

    # -- What it can run -----------------------------------------------------------------------------------------------

    def provide(self, program: Program) -> None:
        super().provide(program)
        self._learn()

    def provide_handler(self, handler: Handler) -> None:
        super().provide_handler(handler)
        self._learn()

    def _learn(self) -> None:
        self._works_on = None
        self._knock.set()

    def _handlers_here(self) -> tuple[frozenset[str], frozenset[str]]:
        """The handlers that run as tasks, and those that run in threads, in the words of `Task`."""
        if self._works_on is None:
            own = (
                (f"{name}/{version}", handler)
                for (name, version), performer in self._performers.items()
                for handler in performer.program.handlers.values()
            )
            named = list(chain(own, ((ANY_PLAN, handler) for handler in self._handlers.values())))
            self._works_on = (
                frozenset(f"{plan}/{handler.name}" for plan, handler in named if handler.is_async),
                frozenset(f"{plan}/{handler.name}" for plan, handler in named if not handler.is_async),
            )
        return self._works_on

    async def _serve(self) -> None:
        handlers = frozenset(chain(*self._handlers_here()))
        served = (self._session.id, handlers)
        if served != self._served:
            await self._store.tasks.serve(self._session.id, sorted(handlers))
            if self._gave_back:
                self._gave_back = False
                await self._store.tasks.try_again(self._session.id)
            self._served = served

    # -- Owners --------------------------------------------------------------------------------------------------------

    def _dispatch_to_queue(self, record: Record, ref: Ref, role: Role) -> bool:
        """Its task was written with the grant: somebody will take it, perhaps this process."""
        assert role.node.queue is not None
        hint = tasks_in(role.node.queue)
        self._store.ring(hint)
        self._hear_of_tasks(frozenset({hint}))
        return False

    def _hear_of_tasks(self, hints: Hints) -> None:
        if hints & self._hints_of_tasks:
            self._knock.set()

    async def _sweep(self, *, at_once: bool) -> None:
        now = time.monotonic()
        if at_once or now >= self._sweep_at:
            self._sweep_at = now + spread(self._lease_ms / 3_000)
            await self._store.tasks.sweep(self._lease_ms)

    # -- Visiting ------------------------------------------------------------------------------------------------------

    async def _keep_visiting(self) -> None:
        while not self._leaving:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience()):
                    await self._knock.wait()
            self._knock.clear()
            if self._session.alive:
                with enduring("Looking for tasks"):  # it is tried again: what is stored is the truth, and waits
                    await self._visit_queues()

    def _patience(self) -> float:
        poll = self._poll_ms / 1_000
        if self._asking:  # an owner elsewhere is about to answer
            newest = max(asking.since for asking in self._asking.values())
            return min(poll, max(FIRST_LOOK_SECONDS, time.monotonic() - newest))
        return spread(poll, 0.75, 1.25)

    async def _visit_queues(self) -> None:
        await self._serve()
        await self._hear_owners()
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + spread(self._poll_ms / 1_000)
            await self._look_after()
            if now >= self._beat_at or any(visit.news for visit in self._visits.values()):
                self._beat_at = now + spread(self._lease_ms / 3_000)
                await self._beat()
        for lane, handlers in zip((self._tasks, self._in_threads), self._handlers_here(), strict=True):
            for queue in random.sample(sorted(self._queues), len(self._queues)):
                room = min(lane.size - lane.running - lane.waiting, TAKE_AT_ONCE)
                if room > 0 and handlers:
                    await self._take_tasks(queue, sorted(handlers), room)

    async def _take_tasks(self, queue: str, handlers: list[str], room: int) -> None:
        session = self._session
        if not session.may_start or self._leaving:
            return
        self._may_hold = True  # also if the answer to this is lost on its way
        tasks = await self._store.tasks.take(session.id, queue, handlers, room)
        if len(tasks) == room:
            self._knock.set()  # there may be more
        if tasks:
            ids = dict.fromkeys(task.key.execution for task in tasks)
            self._visits.update((id, self._rested.pop(id)) for id in ids if id in self._rested)
            await self._follow_up([id for id in ids if id in self._visits])
            new = [id for id in ids if id not in self._visits]
            loaded = {found.row.id: found for found in await self._store.load(new, short=True)} if new else {}
            if self._session is session:
                await self._enter_all(session, tasks, loaded)

    async def _follow_up(self, ids: list[str]) -> None:
        """Brings visits to where their executions stand now."""
        if ids:
            tails = await self._store.tails({id: self._visits[id].state.seq for id in ids})
            for id, bodies in tails.items():
                if (visit := self._visits.get(id)) is not None:
                    visit.follow(bodies)

    async def _enter_all(self, session: Session, tasks: list[Task], loaded: dict[str, Loaded]) -> None:
        for task in tasks:
            try:
                visit = await self._visit(task, loaded.get(task.key.execution))
                if self._session is not session:
                    return
                if visit is not None:
                    self._enter(visit, task)
            except StorageError:
                raise
            except Exception:  # a history that this release cannot read must not keep others waiting
                logger.exception("execution %s cannot be read", task.key.execution)
                self._return(task.taking, "its history cannot be read")

    async def _visit(self, task: Task, loaded: Loaded | None) -> Visit | None:
        visit = self._visits.get(task.key.execution)
        if visit is None and loaded is not None:
            performer = await self._stored_performer(loaded.row.definition, loaded.row.version)
            if performer.program.plan.hash != _plan_hash(loaded):
                self._return(task.taking, f"{task.plan} is another definition here")
                return None
            visit = Visit(self, performer, loaded.row.key)
            await self._restore(visit, loaded)
            self._visits[task.key.execution] = visit
        return visit

    def _enter(self, visit: Visit, task: Task) -> None:
        ref = task.key.ref
        holder = holder_of(visit.state, ref)
        if holder is None or ref not in visit.state.agenda:
            return  # settled since it was taken, and its row with it
        role = visit.performer.role(holder.node, ref.phase)
        if role.handler is None:
            self._return(task.taking, f"no handler {task.handler}")
            return
        if task.progress is not None:
            visit.shown[ref.path] = Raw(task.progress)
        self._in_hand[task.taking] = visit
        visit.takings[ref] = task.taking
        ticket = visit.tickets[ref] = Ticket(visit, ref, role)
        rank = self._rank(visit, ref.phase, None)
        self._lane(role).enter(visit.state.tenant, visit, rank, role.limits, ticket)

    def _rest(self) -> None:
        """Visits that are over."""
        for id, visit in list(self._visits.items()):
            if visit.is_idle:
                del self._visits[id]
                self._rested[id] = visit
        for id in list(self._rested)[: max(0, len(self._rested) - RESTING)]:
            del self._rested[id]

    # -- Beginning -----------------------------------------------------------------------------------------------------

    def _ask_to_begin(self, ticket: Ticket) -> None:
        if ticket.record.is_guest:
            self._beginnings.add(ticket)
        else:
            super()._ask_to_begin(ticket)

    async def _send_beginnings(self, tickets: list[Ticket]) -> None:
        session = self._session
        wanted = {self._beginning(session, ticket): ticket for ticket in tickets}
        begun, owners = await self._store.tasks.begin(session.id, list(wanted))
        for beginning, ticket in wanted.items():
            if beginning.taking not in begun or not session.may_start:
                self._withdraw(ticket)
            elif beginning.letter is None:
                self._begin(ticket)
            else:
                self._asking[beginning.letter.id] = Asking(ticket, time.monotonic())
        if owners:
            self._tell_owners(owners)
            self._knock.set()

    def _beginning(self, session: Session, ticket: Ticket) -> Beginning:
        """What is only sent from here, and answered elsewhere, may be sent again: it is never lost with its worker."""
        record, ref, role = ticket
        assert isinstance(record, Visit)
        letter = None
        if role.begins:
            id = f"begun:{lease_id(record.state.id, ref)}:{session.id}"
            letter = Letter(id, record.state.id, encode_fact(self._begun(ref)))
        return Beginning(record.takings[ref], marks=not role.dispatches, letter=letter)

    def _withdraw(self, ticket: Ticket) -> None:
        """It does not begin: it is somebody else's now, or settled, or this process may be taken for dead."""
        record, ref, _ = ticket
        if isinstance(record, Visit) and record.tickets.get(ref) is ticket:
            self._give_back(record, ref, "")
        self._begin(ticket)

    async def _hear_owners(self) -> None:
        """What owners said to those who asked whether they may begin."""
        if not self._asking:
            return
        for id, verdict in (await self._store.verdicts(list(self._asking))).items():
            asking = self._asking.pop(id, None)
            if asking is None:
                continue
            answer = decode_answer(verdict)
            # A duplicate: whoever had it before left without running it, and gave it back.
            if self._session.may_start and (answer == f.APPLIED or answer == f.Ignored("duplicate")):
                self._begin(asking.ticket)
            else:
                self._withdraw(asking.ticket)
        long_ago = time.monotonic() - 2 * self._poll_ms / 1_000
        unheard = [asking.ticket.record.state.id for asking in self._asking.values() if asking.since < long_ago]
        for id in dict.fromkeys(unheard):
            await self._take(id)  # if nobody owns it: to read one letter, no handler is needed
        if unheard:
            self._nudge(mail_for(self._session.id))

    # -- Answering -----------------------------------------------------------------------------------------------------

    def _answer(self, record: Record, ref: Ref, fact: f.Fact) -> None:
        if not isinstance(record, Visit):
            self.apply(record, fact)
            return
        taking = record.takings[ref]
        self._in_hand.pop(taking, None)
        self._untold.add(taking)
        letter = Letter(self.environment.new_id(), record.state.id, encode_fact(fact))
        is_last = isinstance(fact, f.Reported) and isinstance(fact.outcome, f.Succeeded)
        self._answers.add(Answered(taking, letter, self._news_of(record, ref.path), is_last))
        if ref in record.jobs:
            self._drop(record, ref)  # its time is over, and it goes on all the same

    async def _send_answers(self, answers: list[Answered]) -> None:
        owners = await self._store.tasks.answer(self._session.id, answers)
        self._untold.difference_update(answered.taking for answered in answers)
        self._tell_owners(owners)
        self._knock.set()  # there is room for others

    def _tell_owners(self, owners: set[str | None]) -> None:
        """There is mail. What nobody owns is for whoever claims it first."""
        for owner in owners:
            hint = WORK if owner is None else mail_for(owner)
            self._store.ring(hint)
            if owner in (None, self._session.id):
                self._nudge(hint)

    def _park(self, record: Record, ref: Ref, why: Waiting) -> None:
        if isinstance(record, Visit):
            self._give_back(record, ref, why.what)
        else:
            super()._park(record, ref, why)

    def _give_back(self, visit: Visit, ref: Ref, why: str) -> None:
        visit.tickets.pop(ref, None)
        taking = visit.takings[ref]
        if self._in_hand.pop(taking, None) is not None:
            self._return(taking, why)

    def _return(self, taking: Taking, why: str) -> None:
        self._gave_back = self._gave_back or bool(why)
        self._untold.add(taking)
        self._returns.add(Returned(taking, why))

    async def _send_returns(self, returned: list[Returned]) -> None:
        for why in dict.fromkeys(each.why for each in returned):
            takings = [each.taking for each in returned if each.why == why]
            await self._store.tasks.give_back(self._session.id, takings, why)
        self._untold.difference_update(each.taking for each in returned)

    # -- Looking after -------------------------------------------------------------------------------------------------

    async def _look_after(self) -> None:
        """Whether what is in hand is still ours: what was settled without us is stopped."""
        self._rest()
        if not self._may_hold:
            return
        session, in_hand = self._session, list(self._in_hand)
        held = {row.taking: row for row in await self._store.tasks.held(session.id)}
        if self._session is not session:
            return
        self._may_hold = bool(held or self._in_hand)
        for taking in in_hand:
            visit = self._in_hand.get(taking)
            if visit is not None and taking not in held:
                del self._in_hand[taking]
                self._drop(visit, taking.key.ref)
        late: dict[str, None] = {}
        for taking, row in held.items():
            visit = self._in_hand.get(taking)
            if visit is not None and visit.lags(row):
                late[taking.key.execution] = None
            elif visit is None and taking not in self._untold:
                self._return(taking, "")  # never run here: the answer to whoever took it was lost on its way
        await self._follow_up(list(late))

    async def _beat(self) -> None:
        if self._in_hand:
            await self._store.tasks.beat(self._session.id, dict(self._news()))

    def _news(self) -> Iterator[tuple[TaskKey, bytes]]:
        for (key, _), visit in self._in_hand.items():
            progress = self._news_of(visit, key.path)
            if progress is not None:
                yield key, progress

    def _news_of(self, record: Record, path: str) -> bytes | None:
        assert isinstance(record, Visit)
        progress = record.news.pop(path, None)
        return None if progress is None else bytes(progress)


def _plan_hash(loaded: Loaded) -> str:
    """Of the plan with which the execution was started: a worker may have another under the same name and version."""
    started = decode_entries(loaded.bodies[0])[0].event
    assert isinstance(started, ExecutionStarted)
    return started.plan_hash
