"""When this process looks at the database: at every poll, and sooner if a hint says that there is something."""

import asyncio
from collections.abc import Iterable

from tenuto.storage.port import EVERYTHING, WORK, Hints, Store, mail_for, tasks_in

from .session import CurrentSession


class Wakeups:
    """Collects hints, and wakes the poll loop and the task worker."""

    __slots__ = ("_about_tasks", "_hints", "poll_ms", "polling", "tasks")

    def __init__(self, poll_ms: int, queues: Iterable[str]) -> None:
        self.poll_ms = poll_ms
        self.polling = asyncio.Event()
        self.tasks = asyncio.Event()
        self._hints: Hints = frozenset()
        self._about_tasks: Hints = frozenset((*EVERYTHING, *(tasks_in(queue) for queue in queues)))

    @property
    def poll_s(self) -> float:
        return self.poll_ms / 1_000

    def notify(self, hint: str) -> None:
        self.notify_all(frozenset({hint}))

    def notify_all(self, hints: Hints) -> None:
        if not hints <= self._hints:
            self._hints |= hints
            self.polling.set()
        self.notify_tasks(hints)

    def notify_tasks(self, hints: Hints) -> None:
        """Wakes the task worker alone, if it serves one of these queues."""
        if hints & self._about_tasks:
            self.tasks.set()

    def take(self) -> Hints:
        """The hints since the last call."""
        self.polling.clear()
        hints, self._hints = self._hints, frozenset()
        return hints


class Owners:
    """Tells the owners of executions, in this process or elsewhere, that there is mail for them."""

    __slots__ = ("_current", "_store", "_wakeups")

    def __init__(self, store: Store, current: CurrentSession, wakeups: Wakeups) -> None:
        self._store = store
        self._current = current
        self._wakeups = wakeups

    def notify(self, owners: set[str | None]) -> None:
        """Notifies the owners. None: the execution has no owner, and the worker that claims it reads its mail."""
        for owner in owners:
            hint = WORK if owner is None else mail_for(owner)
            self._store.notify(hint)
            if owner in (None, self._current.session.id):
                self._wakeups.notify(hint)
