"""Where a process is killed: before or after its nth commit. Nothing in the engine knows of it.

Every commit of every connection is one, whichever of the engine's verbs makes it, and however many a verb makes. On
SQLite a hook tells of them. PostgreSQL commits a statement that stands alone by itself: here it is given a transaction,
which ends as it would, so that there is a moment before its COMMIT, too. One that wrote nothing does not count there.
Renewals of the session come with time and not with what happens: they do not count.
"""

import asyncio
import os
import re
import signal
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import apsw
import asyncpg

from tenuto.storage.sqlite import database as sqlite_module

When = Literal["before", "after"]


class Point(NamedTuple):
    commit: int
    when: When

    def __str__(self) -> str:
        return f"{self.when} commit {self.commit}"


class Trap:
    """Counts commits, and kills its own process at the point. One that runs apart may commit between the two."""

    def __init__(self, point: Point | None) -> None:
        self.point = point
        self.commits = 0

    def before(self) -> int:
        """The number of this commit."""
        self.commits += 1
        self.reach(Point(self.commits, "before"))
        return self.commits

    def after(self, commit: int) -> None:
        self.reach(Point(commit, "after"))

    def reach(self, point: Point) -> None:
        if self.point == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def points(self) -> list[Point]:
        """All that a run without a crash has passed."""
        whens: tuple[When, ...] = ("before", "after")
        return [Point(commit, when) for commit in range(1, self.commits + 1) for when in whens]


def set_trap(url: str, trap: Trap, *modules: ModuleType) -> None:
    """For all connections that are made from now on in this process, by the engine and, on SQLite, these modules."""
    if url.startswith("sqlite"):
        for module in (sqlite_module, *modules):
            vars(module)["apsw"] = _Apsw(trap)
    else:
        for verb in VERBS:
            setattr(asyncpg.Connection, verb, _trapped(getattr(asyncpg.Connection, verb), trap))


def _renews() -> bool:
    return threading.current_thread().name == "tenuto-session"


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
        self._commit: int | None = None
        self.cursor_factory = _Cursor
        self.set_commit_hook(self._before)

    def _before(self) -> bool:
        if not _renews():
            self._commit = self._trap.before()
        return False

    def after(self) -> None:
        if self._commit is not None:
            commit, self._commit = self._commit, None
            self._trap.after(commit)

    def execute(self, *args: Any, **options: Any) -> apsw.Cursor:
        cursor = super().execute(*args, **options)
        self.after()
        return cursor


class _Cursor(apsw.Cursor):
    """A statement that gives rows, and stands alone, is committed when the last of them was read."""

    connection: _Trapped

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except StopIteration:
            self.connection.after()
            raise


# -- PostgreSQL --------------------------------------------------------------------------------------------------------

VERBS = ("execute", "executemany", "fetch", "fetchrow", "fetchval")
_WRITES = re.compile(r"\b(INSERT|UPDATE|DELETE)\b")
# Of this transaction; and of earlier ones, as long as the server has not told the others of them.
_WRITTEN = """
SELECT coalesce(sum(pg_stat_get_xact_tuples_inserted(oid) + pg_stat_get_xact_tuples_updated(oid)
    + pg_stat_get_xact_tuples_deleted(oid)), 0)::bigint
FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"""

Verb = Callable[..., Any]

_ask: Verb = asyncpg.Connection.fetchval
_tell: Verb = asyncpg.Connection.execute
_written: WeakKeyDictionary[asyncpg.Connection, int] = WeakKeyDictionary()
"""As it was when a connection began its transaction."""


def _trapped(verb: Verb, trap: Trap) -> Verb:
    async def ask(self: asyncpg.Connection, query: str, *args: Any, **options: Any) -> Any:
        if _renews():
            return await verb(self, query, *args, **options)
        if _WRITES.search(query) and not self.is_in_transaction():
            async with self.transaction():
                return await verb(self, query, *args, **options)
        if query.startswith("COMMIT") and await _has_written(self):
            commit = trap.before()
            committed = await verb(self, query, *args, **options)
            trap.after(commit)
            return committed
        answer = await verb(self, query, *args, **options)
        if query.startswith("BEGIN"):
            _written[self] = await _ask(self, _WRITTEN)
        return answer

    return ask


async def _has_written(connection: asyncpg.Connection) -> bool:
    """Whoever is told to stop while it is asked does so before the commit."""
    try:
        return bool(await _ask(connection, _WRITTEN) > _written[connection])
    except asyncio.CancelledError:
        await _tell(connection, "ROLLBACK")
        raise
