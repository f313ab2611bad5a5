"""SQLite: one file, one writer thread, WAL with `synchronous=FULL`: what was acknowledged survives loss of power.

apsw, because it brings its own SQLite: the one that Python is linked with may have the WAL-reset bug, which loses data.
All statements run in threads of their own, one connection each: writes, reads, and the renewals of the session.
"""

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Self, TypeVar

import apsw

from tenuto.errors import StorageError
from tenuto.storage.migrations import MIGRATIONS_TABLE, NO_SCHEMA, migrations, missing
from tenuto.storage.outbox import OutboxStore, SqlOutbox
from tenuto.storage.port import (
    SESSIONS_KEPT_MS,
    Append,
    Batch,
    Claim,
    Committed,
    ExecutionRow,
    Hints,
    Loaded,
    Notice,
    ProgressRow,
    Refusal,
    Renewal,
    Turn,
    plan_pairs,
    renewal_s,
)
from tenuto.storage.registry import Statement
from tenuto.storage.shared import queries
from tenuto.storage.shared.reads import SqlReading, loaded, row_of
from tenuto.storage.shared.rows import basis_values, execution_values, move_values, rest_of, values_of
from tenuto.storage.sqlite_files import Unchanged, check_writable, connect_to_read, opening
from tenuto.storage.sqlite_sql import INCARNATION, IS_LIVE, LIVE
from tenuto.storage.tasks import queues_text
from tenuto.values.wall_clock import WallClock
from tenuto.views.projections import execution_of

from .admissions import admit, count_in_flight, refused_starts, room_left
from .claims import claim_in_turn
from .file_watch import Watch
from .limits import SqliteLimits
from .plain_batch import APPENDS, MOVES, REFUSED, STARTS, Plain, as_json, commit_plain, install, plain
from .tasks import SqliteTasks, withdraw

T = TypeVar("T")

BUSY_MS = 10_000
MANY = 100
MOST_AHEAD_MS = 86_400_000  # a clock that was further ahead than that was wrong, and is not followed by new processes
GIVE_WAY_S = 0.001  # it is less, unless the writer has something else in hand

_APPENDS = APPENDS.format(rows="?")
_STARTS = STARTS.format(rows="?")
_REFUSED = REFUSED.format(rows="?", session="?")
_MOVES = MOVES.format(rows="?", session="?") + " RETURNING executions.id"
_LOAD = f"""
SELECT {", ".join(f"e.{name}" for name in ExecutionRow.__struct_fields__)}, s.seq, s.body
FROM executions e LEFT JOIN snapshots s ON ?2 AND s.execution = e.id
WHERE e.id IN (SELECT value FROM json_each(?1))"""
_LOAD_EVENTS = """
SELECT execution, body FROM (
    SELECT e.execution, e.seq, e.body FROM json_each(?1) w
    JOIN events e ON e.execution = w.value ->> 0 AND e.seq > w.value ->> 1
    UNION ALL
    SELECT e.execution, e.seq, e.body FROM json_each(?1) w
    JOIN events e ON e.execution = w.value ->> 0 AND e.seq = 1 WHERE w.value ->> 1 > 0
) ORDER BY execution, seq"""
_BY_KEYS = """
SELECT e.tenant, e.key, e.id, e.request_hash FROM json_each(?) s
JOIN executions e ON e.tenant = s.value ->> 0 AND e.key = s.value ->> 1"""
# One look into the index for each plan: what nobody here can run is not passed over, it is not met.
_DUE = """
SELECT e.id FROM json_each(?1) p JOIN executions e ON e.id IN (
    SELECT id FROM executions INDEXED BY executions_due
    WHERE owner IS NULL AND definition = p.value ->> 0 AND version = p.value ->> 1 AND priority = ?2 AND wake_at <= ?3
    ORDER BY wake_at LIMIT ?4)
ORDER BY e.wake_at LIMIT ?4"""
_LATEST = "SELECT max(max(started_at), max(renewed_at), coalesce(max(ended_at), 0)) FROM sessions"
_AUDIT = """
INSERT INTO audit (tenant, at, actor, action, object_type, object_id, reason) VALUES (?, ?, ?, ?, ?, ?, ?)"""


