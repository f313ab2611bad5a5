"""Runs tasks: attempts of steps with a queue, whichever process owns their executions.

The protocol of tasks is described in `storage/tasks.py`; this is the worker's side of it. The execution of a task is
loaded, and stays in memory while attempts of it run here; nothing is decided. Reports go to the owner through its
mailbox. The handler of a step that is not safe to retry is called once the owner has recorded `AttemptBegun`.

The owner of an execution is no exception: if it serves the queue, it takes the task like any other worker.
"""

import asyncio
import logging
import random
import time
from contextlib import suppress
from itertools import chain

from msgspec import Raw

from tenuto.errors import StorageError
from tenuto.kernel.definition import owner_of
from tenuto.kernel.evolve import holder_of
from tenuto.runtime.executor.held_execution import Ticket
from tenuto.runtime.executor.program_registry import ProgramRegistry
from tenuto.runtime.executor.worker import Worker
from tenuto.runtime.supervision import supervised
from tenuto.storage.port import Loaded, Store
from tenuto.storage.tasks import ANY_PLAN, Task
from tenuto.values.jitter import spread

from .definition_cache import DefinitionCache
from .late_reports import LateReports
from .parked_executions import ParkedExecutions
from .restoration import Restorer
from .session import CurrentSession, Session
from .task_executions import TaskExecution, plan_hash
from .task_reports import TaskReports
from .wakeups import Wakeups

logger = logging.getLogger("tenuto.durable")

TAKE_AT_ONCE = 100
RESTING = 64  # executions kept in memory after their last attempt: more of their tasks may come
FIRST_LOOK_SECONDS = 0.005


