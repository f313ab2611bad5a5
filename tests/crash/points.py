"""Where a process is killed: before or after its nth commit. Nothing in the engine knows of it.

On SQLite every commit of every connection is seen by a hook. On PostgreSQL the verbs of the store are counted: one that
found nothing to do wrote nothing. Renewals of the session come with time and not with what happens: they do not count.
"""

import inspect
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import apsw

import tenuto.connecting
from tenuto.storage import make_store
from tenuto.storage import sqlite as sqlite_module

When = Literal["before", "after"]


class Point(NamedTuple):
    commit: int
    when: When

    def __str__(self) -> str:
        return f"{self.when} commit {self.commit}"


class Trap:
    """Counts commits, and kills its own process at the point."""

    def __init__(self, point: Point | None) -> None:
        self.point = point
        self.commits = 0
        self.found: list[int] = []  # commits that were known only afterwards

    def before(self) -> None:
        self.commits += 1
        if self.point == (self.commits, "before"):
            os.kill(os.getpid(), signal.SIGKILL)

    def after(self) -> None:
        if self.point == (self.commits, "after"):
            os.kill(os.getpid(), signal.SIGKILL)

    def only_after(self) -> None:
        self.commits += 1
        self.found.append(self.commits)
        self.after()

    def points(self) -> list[Point]:
        """All that a run without a crash has passed."""
        before = [Point(n, "before") for n in range(1, self.commits + 1) if n not in self.found]
        return sorted([*before, *(Point(n, "after") for n in range(1, self.commits + 1))])


def set_trap(url: str, point: Point | None) -> Trap:
    trap = Trap(point)
    if url.startswith("sqlite"):
        vars(sqlite_module)["apsw"] = _Apsw(trap)
    else:
        vars(tenuto.connecting)["make_store"] = lambda url: _Counted(make_store(url), trap)
    return trap


# -- SQLite ------------------------------------------------------------------------------------------------------------


class _Apsw:
    def __init__(self, trap: Trap) -> None:
        self._trap = trap

    def Connection(self, *args: Any, **options: Any) -> apsw.Connection:
        return _Trapped(self._trap, *args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(apsw, name)


class _Trapped(apsw.Connection):
    def __init__(self, trap: Trap, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._trap = trap
        self._committed = False
        self.set_commit_hook(self._before)

    def _before(self) -> bool:
        if threading.current_thread().name != "tenuto-session":
            self._trap.before()
            self._committed = True
        return False

    def execute(self, *args: Any, **options: Any) -> apsw.Cursor:
        cursor = super().execute(*args, **options)
        if self._committed:
            self._committed = False
            self._trap.after()
        return cursor


# -- PostgreSQL --------------------------------------------------------------------------------------------------------

READS = {
    "open", "close", "load", "bodies", "holding", "tail", "mail", "verdict", "verdicts", "by_key", "by_keys", "row",
    "definition", "definitions", "executions", "count", "reviews", "statuses", "moved", "written", "check", "backlog",
    "sessions", "notice", "serving", "held", "of", "all", "tenants", "standing", "fetch", "find", "page", "key", "keys",
    "tails", "owned", "progress", "blocked", "audit", "chained", "unchained", "unchained_tenants", "head", "heads",
}  # fmt: skip
LOOKING = {"claim", "claim_one", "claim_in_turn", "reap", "take", "sweep", "exchange"}  # may find nothing to write
PARTS = {"limits", "tasks", "registry", "outbox", "catalog", "pruning", "review_book"}


class _Counted:
    """A store, or a part of one, whose writes spring the trap."""

    def __init__(self, inner: Any, trap: Trap) -> None:
        self._inner = inner
        self._trap = trap

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in PARTS:
            return _Counted(found, self._trap)
        if name == "seen_by":
            return lambda tenant: _Counted(found(tenant), self._trap)
        if name in READS or not inspect.iscoroutinefunction(found):
            return found
        return self._looking(found) if name in LOOKING else self._writing(found)

    def _writing(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        async def write(*args: Any, **options: Any) -> Any:
            self._trap.before()
            written = await verb(*args, **options)
            self._trap.after()
            return written

        return write

    def _looking(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        """What was written is known afterwards: before it, all is as it was after the last commit."""

        async def look(*args: Any, **options: Any) -> Any:
            found = await verb(*args, **options)
            if found[0] if isinstance(found, tuple) else found:
                self._trap.only_after()
            return found

        return look
