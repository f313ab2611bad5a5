"""Attempts that this process runs as a guest: it takes them from the queues it serves, whoever owns their executions.

What a guest does with a task is told in `storage/tasks.py`; this is the worker's side of it. A visit is made to the
execution, and lasts while attempts of it run here; nothing is decided. What comes of an attempt goes to the owner
through the mailbox, and so does the question whether the attempt of a step that is not safe to retry may begin: its
handler is called when `AttemptBegun` is on record.

The owner of an execution is no exception: if it serves the queue, it takes the task like any other worker.
"""

import asyncio
import logging
import random
import time
from contextlib import suppress
from itertools import chain

from msgspec import Raw

from tenuto.authoring.program import CompileStored
from tenuto.errors import StorageError
from tenuto.kernel.address import Ref
from tenuto.kernel.definition import owner_of
from tenuto.kernel.evolve import holder_of
from tenuto.runtime.clock import Environment
from tenuto.runtime.executor import Job, Role
from tenuto.runtime.executor.held_execution import Record, Ticket
from tenuto.runtime.executor.worker import WorkerOptions
from tenuto.runtime.supervision import supervised
from tenuto.storage.port import Loaded, Store, tasks_in
from tenuto.storage.tasks import ANY_PLAN, Task
from tenuto.values.jitter import spread

from .definition_cache import DefinitionCache
from .late_reports import LateReports
from .parked_executions import ParkedExecutions
from .restoration import Restorer
from .session import CurrentSession, Session
from .task_executions import Visit, plan_hash
from .task_reports import TaskReports
from .wakeups import Owners, Wakeups

logger = logging.getLogger("tenuto.durable")

TAKE_AT_ONCE = 100
RESTING = 64  # executions that are kept in memory for a while after the last attempt: more of theirs may come
FIRST_LOOK_SECONDS = 0.005