class SqliteStore(SqlReading):
    """Implements `store.Store` on a file. Two processes on one file are safe: every write begins IMMEDIATE."""

    _MARK = "?"
    _AMONG = "IN (SELECT value FROM json_each($1))"
    _PLANS = "(SELECT value ->> 0 AS definition, value ->> 1 AS version FROM json_each($1))"

    def __init__(
        self,
        path: str,
        *,
        synchronous: str = "FULL",
        clock: Callable[[], int] | None = None,
        read_only: bool = False,
    ) -> None:
        self.path = path
        self.read_only = read_only
        self.synchronous = synchronous
        self.now = clock or WallClock()
        self.limits = SqliteLimits(self._in_transaction, self.fetch, self.now)
        self.tasks = SqliteTasks(self._in_transaction, self.fetch, self.now)
        self._writer = ThreadPoolExecutor(1, "tenuto-sqlite-write")
        self._reader = ThreadPoolExecutor(1, "tenuto-sqlite-read")
        self._write: apsw.Connection
        self._read: apsw.Connection
        self._unchanged: Unchanged | None = None
        self._watch: Watch | None = None
        self._has_limits = False  # tenants have, as the last commit in parts saw it

    @property
    def outbox(self) -> OutboxStore:
        return SqlOutbox(self, skip_locked=False)

    def for_tenant(self, tenant: str | None) -> Self:
        return self

    # Connections ----------------------------------------------------------------------------------------------------

    async def open(self, *, migrate: bool) -> int:
        try:
            await self._in_writer(lambda: self._open(migrate=migrate))
        except BaseException:
            self._writer.shutdown()
            self._reader.shutdown()
            raise
        return self.now()

    def _open(self, *, migrate: bool) -> None:
        with translated(), opening(self.path, to_read=self.read_only):
            if self.read_only:
                self._open_to_read()
                return
            _keep_private(self.path)
            check_writable(self.path)
            self._write = self._connect()
            try:
                self._migrate(apply=migrate)
                self._reach_time()
                install(self._write)
                self._read = self._connect(read_only=True)
            except BaseException:
                self._write.close()
                raise

    def _open_to_read(self) -> None:
        """Neither connection can write: SQLite refuses statements that would."""
        self._unchanged = Unchanged(self.path)
        self._write, self._read = self._connect(read_only=True), self._connect(read_only=True)
        applied = dict(self._read.execute("SELECT number, checksum FROM tenuto_migrations"))
        if missing(migrations("sqlite"), applied):
            raise StorageError("the schema is out of date", code="old_schema", hint="run `tenuto migrate`")

    def _connect(self, *, read_only: bool = False) -> apsw.Connection:
        connection = connect_to_read(self.path) if read_only else apsw.Connection(self.path)
        connection.set_busy_timeout(BUSY_MS)
        if not read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self.synchronous}")
            connection.execute("PRAGMA wal_autocheckpoint = 4000")
        connection.execute("PRAGMA cache_size = -65536")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        return connection

    def _migrate(self, *, apply: bool) -> None:
        known = migrations("sqlite")
        connection = self._write
        has_table = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'tenuto_migrations'").fetchone()
        if not apply and has_table is None:
            raise StorageError("the database has no tenuto schema", code="no_schema", hint=NO_SCHEMA)
        with self._transaction():
            connection.execute(MIGRATIONS_TABLE)
            applied = dict(connection.execute("SELECT number, checksum FROM tenuto_migrations"))
            for migration in missing(known, applied):
                if not apply:
                    raise StorageError("the schema is out of date", code="old_schema", hint="run `tenuto migrate`")
                connection.execute(migration.sql)
                row = (migration.number, migration.name, migration.checksum, self.now())
                connection.execute("INSERT INTO tenuto_migrations VALUES (?, ?, ?, ?)", row)

    def _reach_time(self) -> None:
        """Goes on from the time that other processes had, if the machine's clock was set back since."""
        if isinstance(self.now, WallClock):
            latest = self._write.execute(_LATEST).get or 0
            if latest - self.now() <= MOST_AHEAD_MS:
                self.now.reach(latest)

    async def close(self) -> None:
        if self._watch is not None:
            await self._watch.close()
        # The reader first: only a connection that may write leaves no log behind when it is the last.
        await self._in_reader(self._read.close)
        await self._in_writer(self._close)
        self._writer.shutdown()
        self._reader.shutdown()
        if self._unchanged is not None:
            self._unchanged.check()

    def _close(self) -> None:
        with suppress(apsw.Error):  # others may be at work: the log is theirs now
            self._write.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._write.close()

    def listen(self, hear: Callable[[Hints], None]) -> None:
        self._watch = Watch(self.path, self._data_version, hear)

    def notify(self, hint: str) -> None:
        """Nothing to do: that something was written is seen by those who watch the file."""

    async def _data_version(self) -> int:
        def work() -> int:
            with translated():
                version: int = self._write.execute("PRAGMA data_version").get
                return version

        return await self._in_writer(work)

    async def _in_writer(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writer, work)

    async def _in_reader(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reader, work)

    async def _in_transaction(self, work: Callable[[apsw.Connection], T]) -> T:
        def write() -> T:
            with translated(), self._transaction():
                return work(self._write)

        return await self._in_writer(write)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        connection = self._write
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    # Writing --------------------------------------------------------------------------------------------------------

    async def commit(self, batch: Batch) -> Committed:
        with translated():
            rows = None if self._has_limits else plain(batch)
        begun = threading.Event()
        committed = asyncio.get_running_loop().run_in_executor(self._writer, self._commit, batch, rows, begun)
        if len(batch.appends) >= MANY:  # a loop with so much to tell would not give way by itself
            begun.wait(GIVE_WAY_S)
        return await committed

    def _commit(self, batch: Batch, rows: Plain | None, begun: threading.Event) -> Committed:
        begun.set()
        with translated():
            if rows is not None and commit_plain(self._write, rows):
                return Committed(self.now())
        return self._commit_in_parts(batch)

    def _commit_in_parts(self, batch: Batch) -> Committed:
        """Whatever it holds, with a verdict for each execution that is refused."""
        connection = self._write
        with translated(), self._transaction():
            now = self.now()
            if batch.session is not None and not self._is_live(batch.session):
                return Committed(now, fenced=True)
            limited = self._has_limits = bool(connection.execute("SELECT EXISTS (SELECT 1 FROM tenant_limits)").get)
            refused = refused_starts(connection, batch.starts, limited=limited)
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
            for standing in batch.standings.values():
                if standing.admission and standing.id not in refused:
                    admit(connection, standing, now)
            self._rest(batch, refused)
            room = room_left(connection, batch.starts) if limited and batch.starts else {}
            return Committed(now, refused=refused, room=room)

    def _is_live(self, session: str) -> bool:
        return self._write.execute(LIVE, (session,)).fetchone() is not None

    def _rest(self, batch: Batch, refused: dict[str, Refusal]) -> None:
        connection = self._write
        appends = [(a.execution, a.seq, a.count, a.body.decode()) for a in batch.appends if a.execution not in refused]
        if appends:
            connection.execute(_APPENDS, (as_json(appends),))
        for query, rows in rest_of(batch, refused):
            connection.executemany(query.replace("$", "?"), rows)
        withdraw(connection, [task for task in batch.withdrawn if task.execution not in refused], self.now())
        for row in batch.audit:
            if execution_of(row) not in refused:
                connection.execute(_AUDIT, values_of(row))

    # Sessions -------------------------------------------------------------------------------------------------------

    async def open_session(self, id: str, worker: str, build: str, lease_ms: int, queues: Sequence[str] | None) -> int:
        def work() -> int:
            with translated(), self._transaction():
                now = self.now()
                row = (id, worker, build, queues_text(queues), now, now + lease_ms)
                self._write.execute(
                    "INSERT INTO sessions (id, worker, build, queues, started_at, expires_at, incarnation) "
                    f"VALUES (?, ?, ?, ?, ?, ?, {INCARNATION})",
                    row,
                )
                return now

        return await self._in_writer(work)

    def keep_alive(self, id: str, lease_ms: int, tell: Callable[[Renewal], None], stop: threading.Event) -> None:
        connection = self._connect()
        query = (
            "UPDATE sessions SET expires_at = ?1 + ?2, renewed_at = ?1, renewals = renewals + 1 "
            f"WHERE id = ?3 AND {IS_LIVE} AND renewals >= ?4 RETURNING renewals"
        )
        known = 0  # how often it was renewed, as the last answer said
        while not stop.wait(renewal_s(lease_ms)):
            now, asked_at = self.now(), time.monotonic()
            try:
                row = connection.execute(query, (now, lease_ms, id, known)).fetchone()
            except apsw.Error:
                continue  # not renewed: the owner sees its lease run out by its own clock
            if row is not None:
                (known,) = row
            tell(Renewal(now, row is not None, asked_at))
        connection.close()

    async def end_session(self, id: str) -> None:
        def work() -> None:
            with translated(), self._transaction():
                self._end_sessions([id])

        await self._in_writer(work)

    async def reap(self, own: str = "") -> int:
        def work() -> int:
            with translated():
                query = (
                    "SELECT id FROM sessions WHERE ended_at IS NULL AND id <> ?2 "
                    f"AND (expires_at < ?1 OR incarnation <> {INCARNATION})"
                )
                if self._write.execute(query, (self.now(), own)).fetchone() is None:
                    return 0
                with self._transaction():
                    ids = [id for (id,) in self._write.execute(query, (self.now(), own))]
                    self._end_sessions(ids)
                    return len(ids)

        return await self._in_writer(work)

    def _end_sessions(self, ids: list[str]) -> None:
        """What they owned becomes nobody's, and due, with the end of the session: not before, and not later."""
        now = self.now()
        for id in ids:
            self._write.execute("UPDATE sessions SET ended_at = ? WHERE id = ? AND ended_at IS NULL", (now, id))
            query = "UPDATE executions SET owner = NULL, wake_at = min(coalesce(wake_at, ?1), ?1) WHERE owner = ?2"
            self._write.execute(query, (now, id))
            self._write.execute("DELETE FROM limit_holders WHERE session = ?", (id,))
        self._write.execute("DELETE FROM sessions WHERE ended_at < ?", (now - SESSIONS_KEPT_MS,))

    async def mark_restored(self) -> int:
        query = "UPDATE incarnation SET number = max(number + 1, $1) RETURNING number"
        ((number,),) = await self.run(query, (self.now(),))
        return int(number)

    async def claim(self, session: str, plans: Sequence[str], limit: int) -> list[Claim]:
        return await self._in_writer(lambda: self._claim(session, plans, limit, None))

    async def claim_in_turn(self, session: str, plans: Sequence[str], turn: Turn) -> tuple[list[Claim], str]:
        return await self._in_transaction(lambda db: claim_in_turn(db, session, plans, turn, self.now()))

    async def claim_one(self, session: str, execution: str) -> Claim | None:
        """Takes this execution if nobody holds it: to decide a fact for it, and let go of it again."""
        claims = await self._in_writer(lambda: self._claim(session, (), 1, execution))
        return claims[0] if claims else None

    def _claim(self, session: str, plans: Sequence[str], limit: int, execution: str | None) -> list[Claim]:
        with translated():
            now = self.now()
            if not self._candidates(now, plans, 1, execution):
                return []
            with self._transaction():
                if not self._is_live(session):
                    return []
                query = (
                    "UPDATE executions SET owner = ?, epoch = epoch + 1, wake_at = NULL, parked = '' "
                    "WHERE id IN (SELECT value FROM json_each(?)) RETURNING id, epoch, definition, version"
                )
                ids = self._candidates(now, plans, limit, execution)
                return [Claim(*row) for row in self._write.execute(query, (session, json.dumps(ids)))]

    def _candidates(self, now: int, plans: Sequence[str], limit: int, execution: str | None) -> list[str]:
        if execution is not None:
            query = "SELECT id FROM executions WHERE id = ? AND owner IS NULL"
            return [id for (id,) in self._write.execute(query, (execution,))]
        wanted = json.dumps(plan_pairs(plans))
        found: list[str] = []
        for priority in (1, 0):
            values = (wanted, priority, now, limit - len(found))
            found.extend(id for (id,) in self._write.execute(_DUE, values))
        return found

    async def keep_progress(self, rows: Sequence[ProgressRow], gone: Sequence[tuple[str, str]]) -> None:
        def work() -> None:
            with translated(), self._transaction():
                query = "INSERT OR REPLACE INTO progress (execution, path, body) VALUES (?, ?, ?)"
                self._write.executemany(query, [(row.execution, row.path, row.body) for row in rows])
                self._write.executemany("DELETE FROM progress WHERE execution = ? AND path = ?", gone)

        await self._in_writer(work)

    # Reading --------------------------------------------------------------------------------------------------------

    async def load(self, ids: Sequence[str], *, short: bool = False) -> list[Loaded]:
        """The rows are asked for by the snapshot that was found, whatever comes between the two queries."""

        def work() -> list[Loaded]:
            with translated():
                rows = list(self._read.execute(_LOAD, (json.dumps(list(ids)), short)))
                bodies: dict[str, list[bytes]] = {row[0]: [] for row in rows}
                after = json.dumps([(row[0], row[-2] or 0) for row in rows])
                for execution, body in self._read.execute(_LOAD_EVENTS, (after,)):
                    bodies[execution].append(body)
                return [loaded(row, bodies[row[0]]) for row in rows]

        return await self._in_reader(work)

    async def holding(self, id: str, seqs: Sequence[int]) -> list[bytes]:
        query = (
            "SELECT body FROM events WHERE execution = ?1 AND seq IN (SELECT (SELECT max(seq) FROM events "
            "WHERE execution = ?1 AND seq <= value) FROM json_each(?2))"
        )
        return [body for (body,) in await self.fetch(query, (id, json.dumps(list(seqs))))]

    async def tails(self, after: Mapping[str, int]) -> dict[str, list[bytes]]:
        query = """
            SELECT execution, body FROM json_each(?) JOIN events ON execution = key AND seq > value
            ORDER BY execution, seq"""
        found: dict[str, list[bytes]] = {}
        for id, body in await self.fetch(query, (json.dumps(dict(after)),)):
            found.setdefault(id, []).append(body)
        return found

    async def by_keys(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
        found = await self.fetch(_BY_KEYS, (as_json(list(keys)),))
        return {(tenant, key): (id, digest) for tenant, key, id, digest in found}

    # Mail -----------------------------------------------------------------------------------------------------------

    async def post(self, id: str, execution: str, body: bytes) -> tuple[int, str | None] | None:
        def work() -> tuple[int, str | None] | None:
            with translated(), self._transaction():
                now = self.now()
                query = "SELECT owner FROM executions WHERE id = ?"
                row = self._write.execute(query, (execution,)).fetchone()
                if row is None:
                    return None
                query = "INSERT OR IGNORE INTO mailbox (id, execution, body, received_at) VALUES (?, ?, ?, ?)"
                self._write.execute(query, (id, execution, body, now))
                self._write.execute("UPDATE executions SET wake_at = ? WHERE id = ?", (now, execution))
                return now, row[0]

        return await self._in_writer(work)

    # Definitions and lists ------------------------------------------------------------------------------------------

    def _listed(self, values: Sequence[str]) -> object:
        return json.dumps(list(values))

    def _clock(self) -> str:
        return str(self.now())

    async def fetch(self, query: str, values: Sequence[object]) -> list[Any]:
        def work() -> list[Any]:
            with translated():
                return list(self._read.execute(query.replace("$", "?"), tuple(values)))

        return await self._in_reader(work)

    async def run(self, query: str, values: Sequence[object]) -> list[Any]:
        def work() -> list[Any]:
            with translated():
                return list(self._write.execute(query.replace("$", "?"), tuple(values)))

        return await self._in_writer(work)

    async def run_all(self, statements: Sequence[Statement]) -> bool:
        def work() -> bool:
            with translated():
                return all_or_none(self._write, statements)

        return await self._in_writer(work)

    async def moved(self, known: Sequence[tuple[str, str]]) -> list[str]:
        query = (
            "SELECT k.value ->> 0 FROM json_each(?) k LEFT JOIN executions e ON e.id = k.value ->> 0 "
            "WHERE e.status IS NOT k.value ->> 1"
        )
        return [id for (id,) in await self.fetch(query, (as_json(known),))]

    async def written(self, appends: Sequence[Append]) -> list[bool]:
        query = "SELECT body FROM events WHERE execution = ? AND seq = ?"

        def work() -> list[bool]:
            with translated():
                found = [self._read.execute(query, (a.execution, a.seq)).get for a in appends]
                return [body == append.body for body, append in zip(found, appends, strict=True)]

        return await self._in_reader(work)

    async def blocked(self, batch: Batch) -> Set[str]:
        """None: here one writer waits for another as a whole, and for as long as it takes."""
        return frozenset()

    async def park(
        self, session: str | None, execution: str, why: str, again_ms: int | None, epoch: int | None = None
    ) -> None:
        query = (
            "UPDATE executions SET parked = ?, owner = NULL, wake_at = ? "
            "WHERE id = ? AND (owner IS NULL OR owner = ?) AND epoch = coalesce(?, epoch)"
        )

        def work() -> None:
            with translated():
                again_at = None if again_ms is None else self.now() + again_ms
                self._write.execute(query, (why, again_at, execution, session, epoch))

        await self._in_writer(work)

    # How it stands --------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        applied = dict(await self.fetch("SELECT number, checksum FROM tenuto_migrations", ()))
        if missing(migrations("sqlite"), applied):
            raise StorageError("the schema is out of date", code="old_schema", hint="run `tenuto migrate`")

    # Notifications --------------------------------------------------------------------------------------------------

    async def begin_notice(self, notice: Notice) -> Notice:
        def work() -> Notice:
            with translated(), self._transaction():
                query = (
                    "INSERT OR IGNORE INTO sent_notifications (key, tenant, execution, path, channel, begun_at) "
                    "VALUES (?, ?, ?, ?, ?, ?)"
                )
                self._write.execute(query, (*values_of(notice)[:5], self.now()))
                query = f"SELECT {queries.NOTICE_COLUMNS} FROM sent_notifications WHERE key = ?"
                return row_of(Notice, next(iter(self._write.execute(query, (notice.key,)))))

        return await self._in_writer(work)

    async def end_notice(self, key: str, receipt: bytes) -> None:
        query = "UPDATE sent_notifications SET sent_at = ?, receipt = ? WHERE key = ? AND receipt IS NULL"

        def work() -> None:
            with translated(), self._transaction():
                self._write.execute(query, (self.now(), receipt, key))

        await self._in_writer(work)


def all_or_none(connection: apsw.Connection, statements: Sequence[Statement]) -> bool:
    """All in one transaction, unless the first returns no row."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        first, *rest = statements
        if not list(connection.execute(first[0].replace("$", "?"), tuple(first[1]))):
            connection.execute("ROLLBACK")
            return False
        for query, values in rest:
            connection.execute(query.replace("$", "?"), tuple(values))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return True


@contextmanager
def translated() -> Iterator[None]:
    """What the database says, in the words of `tenuto.errors`."""
    try:
        yield
    except apsw.CantOpenError as error:
        raise StorageError(
            "the database file cannot be opened", code="unreachable", hint="check its path and permissions"
        ) from error
    except apsw.NotADBError as error:
        raise StorageError(
            "the file is not a SQLite database", code="not_a_database", hint="name another file, or move this one away"
        ) from error
    except apsw.ReadOnlyError as error:
        raise StorageError("the database is read-only", code="read_only", hint="make the file writable") from error
    except (apsw.FullError, apsw.IOError) as error:
        raise StorageError(
            "the database cannot be written: the disk is full or failing", code="full", hint="free space and try again"
        ) from error
    except (apsw.ConstraintError, apsw.TooBigError, apsw.MismatchError, UnicodeEncodeError) as error:
        raise StorageError("the database refused the data of a batch", code="bad_data") from error
    except apsw.BusyError as error:
        raise StorageError(
            "the database is locked by another program", code="busy", hint="end long transactions on this file"
        ) from error
    except apsw.Error as error:
        raise StorageError(f"SQLite answered with an error ({type(error).__name__})", code="failed") from error


def _keep_private(path: str) -> None:
    """Makes the file, if there is none, for its owner alone; SQLite gives the log beside it the same mode.

    One that is there is not opened here: to close it would drop the locks that others in this process have on it.
    """
    with suppress(OSError):  # it is there; or SQLite tells better why it cannot be made
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
