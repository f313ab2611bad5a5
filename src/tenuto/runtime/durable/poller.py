"""The loops that poll the database: for work, mail, the status of awaited executions, and maintenance."""

import asyncio
from contextlib import suppress
from time import monotonic

from tenuto.runtime.executor.worker import Worker
from tenuto.runtime.supervision import supervised
from tenuto.storage.port import EVERYTHING, NEWS, WORK, Hints, Store, mail_for
from tenuto.storage.status_changes import KEPT_MS
from tenuto.values.jitter import spread

from .audit_sealer import AuditSealer
from .claimer import Claimer
from .definition_cache import DefinitionCache
from .held_executions import HeldExecutions
from .mailbox import Mailbox
from .progress import EVERY_SECONDS
from .releaser import Releaser
from .session import CurrentSession
from .task_worker import TaskWorker
from .wakeups import Wakeups
from .watcher import Watcher

REAP_SECONDS = 1.0  # between looks for expired sessions
FORGET_SECONDS = 30.0  # between deletions of old status changes


class Poller:
    """Polls the database. Hints only say when to look sooner: the rows are the truth."""

    def __init__(
        self,
        store: Store,
        current: CurrentSession,
        wakeups: Wakeups,
        worker: Worker,
        cache: DefinitionCache,
        held: HeldExecutions,
        releaser: Releaser,
        claimer: Claimer,
        mailbox: Mailbox,
        tasks: TaskWorker,
        watcher: Watcher,
        sealing: AuditSealer,
    ) -> None:
        self._store = store
        self._current = current
        self._wakeups = wakeups
        self._worker = worker
        self._held = held
        self._releaser = releaser
        self._claimer = claimer
        self._mailbox = mailbox
        self._task_worker = tasks
        self._watcher = watcher
        self._reap_at = 0.0
        self._forget_at = 0.0
        self._upkeep = (
            ("Ending sessions that are over", self._reap),
            ("Publishing definitions", cache.publish_provided),
            ("Reading the catalog", cache.refresh),
            ("Sealing the audit", sealing.look),
            ("Deleting old status changes", self._forget_changes),
        )
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._keep_polling(), name="tenuto-poll"),
            asyncio.create_task(self._keep_writing_progress(), name="tenuto-progress"),
        ]

    def start_read_only(self) -> None:
        """Without a session, only executions that callers wait for are looked for."""
        self._tasks = [asyncio.create_task(self._keep_watching(), name="tenuto-poll")]

    @property
    def is_started(self) -> bool:
        return bool(self._tasks)

    @property
    def is_polling(self) -> bool:
        return bool(self._tasks) and not self._tasks[0].done()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
            await asyncio.wait([task])

    async def _keep_polling(self) -> None:
        look_at = 0.0
        wakeups = self._wakeups
        while True:
            with suppress(TimeoutError):
                # Not `wait_for`: before Python 3.12 it swallows a cancellation that meets the event.
                async with asyncio.timeout(max(0, look_at - monotonic())):
                    await wakeups.polling.wait()
            hints = wakeups.take()
            if monotonic() >= look_at:  # however many hints have come
                hints = EVERYTHING
                look_at = monotonic() + spread(wakeups.poll_s, 0, 2)
            if not self._current.session.alive:
                continue
            for what, keep in self._upkeep:
                with supervised(what):
                    await keep()
            await self._look(hints)
            with supervised("Releasing executions"):
                self._releaser.release_lingering()
            if self._current.session.may_start:
                self._worker.admit_late()

    async def _look(self, hints: Hints) -> None:
        if hints & {*EVERYTHING, WORK}:
            with supervised("Looking for work"):
                await self._claimer.claim()
        held = self._held
        if held.unread_mail.unchecked or (held.records and hints & {*EVERYTHING, mail_for(self._current.session.id)}):
            with supervised("Reading mail"):
                await self._mailbox.read()
        with supervised("Looking for what others wait for"):
            rest = await self._watcher.look()
            if rest:
                asyncio.get_running_loop().call_later(rest, self._wakeups.notify, NEWS)

    async def _keep_watching(self) -> None:
        while True:
            await asyncio.sleep(spread(self._wakeups.poll_s, 0, 2))
            with supervised("Looking for what others wait for"):
                await self._watcher.look()

    async def _keep_writing_progress(self) -> None:
        while True:
            await asyncio.sleep(spread(EVERY_SECONDS, 0, 2))
            with supervised("Writing down how far attempts are"):
                await self._held.progress.write(self._held.records)

    async def _reap(self) -> None:
        if (now := monotonic()) >= self._reap_at:
            self._reap_at = now + spread(REAP_SECONDS, 0, 2)
            reaped = await self._store.sessions.reap(self._current.session.id)
            if reaped:
                self._store.notify(WORK)
            await self._task_worker.sweep(at_once=reaped > 0)

    async def _forget_changes(self) -> None:
        if (now := monotonic()) >= self._forget_at:
            self._forget_at = now + spread(FORGET_SECONDS, 0.5, 1.5)
            await self._store.status_changes.forget(self._worker.now() - KEPT_MS)