class TaskWorker(TaskReports):
    """A worker that also runs attempts of executions that it does not hold."""

    def __init__(
        self,
        environment: Environment,
        store: Store,
        current: CurrentSession,
        wakeups: Wakeups,
        owners: Owners,
        parked_executions: ParkedExecutions,
        restorer: Restorer,
        late_reports: LateReports,
        options: WorkerOptions,
        compile: CompileStored,
    ) -> None:
        super().__init__(environment, store, current, wakeups, owners, parked_executions, options)
        self._restorer = restorer
        self.cache = DefinitionCache(store, self.registered, compile, environment.now_ms)
        self.registered.on_change.insert(0, self._learn)
        self._late_reports = late_reports
        self._visits: dict[str, Visit] = {}
        self._rested: dict[str, Visit] = {}
        self._works_on: tuple[frozenset[str], frozenset[str]] | None = None
        self._may_hold = False
        self._look_at = self._beat_at = self._sweep_at = 0.0
        self._guesting: asyncio.Task[None] | None = None
        self._leaving = False

    # -- Life ----------------------------------------------------------------------------------------------------------

    def open_tasks(self) -> None:
        if self.works:
            for gathering in self._words:
                gathering.start()
            self._wakeups.tasks.set()  # what it can run is said at once
            self._guesting = asyncio.create_task(self._keep_visiting(), name="tenuto-guests")

    @property
    def is_visiting(self) -> bool:
        """Whether queues that are served are looked at; also true of one that does not work."""
        ended = self._guesting is not None and self._guesting.done()
        ended = ended or any(gathering.has_ended for gathering in self._words)
        return self._leaving or not ended

    async def leave_queues(self, patience_s: float) -> None:
        """Takes nothing more, and gives back what was not begun. What runs here goes on."""
        if self._guesting is None:
            return
        self._leaving = True
        self._wakeups.tasks.set()
        await asyncio.wait([self._guesting], timeout=patience_s)  # what it is taking just now is in hand then
        self._guesting.cancel()
        await asyncio.wait([self._guesting])
        for visit in self._visits.values():
            for ticket in list(visit.tickets.values()):
                self._give_back(visit, ticket.ref, "")
        self._stop_asking()

    async def close_tasks(self, patience_s: float) -> None:
        for gathering in self._words:
            await gathering.stop(patience_s)

    def forget_visits(self) -> None:
        """The session is over: what it had taken is others' to run, and what it had begun is lost.

        What is not safe to retry goes on (`late_reports.py`), and is answered for: that may be the best there is.
        """
        visits, self._visits = self._visits, {}
        self._rested.clear()
        self._in_hand.clear()
        for visit in visits.values():
            self.forget_work(visit)
        self._stop_asking()

    def _under_way(self) -> list[Job]:
        visited = (job for visit in self._visits.values() for job in (*visit.jobs.values(), *visit.zombies.values()))
        return list(dict.fromkeys((*super()._under_way(), *visited, *self._late_reports.jobs())))

    # -- What it can run -----------------------------------------------------------------------------------------------

    def _learn(self) -> None:
        self._works_on = None
        self._parked_executions.learn()
        self._wakeups.tasks.set()

    def _handlers_here(self) -> tuple[frozenset[str], frozenset[str]]:
        """The handlers that run as tasks, and those that run in threads, in the words of `Task`."""
        if self._works_on is None:
            own = (
                (f"{name}/{version}", handler)
                for (name, version), performer in self.registered.performers.items()
                for handler in performer.program.handlers.values()
                if handler.serves(owner_of(name))
            )
            by_name = ((ANY_PLAN, handler) for handler in self.registered.handlers.values())
            opened = (
                (f"{tenant}/{ANY_PLAN}", handler)
                for handler in self.registered.handlers.values()
                for tenant in handler.tenants
            )
            named = list(chain(own, by_name, opened))
            self._works_on = (
                frozenset(f"{plan}/{handler.name}" for plan, handler in named if handler.is_async),
                frozenset(f"{plan}/{handler.name}" for plan, handler in named if not handler.is_async),
            )
        return self._works_on

    async def _serve(self) -> None:
        handlers = frozenset(chain(*self._handlers_here()))
        served = (self._current.session.id, handlers)
        if served != self._served:
            await self._store.tasks.serve(self._current.session.id, sorted(handlers))
            if self._gave_back:
                self._gave_back = False
                try:
                    await self._store.tasks.try_again(self._current.session.id)
                except BaseException:
                    self._gave_back = True
                    raise
            self._served = served

    # -- Owners --------------------------------------------------------------------------------------------------------

    def _dispatch_to_queue(self, record: Record, ref: Ref, role: Role) -> bool:
        """Its task was written with the grant: somebody will take it, perhaps this process."""
        assert role.node.queue is not None
        hint = tasks_in(role.node.queue)
        self._store.notify(hint)
        self._wakeups.notify_tasks(frozenset({hint}))
        return False

    async def sweep(self, *, at_once: bool) -> None:
        now = time.monotonic()
        if at_once or now >= self._sweep_at:
            self._sweep_at = now + spread(self._current.lease_ms / 3_000)
            await self._store.tasks.sweep(self._current.lease_ms)

    # -- Visiting ------------------------------------------------------------------------------------------------------

    async def _keep_visiting(self) -> None:
        while not self._leaving:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience()):
                    await self._wakeups.tasks.wait()
            self._wakeups.tasks.clear()
            if self._current.session.alive:
                with supervised("Looking for tasks"):  # it is tried again: what is stored is the truth, and waits
                    await self._visit_queues()

    def _patience(self) -> float:
        poll = self._wakeups.poll_s
        if self._asking:  # an owner elsewhere is about to answer
            newest = max(asking.since for asking in self._asking.values())
            return min(poll, max(FIRST_LOOK_SECONDS, time.monotonic() - newest))
        return spread(poll, 0.75, 1.25)

    async def _visit_queues(self) -> None:
        await self._serve()
        await self._hear_owners()
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + spread(self._wakeups.poll_s)
            await self._look_after()
            if now >= self._beat_at or any(visit.news for visit in self._visits.values()):
                self._beat_at = now + spread(self._current.lease_ms / 3_000)
                await self._beat()
        for lane, handlers in zip((self.async_lane, self.thread_lane), self._handlers_here(), strict=True):
            for queue in random.sample(sorted(self.queues), len(self.queues)):
                room = min(lane.size - lane.running - lane.waiting, TAKE_AT_ONCE)
                if room > 0 and handlers:
                    await self._take_tasks(queue, sorted(handlers), room)

    async def _take_tasks(self, queue: str, handlers: list[str], room: int) -> None:
        session = self._current.session
        if not session.may_start or self._leaving:
            return
        self._may_hold = True  # also if the answer to this is lost on its way
        tasks = await self._store.tasks.take(session.id, queue, handlers, room)
        if len(tasks) == room:
            self._wakeups.tasks.set()  # there may be more
        if tasks:
            ids = dict.fromkeys(task.key.execution for task in tasks)
            self._visits.update((id, self._rested.pop(id)) for id in ids if id in self._rested)
            await self._follow_up([id for id in ids if id in self._visits])
            new = [id for id in ids if id not in self._visits]
            loaded = (
                {found.row.id: found for found in await self._store.executions.load(new, short=True)} if new else {}
            )
            if self._current.session is session:
                await self._enter_all(session, tasks, loaded)

    async def _follow_up(self, ids: list[str]) -> None:
        """Brings visits to where their executions stand now."""
        if ids:
            tails = await self._store.executions.tails({id: self._visits[id].state.seq for id in ids})
            for id, bodies in tails.items():
                if (visit := self._visits.get(id)) is not None:
                    visit.follow(bodies)

    async def _enter_all(self, session: Session, tasks: list[Task], loaded: dict[str, Loaded]) -> None:
        for task in tasks:
            try:
                visit = await self._visit(task, loaded.get(task.key.execution))
                if self._current.session is not session:
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
            performer = await self.cache.stored_performer(loaded.row.definition, loaded.row.version)
            if performer.program.plan.hash != plan_hash(loaded):
                self._return(task.taking, f"{task.plan} is another definition here")
                return None
            visit = Visit(self, performer, loaded.row.key)
            await self._restorer.restore(visit, loaded)
            self._late_reports.attach(visit)
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
        """Visits that are over, and in the others the attempts that are."""
        for id, visit in list(self._visits.items()):
            visit.forget_takings(self._in_hand)
            if visit.is_idle:
                del self._visits[id]
                self._rested[id] = visit
        for id in list(self._rested)[: max(0, len(self._rested) - RESTING)]:
            del self._rested[id]

    # -- Looking after -------------------------------------------------------------------------------------------------

    async def _look_after(self) -> None:
        """Whether what is in hand is still ours: what was settled without us is stopped."""
        self._rest()
        if not self._may_hold:
            return
        session, in_hand = self._current.session, list(self._in_hand)
        held = {row.taking: row for row in await self._store.tasks.held(session.id)}
        gone = any(taking in self._in_hand and taking not in held for taking in in_hand)
        if gone and session.id not in {row.id for row in await self._store.operations.sessions()}:
            session.lose()  # that is why: nothing was settled, and what is not safe to retry is heard out
        if self._current.session is not session or not session.alive:
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
