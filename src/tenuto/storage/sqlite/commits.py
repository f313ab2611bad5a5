"""Commits batches to SQLite, in the writer's thread.

There are two write paths. `plain_batch` commits the usual batch as one statement; its module says why that is faster.
This module writes every other batch statement by statement, and finds out which executions are refused.
"""

import asyncio
import threading
from collections.abc import Sequence

from tenuto.storage.port import Append, Batch, Committed, Refusal
from tenuto.storage.shared.rows import basis_values, execution_values, move_values, rest_of, values_of
from tenuto.views.projections import execution_of

from .admissions import admit, count_in_flight, refused_starts, room_left
from .database import SqliteDatabase
from .errors import translated
from .plain_batch import APPENDS, CHANGES, MOVES, REFUSED, STARTS, Plain, as_json, commit_plain, plain
from .reserves import book, refused_reserves
from .statements import is_live
from .tasks import withdraw

MANY = 100
GIVE_WAY_S = 0.001  # usually less: the writer starts at once unless it is busy

_APPENDS = APPENDS.format(rows="?")
_STARTS = STARTS.format(rows="?")
_REFUSED = REFUSED.format(rows="?", session="?")
_MOVES = MOVES.format(rows="?", session="?") + " RETURNING executions.id"
_CHANGES = CHANGES.format(now="?", starts="?", moves="'[]'")
_AUDIT = """
INSERT INTO audit (tenant, at, actor, action, object_type, object_id, reason) VALUES (?, ?, ?, ?, ?, ?, ?)"""


class SqliteCommits:
    """Writes batches, and finds out what became of one whose outcome is unknown."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._has_limits = False  # whether tenants have limits, as of the last commit in parts

    async def commit(self, batch: Batch) -> Committed:
        with translated():
            rows = None if self._has_limits else plain(batch)
        begun = threading.Event()
        committed = asyncio.get_running_loop().run_in_executor(self._database.writer, self._commit, batch, rows, begun)
        if len(batch.appends) >= MANY:  # a busy event loop would keep the interpreter's lock
            begun.wait(GIVE_WAY_S)
        return await committed

    def _commit(self, batch: Batch, rows: Plain | None, begun: threading.Event) -> Committed:
        begun.set()
        with translated():
            now = self._database.now()
            if rows is not None and commit_plain(self._database.write_connection, rows, now):
                return Committed(now)
        return self._commit_in_parts(batch)

    def _commit_in_parts(self, batch: Batch) -> Committed:
        """Writes any batch, and gives the reason for each execution that is refused."""
        connection = self._database.write_connection
        with translated(), self._database.transaction():
            now = self._database.now()
            if batch.session is not None and not is_live(connection, batch.session):
                return Committed(now, fenced=True)
            limited = self._has_limits = bool(connection.execute("SELECT EXISTS (SELECT 1 FROM tenant_limits)").get)
            refused = {
                **refused_reserves(connection, batch),
                **refused_starts(connection, batch.starts, limited=limited),
            }
            if batch.bases:
                refused.update(connection.execute(_REFUSED, (as_json(basis_values(batch)), batch.session)))
            starts = [start for start in batch.starts if start.id not in refused]
            started = {start.id for start in starts}
            moves = [m for m in batch.standings.values() if m.id not in started and m.id not in refused]
            if limited:
                count_in_flight(connection, [(s, batch.standings[s.id]) for s in starts], moves, batch.session)
            if starts:
                connection.execute(_STARTS, (as_json([execution_values(s, batch.standings[s.id]) for s in starts]),))
            if moves:
                found = connection.execute(_MOVES, (as_json([move_values(m) for m in moves]), batch.session))
                moved = {id for (id,) in found}
                refused.update((move.id, "not_owner") for move in moves if move.id not in moved)
            if changed := [(id,) for id in batch.standings if id not in refused]:
                connection.execute(_CHANGES, (now, as_json(changed)))
            for standing in batch.standings.values():
                if standing.admission and standing.id not in refused:
                    admit(connection, standing, now)
            self._rest(batch, refused)
            book(connection, batch, refused, now)
            room = room_left(connection, batch.starts) if limited and batch.starts else {}
            return Committed(now, refused=refused, room=room)

    def _rest(self, batch: Batch, refused: dict[str, Refusal]) -> None:
        connection = self._database.write_connection
        appends = [(a.execution, a.seq, a.count, a.body.decode()) for a in batch.appends if a.execution not in refused]
        if appends:
            connection.execute(_APPENDS, (as_json(appends),))
        for query, rows in rest_of(batch, refused):
            connection.executemany(query.replace("$", "?"), rows)
        withdraw(connection, [task for task in batch.withdrawn if task.execution not in refused], self._database.now())
        for row in batch.audit:
            if execution_of(row) not in refused:
                connection.execute(_AUDIT, values_of(row))

    async def written(self, appends: Sequence[Append]) -> list[bool]:
        query = "SELECT body FROM events WHERE execution = ? AND seq = ?"

        def work() -> list[bool]:
            with translated():
                found = [self._database.read_connection.execute(query, (a.execution, a.seq)).get for a in appends]
                return [body == append.body for body, append in zip(found, appends, strict=True)]

        return await self._database.in_reader(work)