class TaskWorker:
    """Takes tasks from the queues that this process serves, and has the worker run them."""

    def __init__(
        self,
        store: Store,
        current: CurrentSession,
        wakeups: Wakeups,
        worker: Worker,
        reports: TaskReports,
        executions: dict[str, TaskExecution],
        registry: ProgramRegistry,
        cache: DefinitionCache,
        restorer: Restorer,
        parked_executions: ParkedExecutions,
        late_reports: LateReports,
    ) -> None:
        self._store = store
        self._current = current
        self._wakeups = wakeups
        self._worker = worker
        self._reports = reports
        self._executions = executions
        self._registry = registry
        self._cache = cache
        self._restorer = restorer
        self._parked_executions = parked_executions
        self._late_reports = late_reports
        self._resting: dict[str, TaskExecution] = {}
        self._handlers: tuple[frozenset[str], frozenset[str]] | None = None
        self._may_hold = False
        self._look_at = self._beat_at = self._sweep_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._leaving = False

    # -- Lifecycle -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self._worker.works:
            self._reports.start()
            self._wakeups.tasks.set()  # what it can run is stored at once
            self._task = asyncio.create_task(self._run(), name="tenuto-tasks")

    @property
    def is_taking(self) -> bool:
        """Whether tasks are taken from the queues. Also true of a process that runs no handlers."""
        ended = self._task is not None and self._task.done()
        return self._leaving or not (ended or self._reports.has_ended)

    async def leave(self, patience_s: float) -> None:
        """Takes no more tasks, and gives back those that have not begun. Running handlers continue."""
        if self._task is None:
            return
        self._leaving = True
        self._wakeups.tasks.set()
        await asyncio.wait([self._task], timeout=patience_s)  # tasks that it is taking just now are known then
        self._task.cancel()
        await asyncio.wait([self._task])
        for execution in self._executions.values():
            for ticket in list(execution.tickets.values()):
                self._reports.give_back(execution, ticket.ref, "")
        self._reports.cancel_pending()

    def clear(self) -> None:
        """The session has ended: its tasks go to other workers, and those that had begun are lost.

        Handlers that are not safe to retry continue (`late_reports.py`), and their reports may still count.
        """
        executions = list(self._executions.values())
        self._executions.clear()
        self._resting.clear()
        self._reports.taken.clear()
        for execution in executions:
            self._late_reports.keep(execution)
            self._worker.forget(execution)
        self._reports.cancel_pending()

    # -- What it can run -----------------------------------------------------------------------------------------------

    def learn(self) -> None:
        """This process was given code."""
        self._handlers = None
        self._parked_executions.learn()
        self._wakeups.tasks.set()

    def _handlers_here(self) -> tuple[frozenset[str], frozenset[str]]:
        """The async handlers, and those that run in threads, as `Task` names them."""
        if self._handlers is None:
            registry = self._registry
            own = (
                (f"{name}/{version}", handler)
                for (name, version), performer in registry.performers.items()
                for handler in performer.program.handlers.values()
                if handler.serves(owner_of(name))
            )
            by_name = ((ANY_PLAN, handler) for handler in registry.handlers.values())
            opened = (
                (f"{tenant}/{ANY_PLAN}", handler)
                for handler in registry.handlers.values()
                for tenant in handler.tenants
            )
            named = list(chain(own, by_name, opened))
            self._handlers = (
                frozenset(f"{plan}/{handler.name}" for plan, handler in named if handler.is_async),
                frozenset(f"{plan}/{handler.name}" for plan, handler in named if not handler.is_async),
            )
        return self._handlers

    async def _serve(self) -> None:
        """Stores which handlers this process has, if that has changed."""
        handlers, reports = frozenset(chain(*self._handlers_here())), self._reports
        served = (self._current.session.id, handlers)
        if served != reports.served:
            await self._store.tasks.serve(self._current.session.id, sorted(handlers))
            if reports.must_retry:
                reports.must_retry = False
                try:
                    await self._store.tasks.try_again(self._current.session.id)
                except BaseException:
                    reports.must_retry = True
                    raise
            reports.served = served

    async def sweep(self, *, at_once: bool) -> None:
        now = time.monotonic()
        if at_once or now >= self._sweep_at:
            self._sweep_at = now + spread(self._current.lease_ms / 3_000)
            await self._store.tasks.sweep(self._current.lease_ms)

    # -- Taking tasks --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._leaving:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience()):
                    await self._wakeups.tasks.wait()
            self._wakeups.tasks.clear()
            if self._current.session.alive:
                with supervised("Looking for tasks"):  # tried again at the next poll
                    await self._look()

    def _patience(self) -> float:
        poll = self._wakeups.poll_s
        newest = self._reports.newest_pending
        if newest is not None:  # an owner elsewhere is about to answer
            return min(poll, max(FIRST_LOOK_SECONDS, time.monotonic() - newest))
        return spread(poll, 0.75, 1.25)

    async def _look(self) -> None:
        await self._serve()
        await self._reports.read_verdicts()
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + spread(self._wakeups.poll_s)
            await self._reconcile()
            if now >= self._beat_at or any(execution.news for execution in self._executions.values()):
                self._beat_at = now + spread(self._current.lease_ms / 3_000)
                await self._reports.send_heartbeats()
        lanes = (self._worker.async_lane, self._worker.thread_lane)
        queues = self._worker.queues - self._worker.paused_queues
        for lane, handlers in zip(lanes, self._handlers_here(), strict=True):
            for queue in random.sample(sorted(queues), len(queues)):
                room = min(lane.size - lane.running - lane.waiting, TAKE_AT_ONCE)
                if room > 0 and handlers:
                    await self._take_tasks(queue, sorted(handlers), room)

    async def _take_tasks(self, queue: str, handlers: list[str], room: int) -> None:
        session = self._current.session
        if not session.may_start or self._leaving:
            return
        self._may_hold = True  # also if the answer is lost on its way
        tasks = await self._store.tasks.take(session.id, queue, handlers, room)
        if len(tasks) == room:
            self._wakeups.tasks.set()  # there may be more
        if tasks:
            ids = dict.fromkeys(task.key.execution for task in tasks)
            self._executions.update((id, self._resting.pop(id)) for id in ids if id in self._resting)
            await self._follow_up([id for id in ids if id in self._executions])
            new = [id for id in ids if id not in self._executions]
            loaded = (
                {found.row.id: found for found in await self._store.executions.load(new, short=True)} if new else {}
            )
            if self._current.session is session:
                await self._enter_all(session, tasks, loaded)

    async def _follow_up(self, ids: list[str]) -> None:
        """Reads what was recorded for these executions meanwhile."""
        if ids:
            tails = await self._store.executions.tails({id: self._executions[id].state.seq for id in ids})
            for id, bodies in tails.items():
                if (execution := self._executions.get(id)) is not None:
                    execution.follow(bodies)

    async def _enter_all(self, session: Session, tasks: list[Task], loaded: dict[str, Loaded]) -> None:
        for task in tasks:
            try:
                execution = await self._execution(task, loaded.get(task.key.execution))
                if self._current.session is not session:
                    return
                if execution is not None:
                    self._enter(execution, task)
            except StorageError:
                raise
            except Exception:  # if this release cannot read one history, the other tasks run all the same
                logger.exception("execution %s cannot be read", task.key.execution)
                self._reports.return_task(task.taking, "its history cannot be read")

    async def _execution(self, task: Task, loaded: Loaded | None) -> TaskExecution | None:
        execution = self._executions.get(task.key.execution)
        if execution is None and loaded is not None:
            performer = await self._cache.stored_performer(loaded.row.definition, loaded.row.version)
            if performer.program.plan.hash != plan_hash(loaded):
                self._reports.return_task(task.taking, f"{task.plan} is another definition here")
                return None
            execution = TaskExecution(self._reports, performer, loaded.row.key)
            await self._restorer.restore(execution, loaded)
            self._late_reports.attach(execution)
            self._executions[task.key.execution] = execution
        return execution

    def _enter(self, execution: TaskExecution, task: Task) -> None:
        ref = task.key.ref
        holder = holder_of(execution.state, ref)
        if holder is None or ref not in execution.state.agenda:
            return  # settled since it was taken, and its row with it
        role = execution.performer.role(holder.node, ref.phase)
        if role.handler is None:
            self._reports.return_task(task.taking, f"no handler {task.handler}")
            return
        if task.progress is not None:
            execution.shown[ref.path] = Raw(task.progress)
        self._reports.taken[task.taking] = execution
        execution.takings[ref] = task.taking
        self._worker.enter(Ticket(execution, ref, role), None)

    def _rest(self) -> None:
        """Sets idle executions aside for a while, and forgets attempts of the others that are over."""
        for id, execution in list(self._executions.items()):
            execution.forget_takings(self._reports.taken)
            if execution.is_idle:
                del self._executions[id]
                self._resting[id] = execution
        for id in list(self._resting)[: max(0, len(self._resting) - RESTING)]:
            del self._resting[id]

    # -- Reconciliation with the database ------------------------------------------------------------------------------

    async def _reconcile(self) -> None:
        """Compares the tasks of this process with their rows. Attempts that were settled meanwhile are stopped."""
        self._rest()
        if not self._may_hold:
            return
        taken = self._reports.taken
        session, before = self._current.session, list(taken)
        held = {row.taking: row for row in await self._store.tasks.held(session.id)}
        gone = any(taking in taken and taking not in held for taking in before)
        if gone and session.id not in {row.id for row in await self._store.operations.sessions()}:
            session.lose()  # that is why: no attempt was settled, and those not safe to retry continue
        if self._current.session is not session or not session.alive:
            return
        self._may_hold = bool(held or taken)
        for taking in before:
            execution = taken.get(taking)
            if execution is not None and taking not in held:
                del taken[taking]
                self._worker.drop(execution, taking.key.ref)
        late: dict[str, None] = {}
        for taking, row in held.items():
            execution = taken.get(taking)
            if execution is not None and execution.lags(row):
                late[taking.key.execution] = None
            elif execution is None and taking not in self._reports.unconfirmed:
                self._reports.return_task(taking, "")  # never run here: the answer to its taking was lost
        await self._follow_up(list(late))
