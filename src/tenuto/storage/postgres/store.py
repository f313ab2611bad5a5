"""PostgreSQL 15 and newer: many workers on one database.

One connection commits, so that batches follow one another; a pool serves everything else. A batch without rare parts
is a single statement, and therefore a single round trip: it locks the session's row and those of tenants with a limit,
inserts as many as they have room for, and says what it wrote.
"""

import asyncio
import copy
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import msgspec

from tenuto.errors import StorageError
from tenuto.storage.migrations import MIGRATIONS_TABLE, NO_SCHEMA, Migration, migrations, missing
from tenuto.storage.outbox import OutboxStore, SqlOutbox
from tenuto.storage.port import (
    SESSIONS_KEPT_MS,
    Append,
    Basis,
    Batch,
    Claim,
    Committed,
    ExecutionRow,
    Hints,
    Loaded,
    NewExecution,
    Notice,
    ProgressRow,
    Refusal,
    Renewal,
    Turn,
    renewal_s,
)
from tenuto.storage.registry import Statement
from tenuto.storage.shared.reads import SqlReading, loaded
from tenuto.storage.shared.rows import basis_values, execution_values, move_values, rest_of, values_of
from tenuto.storage.tasks import queues_text
from tenuto.values.jitter import spread
from tenuto.views.projections import AuditRow, execution_of

from .admissions import admit, known_keys, refused_starts
from .claims import claim_in_turn
from .limits import PostgresLimits
from .lock_conflicts import blocked
from .notifications import Notifier
from .privileges import check_rights
from .row_security import HAS_WALL, NO_WALL, READING, Wall, Walled, leave_as_it_is
from .statements import INCARNATION, IS_LIVE, LIVE, NOW
from .tasks import PostgresTasks, withdraw

COLUMNS = ", ".join(ExecutionRow.__struct_fields__)
MIGRATION_LOCK = 7_311_004_225
CLOSE_SECONDS = 5.0
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
LOCK_MS = 300  # so long a commit waits for what somebody else's transaction holds
MIGRATE_SECONDS = 1.0
# What is committed, claimed and loaded is looked up in indexes, whatever the statistics say of tables that have just
# grown: a hash join over all executions or events for each batch is what the planner would choose instead.
_BY_INDEX = {"enable_hashjoin": "off", "enable_mergejoin": "off", "enable_seqscan": "off"}
# A bitmap would look at every note of `tenant_changes` that was counted and is not vacuumed yet; an index forgets them.
_COMMITTING = {**_BY_INDEX, "enable_bitmapscan": "off", "plan_cache_mode": "force_generic_plan"}
# Where a page may be read from several indexes, the one that fits best, and not the one whose rows lie side by side.
_BY_ROW = {**_BY_INDEX, "random_page_cost": "1.1"}
_BOUNDED = {"statement_timeout": f"{ANSWER_SECONDS:.0f}s"}  # nobody waits longer for an answer
# A subquery is asked once, and may be looked up in an index; the clock itself is read anew for every row.
_DUE = f"e.owner IS NULL AND e.wake_at <= (SELECT {NOW})"
_TAKE = "UPDATE executions e SET owner = $1, epoch = epoch + 1, wake_at = NULL, parked = ''"
_TAKEN = "RETURNING e.id, e.epoch, e.definition, e.version"

# The claimant's session is locked as in a commit: whoever ends it meanwhile waits, and sees what it has claimed.
# More are looked at than are wanted: some may just be claimed by others, and are passed over.
_CLAIM = f"""
WITH me AS ({LIVE}),
plans AS MATERIALIZED (
    SELECT substring(plan FROM '^(.*)/') AS definition, substring(plan FROM '[0-9]+$')::int AS version
    FROM unnest($2::text[]) AS plan
),
candidates AS MATERIALIZED (
    SELECT found.id, priority, found.wake_at FROM me, plans, (VALUES (1), (0)) AS p (priority), LATERAL (
        SELECT e.id, e.wake_at FROM executions e
        WHERE {_DUE} AND e.definition = plans.definition AND e.version = plans.version AND e.priority = p.priority
        ORDER BY e.wake_at LIMIT 4 * $3 + 16
    ) found ORDER BY priority DESC, wake_at LIMIT 4 * $3 + 16
),
free AS (
    SELECT e.id FROM candidates c JOIN executions e ON e.id = c.id WHERE {_DUE}
    ORDER BY c.priority DESC, c.wake_at LIMIT $3 FOR UPDATE OF e SKIP LOCKED
)
{_TAKE} FROM free WHERE e.id = free.id {_TAKEN}"""
_CLAIM_ONE = f"WITH me AS ({LIVE}) {_TAKE} FROM me WHERE e.id = $2 AND e.owner IS NULL {_TAKEN}"

_LOAD = f"""
SELECT {", ".join(f"e.{name}" for name in ExecutionRow.__struct_fields__)}, s.seq AS snapshot_seq, s.body AS snapshot
FROM executions e LEFT JOIN snapshots s ON $2 AND s.execution = e.id WHERE e.id = ANY($1)"""
_LOAD_WHOLE = f"""
SELECT {", ".join(f"e.{name}" for name in ExecutionRow.__struct_fields__)},
    (SELECT array_agg(body ORDER BY seq) FROM events WHERE execution = e.id)
FROM executions e WHERE e.id = ANY($1)"""
_LOAD_EVENTS = """
SELECT execution, body FROM (
    SELECT e.execution, e.seq, e.body FROM unnest($1::text[], $2::bigint[]) AS w (execution, after)
    JOIN events e ON e.execution = w.execution AND e.seq > w.after
    UNION ALL
    SELECT e.execution, e.seq, e.body FROM unnest($1::text[], $2::bigint[]) AS w (execution, after)
    JOIN events e ON e.execution = w.execution AND e.seq = 1 WHERE w.after > 0
) found ORDER BY execution, seq"""

_BY_KEYS = """
SELECT e.tenant, e.key, e.id, e.request_hash FROM unnest($1::text[], $2::text[]) AS s (tenant, key)
JOIN executions e ON e.tenant = s.tenant AND e.key = s.key"""

# fmt: off
_STARTS = [
    "text", "text", "text", "int", "text", "int", "bigint", "bigint", "text", "bigint", "int", "text", "text", "text",
    "text", "text", "text", "bool", "text", "text", "bigint", "bigint", "int",
]
# fmt: on
_MOVE = "id, status, run, seq, wake_at, release, cancel_requested, error_class, parked, ended_at, epoch, basis"
_MOVES = ["text", "text", "int", "bigint", "bigint", "bool", "bool", "text", "text", "bigint", "bigint", "int"]
_APPEND = "execution, seq, count, body, needs, epoch, basis"
_APPENDS = ["text", "int", "int", "bytea", "text", "int", "int"]


def _rows(first: int, types: list[str], names: str) -> str:
    """Rows from columns, the first of which is whole: of another, one value may stand for all (see `_columns`)."""
    arrays = [f"${first + n}::{kind}[]" for n, kind in enumerate(types)]
    key, *rest = names.split(", ")
    told = [
        f"CASE WHEN cardinality({array}) = 1 THEN ({array})[1] ELSE u.{name} END AS {name}"
        for array, name in zip(arrays[1:], rest, strict=True)
    ]
    columns = f"unnest({', '.join(arrays)}) WITH ORDINALITY AS u ({names}, position)"
    return f"(SELECT u.{key}, {', '.join(told)}, u.position FROM {columns})"


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[Sequence[Any]]:
    """Rows turned on their side, for `_rows`. What is the same in all of them is sent once: the driver looks at each
    value of an array several times, and most of a row is as in the others."""
    if not rows:
        return [()] * width
    key, *rest = zip(*rows, strict=True)
    return [key, *(column[:1] if column.count(column[0]) == len(rows) else column for column in rest)]


_MOVES_AT = 2 + len(_STARTS)
_APPENDS_AT = _MOVES_AT + len(_MOVES)
_TENANTS_AT = _APPENDS_AT + len(_APPENDS)
# The last entry that an execution has. What was decided on another one is not written.
_LAST = "(SELECT t.seq + t.count - 1 FROM events t WHERE t.execution = {} ORDER BY t.seq DESC LIMIT 1)"
_COMMIT = f"""
WITH live AS ({LIVE}),
limited AS MATERIALIZED ( -- until this is committed nobody else starts anything of these tenants
    SELECT l.tenant, l.max_in_flight - l.in_flight AS room FROM live, tenant_limits l
    WHERE l.tenant = ANY(${_TENANTS_AT}) ORDER BY l.tenant FOR UPDATE OF l
),
noted AS (
    DELETE FROM tenant_changes c USING limited l WHERE c.tenant = l.tenant RETURNING c.tenant, c.change
),
lease AS MATERIALIZED ( -- whatever is written comes after it, and so after the locks
    SELECT (SELECT jsonb_object_agg(tenant, room) FROM (
        SELECT tenant, sum(room) AS room FROM (
            SELECT tenant, room FROM limited UNION ALL SELECT tenant, -change FROM noted
        ) parts GROUP BY tenant
    ) sums) AS room FROM live
),
new AS (
    INSERT INTO executions ({COLUMNS})
    SELECT {", ".join(f"s.{name}" for name in ExecutionRow.__struct_fields__)}
    FROM lease, {_rows(2, _STARTS, f"{COLUMNS}, place")} AS s
    WHERE s.place <= coalesce((lease.room ->> s.tenant)::bigint, s.place)
    ON CONFLICT DO NOTHING
    RETURNING id, tenant, ended_at
),
moved AS (
    UPDATE executions e SET status = p.status, run = p.run, seq = p.seq,
        wake_at = CASE WHEN p.release THEN least(e.wake_at, p.wake_at)
            ELSE e.wake_at END,
        owner = CASE WHEN p.release THEN NULL ELSE e.owner END, cancel_requested = p.cancel_requested,
        error_class = p.error_class, parked = p.parked, ended_at = p.ended_at
    FROM lease, {_rows(_MOVES_AT, _MOVES, _MOVE)} AS p
    WHERE e.id = p.id AND e.epoch = p.epoch
        AND e.owner IS NOT DISTINCT FROM $1 -- not "=": the primary key is the index to use
        AND (p.basis IS NULL OR p.basis = {_LAST.format("p.id")})
    RETURNING e.id, e.tenant, e.ended_at
),
changed AS ( -- executions as they were: an execution counts from its start, or its next run, to its end
    SELECT tenant, sum(change)::int AS change FROM (
        SELECT tenant, 1 AS change FROM new WHERE ended_at IS NULL AND EXISTS (SELECT 1 FROM tenant_limits)
        UNION ALL
        SELECT m.tenant, CASE WHEN m.ended_at IS NULL THEN 1 ELSE -1 END
        FROM moved m JOIN executions e ON e.id = m.id
        WHERE EXISTS (SELECT 1 FROM tenant_limits) AND (m.ended_at IS NULL) <> (e.ended_at IS NULL)
    ) changes GROUP BY tenant
),
counted AS ( -- in rows that are locked
    UPDATE tenant_limits l SET in_flight = greatest(l.in_flight + c.change, 0)
    FROM lease, (
        SELECT tenant, sum(change)::int AS change
        FROM (SELECT tenant, change FROM changed UNION ALL SELECT tenant, change FROM noted) both_kinds GROUP BY tenant
    ) c WHERE l.tenant = c.tenant AND lease.room ? c.tenant AND c.change <> 0
),
uncounted AS (
    INSERT INTO tenant_changes (tenant, change) SELECT c.tenant, c.change
    FROM lease, changed c JOIN tenant_limits l ON l.tenant = c.tenant
    WHERE (lease.room ? c.tenant) IS NOT TRUE AND c.change <> 0
),
written AS (
    INSERT INTO events (execution, seq, count, body)
    SELECT a.execution, a.seq, a.count, a.body
    FROM lease, {_rows(_APPENDS_AT, _APPENDS, _APPEND)} AS a
    WHERE CASE a.needs WHEN 'start' THEN a.execution IN (SELECT id FROM new)
        WHEN 'move' THEN a.execution IN (SELECT id FROM moved)
        ELSE a.basis IS NULL OR a.basis = {_LAST.format("a.execution")} AND a.epoch = (
            SELECT e.epoch FROM executions e WHERE e.id = a.execution AND e.owner IS NOT DISTINCT FROM $1) END
    RETURNING execution
)
SELECT {NOW} AS now, EXISTS (SELECT 1 FROM lease) AS live, (SELECT count(*) FROM written) AS written,
    ARRAY(SELECT id FROM new) AS started, ARRAY(SELECT id FROM moved) AS moved,
    (SELECT room FROM lease) AS room, (
        SELECT jsonb_object_agg(c.tenant, c.change) FROM lease, changed c WHERE lease.room ? c.tenant
    ) AS changed"""

# The same, when somebody did something that is written into the audit.
_NOTED = ", ".join(AuditRow.__struct_fields__)
_AUDIT = ["text", "bigint", "text", "text", "text", "text", "text", "text", "text"]
_COMMIT_AUDITED = _COMMIT.replace(
    f"SELECT {NOW} AS now",
    f""", audited AS (
    INSERT INTO audit ({_NOTED})
    SELECT {", ".join(f"n.{name}" for name in AuditRow.__struct_fields__)}
    FROM lease, {_rows(_TENANTS_AT + 1, _AUDIT, f"{_NOTED}, execution, needs")} AS n
    WHERE CASE n.needs WHEN 'start' THEN n.execution IN (SELECT id FROM new)
        WHEN 'move' THEN n.execution IN (SELECT id FROM moved)
        WHEN 'append' THEN n.execution IN (SELECT execution FROM written) ELSE true END
    ORDER BY n.position
)
SELECT {NOW} AS now""",
)


# Why appends or moves of these executions were not made: of those that have them, in which epoch.
_OWNED = "SELECT id, epoch FROM executions WHERE id = ANY($1) AND owner IS NOT DISTINCT FROM $2"
_NOT_WRITTEN = """
SELECT a.execution FROM unnest($1::text[], $2::int[], $3::bytea[]) AS a (execution, seq, body)
LEFT JOIN events e ON e.execution = a.execution AND e.seq = a.seq AND e.body = a.body WHERE e.seq IS NULL"""
_NOT_BASED = f"""
SELECT b.execution FROM unnest($1::text[], $2::int[], $3::int[]) AS b (execution, epoch, seq)
LEFT JOIN executions e ON e.id = b.execution AND e.epoch = b.epoch AND e.owner IS NOT DISTINCT FROM $4
WHERE e.id IS NULL OR b.seq IS DISTINCT FROM {_LAST.format("b.execution")}"""

logger = logging.getLogger("tenuto.storage")

_OWNS = (
    "This process could rewrite what happened: it has the rights of the schema's owner. See `tenuto migrate --role`."
)
_MIGRATION_WAITS = "The schema is not up to date yet: somebody's transaction holds a table. It is tried again."
# Of a process that is frozen, or whose host is gone: the server lets go of what its transaction holds.
_SHORT_TRANSACTIONS = {"idle_in_transaction_session_timeout": "5s"}


async def _durably(connection: asyncpg.Connection) -> dict[str, str]:
    """What is answered is on disk, also where the server or the role says `off`. Only the URL may say so."""
    query = "SELECT setting, source FROM pg_settings WHERE name = 'synchronous_commit'"
    row = await connection.fetchrow(query)
    is_weak = row is not None and row["setting"] == "off" and row["source"] != "client"
    return {"synchronous_commit": "on"} if is_weak else {}


async def _applied(connection: asyncpg.Connection) -> dict[int, str]:
    rows = await connection.fetch("SELECT number, checksum FROM tenuto_migrations")
    return {row["number"]: row["checksum"] for row in rows}


class PostgresStore(SqlReading):
    """Implements `store.Store`."""

    _MARK = "$"
    _AMONG = "= ANY($1)"
    _PLANS = "(SELECT p ->> 0 AS definition, (p ->> 1)::int AS version FROM jsonb_array_elements($1::jsonb) AS p)"

    def __init__(self, dsn: str, *, read_only: bool = False) -> None:
        self.dsn = dsn
        self._read_only = read_only
        self.limits = PostgresLimits(self._lend)
        self.tasks = PostgresTasks(self._lend)
        self._pool: asyncpg.Pool
        self._walled: asyncpg.Pool
        self._committer: asyncpg.Connection
        self._notifier: Notifier | None = None
        self._settings: dict[str, str] = {}
        self._has_wall = False

    @property
    def has_wall(self) -> bool:
        return self._has_wall

    @property
    def outbox(self) -> OutboxStore:
        return SqlOutbox(self, skip_locked=True)

    def for_tenant(self, tenant: str | None) -> "PostgresStore":
        if tenant is None or not self._has_wall:
            return self
        other = copy.copy(self)
        other._pool = Wall(self._walled, tenant)  # type: ignore[assignment]  # all that reading needs of a pool
        return other

    # Connections ----------------------------------------------------------------------------------------------------

    async def open(self, *, migrate: bool) -> int:
        async with translated():
            connection = await asyncpg.connect(self.dsn, timeout=CONNECT_SECONDS, server_settings=_SHORT_TRANSACTIONS)
            try:
                await self._migrate(connection, apply=migrate)
                self._settings = {**_SHORT_TRANSACTIONS, **await _durably(connection)}
                if self._read_only:
                    self._settings["default_transaction_read_only"] = "on"
            finally:
                await connection.close()
            self._committer = await self._connect_committer()
            try:
                self._pool = await self._make_pool(min_size=1)
                self._walled = await self._make_pool(min_size=0, connection_class=Walled, settings=READING)
                try:
                    return await self._look_round()
                except BaseException:
                    self._pool.terminate()
                    raise
            except BaseException:
                self._committer.terminate()
                raise
        raise AssertionError("translated() does not swallow")

    async def _make_pool(
        self,
        min_size: int,
        connection_class: type[asyncpg.Connection] = asyncpg.Connection,
        settings: Mapping[str, str] = {},
    ) -> asyncpg.Pool:
        return await asyncpg.create_pool(
            self.dsn,
            min_size=min_size,
            max_size=8,
            connection_class=connection_class,
            timeout=CONNECT_SECONDS,
            command_timeout=ANSWER_SECONDS,
            server_settings={**_BY_ROW, **_BOUNDED, **self._settings, **settings},
            reset=leave_as_it_is,
        )

    async def _look_round(self) -> int:
        if await check_rights(self._committer):
            logger.info(_OWNS, extra={"action": "runs_as_owner"})
        self._has_wall = await self._committer.fetchval(HAS_WALL)
        if not self._has_wall:
            logger.warning(NO_WALL, extra={"action": "no_second_wall"})
        now: int = await self._committer.fetchval(f"SELECT {NOW}")
        return now

    async def _connect_committer(self) -> asyncpg.Connection:
        connection = await self._connect()
        for setting, value in {**_COMMITTING, "lock_timeout": LOCK_MS}.items():
            await connection.execute(f"SET {setting} = {value}")
        return connection

    async def _connect(self) -> asyncpg.Connection:
        """A connection that gives up on a server which no longer answers: TCP alone would wait for hours."""
        return await asyncpg.connect(
            self.dsn, timeout=CONNECT_SECONDS, command_timeout=ANSWER_SECONDS, server_settings=self._settings
        )

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[Any]:
        async with translated(), self._pool.acquire() as connection:
            yield connection

    async def _migrate(self, connection: asyncpg.Connection, *, apply: bool) -> None:
        known = migrations("postgres")
        has_table = await connection.fetchval("SELECT to_regclass('tenuto_migrations') IS NOT NULL")
        if not apply and not has_table:
            raise StorageError("the database has no tenuto schema", code="no_schema", hint=NO_SCHEMA)
        if has_table and not missing(known, await _applied(connection)):
            return  # as nearly always: nobody waits for anybody
        if not apply:
            raise StorageError("the schema is out of date", code="old_schema", hint="run `tenuto migrate`")
        try:
            while not await _migrated(connection, known):
                logger.warning(_MIGRATION_WAITS, extra={"action": "migration_waits"})
                await asyncio.sleep(spread(MIGRATE_SECONDS))
        except (asyncpg.InsufficientPrivilegeError, asyncpg.InvalidSchemaNameError):
            raise StorageError(
                f"the {'schema is out of date' if has_table else 'database has no tenuto schema'}, "
                "and this user may not change that",
                code="old_schema" if has_table else "no_schema",
                hint="run `tenuto migrate` as the owner of the schema",
            ) from None

    async def close(self) -> None:
        if self._notifier is not None:
            await self._notifier.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._pool.close()
                await self._walled.close()
                await self._committer.close()
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
            self._pool.terminate()
            self._walled.terminate()
            self._committer.terminate()

    def listen(self, hear: Callable[[Hints], None]) -> None:
        self._notifier = Notifier(self._connect, hear)

    def notify(self, hint: str) -> None:
        if self._notifier is not None:
            self._notifier.notify(hint)

    # Writing --------------------------------------------------------------------------------------------------------

    async def commit(self, batch: Batch) -> Committed:
        async with translated():
            if self._committer.is_closed():
                self._committer = await self._connect_committer()
            try:
                return await self._commit(batch)
            except asyncpg.PostgresError:
                raise
            except BaseException:
                self._committer.terminate()  # it may be in the middle of something
                raise
        raise AssertionError("translated() does not swallow")

    async def _commit(self, batch: Batch) -> Committed:
        if _is_plain(batch):
            return await self._write_all(batch, {})
        async with self._committer.transaction():
            refused = await refused_starts(self._committer, batch)
            committed = await self._write_all(batch, {**refused, **await self._refused_extras(batch)})
            if not committed.fenced:
                await self._rest(batch, committed.refused)
            return committed

    async def _write_all(self, batch: Batch, refused: dict[str, Refusal]) -> Committed:
        """Those for whom there was no room are looked at again: their keys may be known, or known keys took up room."""
        committed = await self._write(batch, refused)
        full = [start for start in batch.starts if committed.refused.get(start.id) == "tenant_limit"]
        known = await known_keys(self._committer, full) if full else ()
        for start in full:
            if (start.tenant, start.key) in known:
                committed.refused[start.id] = "duplicate_key"
        again = [s for s in full if committed.room[s.tenant] > 0 and committed.refused[s.id] == "tenant_limit"]
        if not again:
            return committed
        ids = {start.id for start in again}
        rest = await self._write(
            Batch(
                session=batch.session,
                starts=again,
                standings={id: batch.standings[id] for id in ids},
                appends=[append for append in batch.appends if append.execution in ids],
                audit=[row for row in batch.audit if execution_of(row) in ids],
            ),
            {},
        )
        others = {id: why for id, why in committed.refused.items() if id not in ids}
        if rest.fenced:  # the session ended in between: the first part is written all the same
            return Committed(rest.now, refused={**others, **dict.fromkeys(ids, "not_owner")}, room=committed.room)
        return Committed(rest.now, refused={**others, **rest.refused}, room={**committed.room, **rest.room})

    async def _write(self, batch: Batch, refused: dict[str, Refusal]) -> Committed:
        session = batch.session
        starts = [start for start in batch.starts if start.id not in refused]
        places = _places(starts)
        moves = [p for p in batch.standings.values() if p.id not in places and p.id not in refused]
        appends = [a for a in batch.appends if a.execution not in refused]
        needs = {
            **{append.execution: "append" for append in appends},
            **dict.fromkeys(places, "start"),
            **{move.id: "move" for move in moves},
        }
        bases = batch.bases
        audit = [row for row in batch.audit if execution_of(row) not in refused]
        noted = [(*values_of(row), execution := execution_of(row), needs.get(execution, "")) for row in audit]
        row = await self._committer.fetchrow(
            _COMMIT_AUDITED if audit else _COMMIT,
            session,
            *_columns([(*execution_values(s, batch.standings[s.id]), places[s.id]) for s in starts], len(_STARTS)),
            *_columns([(*move_values(move), _stated(bases.get(move.id))[1]) for move in moves], len(_MOVES)),
            *_columns(
                [
                    (a.execution, a.seq, a.count, a.body, needs[a.execution], *_stated(bases.get(a.execution)))
                    for a in appends
                ],
                len(_APPENDS),
            ),
            list({start.tenant for start in starts}),
            *(_columns(noted, len(_AUDIT)) if audit else ()),
        )
        assert row is not None
        if not row["live"]:
            return Committed(row["now"], fenced=True)
        room = _counts(row["room"])
        result = dict(refused)
        if len(row["started"]) < len(starts):
            written = set(row["started"])
            for start in starts:
                if start.id not in written:
                    place = places[start.id]
                    result[start.id] = "tenant_limit" if place > room.get(start.tenant, place) else "duplicate_key"
        if len(row["moved"]) < len(moves):
            written = set(row["moved"])
            result.update(await self._why_refused(batch, [move.id for move in moves if move.id not in written]))
        plain = [append for append in appends if append.execution not in result]
        if row["written"] < len(plain):
            columns = zip(*((a.execution, a.seq, a.body) for a in plain), strict=True)
            missing = await self._committer.fetch(_NOT_WRITTEN, *map(list, columns))
            result.update(await self._why_refused(batch, [execution for (execution,) in missing]))
        changed = _counts(row["changed"]) if room else {}
        return Committed(row["now"], refused=result, room={t: left - changed.get(t, 0) for t, left in room.items()})

    async def _refused_extras(self, batch: Batch) -> dict[str, Refusal]:
        """Of executions for which only rare parts are written, those that were decided on something else."""
        others = {*batch.standings, *(append.execution for append in batch.appends)}
        bases = [row for row in basis_values(batch) if row[0] not in others]
        if not bases:
            return {}
        columns = [list(column) for column in zip(*bases, strict=True)]
        found = await self._committer.fetch(_NOT_BASED, *columns, batch.session)
        return await self._why_refused(batch, [execution for (execution,) in found])

    async def _why_refused(self, batch: Batch, ids: Sequence[str]) -> dict[str, Refusal]:
        """Whoever still owns an execution decided on entries that the database does not have."""
        owned = {tuple(row) for row in await self._committer.fetch(_OWNED, list(ids), batch.session)}
        bases = batch.bases
        return {id: "stale" if id in bases and (id, bases[id].epoch) in owned else "not_owner" for id in ids}

    async def _rest(self, batch: Batch, refused: dict[str, Refusal]) -> None:
        connection = self._committer
        for standing in batch.standings.values():
            if standing.admission and standing.id not in refused:
                await admit(connection, standing)
        for query, rows in rest_of(batch, refused):
            await connection.executemany(query, rows)
        unwanted = [task for task in batch.withdrawn if task.execution not in refused]
        if unwanted:
            await withdraw(connection, unwanted)

    # Sessions -------------------------------------------------------------------------------------------------------

    async def open_session(self, id: str, worker: str, build: str, lease_ms: int, queues: Sequence[str] | None) -> int:
        async with translated():
            now: int = await self._pool.fetchval(
                "INSERT INTO sessions (id, worker, build, queues, started_at, expires_at, incarnation) "
                f"VALUES ($1, $2, $3, $4, {NOW}, {NOW} + $5, {INCARNATION}) RETURNING started_at",
                id, worker, build, queues_text(queues), lease_ms,
            )  # fmt: skip
            return now
        raise AssertionError("translated() does not swallow")

    def keep_alive(self, id: str, lease_ms: int, tell: Callable[[Renewal], None], stop: threading.Event) -> None:
        """The loop runs for a renewal at a time; between them this thread waits for its end, and for nothing else."""
        connection: asyncpg.Connection | None = None
        known = 0
        with asyncio.Runner() as runner:
            while not stop.wait(renewal_s(lease_ms)):
                try:
                    connection, renewal, known = runner.run(self._renew(connection, id, lease_ms, known))
                except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
                    connection = None  # not renewed: the owner sees its lease run out by its own clock
                else:
                    tell(renewal)
            if connection is not None:
                connection.terminate()

    async def _renew(
        self, connection: asyncpg.Connection | None, id: str, lease_ms: int, known: int
    ) -> tuple[asyncpg.Connection, Renewal, int]:
        """Also gives how often the session was renewed; `known` is what the last answer said."""
        patience, asked_at = lease_ms / 3_000, time.monotonic()
        if connection is None or connection.is_closed():
            async with asyncio.timeout(patience):
                connection = await self._connect()
        try:
            row = await connection.fetchrow(
                f"UPDATE sessions SET expires_at = {NOW} + $2, renewed_at = {NOW}, renewals = renewals + 1 "
                f"WHERE id = $1 AND {IS_LIVE} AND renewals >= $3 RETURNING expires_at - $2 AS now, renewals",
                id, lease_ms, known, timeout=patience,
            )  # fmt: skip
        except BaseException:
            connection.terminate()
            raise
        if row is None:
            return connection, Renewal(0, False, asked_at), known
        return connection, Renewal(row["now"], True, asked_at), row["renewals"]

    async def end_session(self, id: str) -> None:
        async with translated(), self._pool.acquire() as connection, connection.transaction():
            await _end_sessions(connection, "id = $1 AND ended_at IS NULL", id)

    async def reap(self, own: str = "") -> int:
        """One that has a transaction open is left for the next time: nobody waits for it."""
        over = f"ended_at IS NULL AND (expires_at < {NOW} OR incarnation <> {INCARNATION})"
        free = f"id = (SELECT id FROM sessions WHERE {over} AND id = $1 FOR UPDATE SKIP LOCKED)"
        reaped = 0
        async with translated(), self._pool.acquire() as connection:
            for row in await connection.fetch(f"SELECT id FROM sessions WHERE {over} AND id <> $1", own):
                with suppress(asyncpg.LockNotAvailableError):  # somebody's transaction holds an execution of it
                    async with connection.transaction():
                        await connection.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
                        reaped += await _end_sessions(connection, free, row["id"])
        return reaped

    async def mark_restored(self) -> int:
        query = f"UPDATE incarnation SET number = greatest(number + 1, {NOW}) RETURNING number"
        async with translated(permit="run it as the owner of the schema"):
            number: int = await self._pool.fetchval(query)
            return number
        raise AssertionError("translated() does not swallow")

    async def claim(self, session: str, plans: Sequence[str], limit: int) -> list[Claim]:
        async with translated():
            return [Claim(*row) for row in await self._pool.fetch(_CLAIM, session, list(plans), limit)]
        raise AssertionError("translated() does not swallow")

    async def claim_in_turn(self, session: str, plans: Sequence[str], turn: Turn) -> tuple[list[Claim], str]:
        async with translated(), self._pool.acquire() as connection:
            return await claim_in_turn(connection, session, plans, turn)
        raise AssertionError("translated() does not swallow")

    async def claim_one(self, session: str, execution: str) -> Claim | None:
        async with translated():
            row = await self._pool.fetchrow(_CLAIM_ONE, session, execution)
            return None if row is None else Claim(*row)
        raise AssertionError("translated() does not swallow")

    async def keep_progress(self, rows: Sequence[ProgressRow], gone: Sequence[tuple[str, str]]) -> None:
        async with translated(), self._pool.acquire() as connection, connection.transaction():
            await connection.executemany(
                "INSERT INTO progress (execution, path, body) VALUES ($1, $2, $3) "
                "ON CONFLICT (execution, path) DO UPDATE SET body = excluded.body",
                sorted((row.execution, row.path, row.body) for row in rows),
            )
            await connection.executemany("DELETE FROM progress WHERE execution = $1 AND path = $2", sorted(gone))

    # Reading --------------------------------------------------------------------------------------------------------

    async def load(self, ids: Sequence[str], *, short: bool = False) -> list[Loaded]:
        """Whole histories at once. Short ones in two queries: the rest is asked for by the snapshot that was found."""
        async with translated(), self._pool.acquire() as connection:
            if not short:
                whole = await connection.fetch(_LOAD_WHOLE, list(ids))
                return [loaded((*columns, None, None), found or []) for *columns, found in whole]
            rows = await connection.fetch(_LOAD, list(ids), short)
            found = {row["id"]: row["snapshot_seq"] or 0 for row in rows}
            bodies: dict[str, list[bytes]] = {id: [] for id in found}
            for execution, body in await connection.fetch(_LOAD_EVENTS, list(found), list(found.values())):
                bodies[execution].append(body)
            return [loaded(tuple(row), bodies[row["id"]]) for row in rows]
        raise AssertionError("translated() does not swallow")

    async def tails(self, after: Mapping[str, int]) -> dict[str, list[bytes]]:
        query = """
            SELECT e.execution, e.body FROM unnest($1::text[], $2::bigint[]) AS a (execution, seq)
            JOIN events e ON e.execution = a.execution AND e.seq > a.seq ORDER BY e.execution, e.seq"""
        found: dict[str, list[bytes]] = {}
        for row in await self.fetch(query, (list(after), list(after.values()))):
            found.setdefault(row["execution"], []).append(row["body"])
        return found

    async def holding(self, id: str, seqs: Sequence[int]) -> list[bytes]:
        query = (
            "SELECT body FROM events WHERE execution = $1 AND seq IN (SELECT (SELECT max(seq) FROM events "
            "WHERE execution = $1 AND seq <= wanted) FROM unnest($2::bigint[]) AS wanted)"
        )
        return [row["body"] for row in await self.fetch(query, (id, list(seqs)))]

    async def by_keys(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
        tenants, names = [tenant for tenant, _ in keys], [key for _, key in keys]
        async with translated():
            rows = await self._pool.fetch(_BY_KEYS, tenants, names)
            return {(row[0], row[1]): (row[2], row[3]) for row in rows}
        raise AssertionError("translated() does not swallow")

    # Mail -----------------------------------------------------------------------------------------------------------

    async def post(self, id: str, execution: str, body: bytes) -> tuple[int, str | None] | None:
        async with translated(), self._pool.acquire() as connection, connection.transaction():
            return await self._put_mail(connection, id, execution, body)
        raise AssertionError("translated() does not swallow")

    async def _put_mail(self, connection: Any, id: str, execution: str, body: bytes) -> tuple[int, str | None] | None:
        row = await connection.fetchrow(
            f"UPDATE executions SET wake_at = {NOW} WHERE id = $1 RETURNING owner, {NOW} AS now",
            execution,
        )
        if row is None:
            return None
        await connection.execute(
            "INSERT INTO mailbox (id, execution, body, received_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
            id, execution, body, row["now"],
        )  # fmt: skip
        return row["now"], row["owner"]

    # Definitions and lists ------------------------------------------------------------------------------------------

    def _listed(self, values: Sequence[str]) -> object:
        return list(values)

    def _clock(self) -> str:
        return NOW

    async def fetch(self, query: str, values: Sequence[object]) -> list[Any]:
        async with translated():
            found: list[Any] = await self._pool.fetch(query, *values)
            return found
        raise AssertionError("translated() does not swallow")

    async def run(self, query: str, values: Sequence[object]) -> list[Any]:
        return await self.fetch(query, values)

    async def run_all(self, statements: Sequence[Statement]) -> bool:
        first, *rest = statements
        async with translated(), self._pool.acquire() as connection, connection.transaction():
            if not await connection.fetch(first[0], *first[1]):
                return False
            for query, values in rest:
                await connection.execute(query, *values)
            return True
        raise AssertionError("translated() does not swallow")

    async def moved(self, known: Sequence[tuple[str, str]]) -> list[str]:
        query = (
            "SELECT k.id FROM unnest($1::text[], $2::text[]) AS k (id, status) "
            "LEFT JOIN executions e ON e.id = k.id WHERE e.status IS DISTINCT FROM k.status"
        )
        return [
            row["id"] for row in await self.fetch(query, ([id for id, _ in known], [status for _, status in known]))
        ]

    async def written(self, appends: Sequence[Append]) -> list[bool]:
        query = (
            "SELECT e.body FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS a (execution, seq, place) "
            "LEFT JOIN events e ON e.execution = a.execution AND e.seq = a.seq ORDER BY a.place"
        )
        rows = await self.fetch(query, ([a.execution for a in appends], [a.seq for a in appends]))
        return [row["body"] == append.body for row, append in zip(rows, appends, strict=True)]

    async def blocked(self, batch: Batch) -> Set[str]:
        async with self._lend() as connection:
            return await blocked(connection, batch)
        raise AssertionError("translated() does not swallow")

    async def park(
        self, session: str | None, execution: str, why: str, again_ms: int | None, epoch: int | None = None
    ) -> None:
        query = (
            f"UPDATE executions SET parked = $3, owner = NULL, wake_at = {NOW} + $4 "
            "WHERE id = $2 AND (owner IS NULL OR owner = $1) AND epoch = coalesce($5, epoch)"
        )
        async with translated():
            await self._pool.execute(query, session, execution, why, again_ms, epoch)

    # How it stands --------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        rows = await self.fetch("SELECT number, checksum FROM tenuto_migrations", ())
        if missing(migrations("postgres"), {row["number"]: row["checksum"] for row in rows}):
            raise StorageError("the schema is out of date", code="old_schema", hint="run `tenuto migrate`")

    # Notifications --------------------------------------------------------------------------------------------------

    async def begin_notice(self, notice: Notice) -> Notice:
        query = (
            "INSERT INTO sent_notifications (key, tenant, execution, path, channel, begun_at) "
            f"VALUES ($1, $2, $3, $4, $5, {NOW}) ON CONFLICT DO NOTHING"
        )
        async with translated():
            await self._pool.execute(query, *values_of(notice)[:5])
        stored = await self.notice(notice.key)
        assert stored is not None
        return stored

    async def end_notice(self, key: str, receipt: bytes) -> None:
        query = f"UPDATE sent_notifications SET sent_at = {NOW}, receipt = $2 WHERE key = $1 AND receipt IS NULL"
        async with translated():
            await self._pool.execute(query, key, receipt)


async def _migrated(connection: asyncpg.Connection, known: list[Migration]) -> bool:
    """Or not yet: tables that others hold are waited for in short pieces, because every commit waits behind it."""
    try:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
            await connection.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
            await connection.execute(MIGRATIONS_TABLE)
            for migration in missing(known, await _applied(connection)):
                await connection.execute(migration.sql)
                await connection.execute(
                    f"INSERT INTO tenuto_migrations VALUES ($1, $2, $3, {NOW})",
                    migration.number, migration.name, migration.checksum,
                )  # fmt: skip
    except asyncpg.LockNotAvailableError:
        return False
    return True


def _is_plain(batch: Batch) -> bool:
    """Whether the one statement is enough. For keys it is: the unique index decides between two starts."""
    tasks = batch.tasks or batch.tasks_ended or batch.withdrawn
    rare = batch.reviews or batch.closed or batch.mail or batch.snapshots or batch.outbox
    return not (tasks or rare or any(standing.admission for standing in batch.standings.values()))


def _places(starts: Sequence[NewExecution]) -> dict[str, int]:
    """Of each, among those of its tenant: so many may start as there is room for."""
    numbers: dict[str, int] = {}
    places = {}
    for start in starts:
        places[start.id] = numbers[start.tenant] = numbers.get(start.tenant, 0) + 1
    return places


def _stated(basis: Basis | None) -> tuple[int | None, int | None]:
    return (None, None) if basis is None else (basis.epoch, basis.seq)


def _counts(by_tenant: str | None) -> dict[str, int]:
    return {} if by_tenant is None else msgspec.json.decode(by_tenant, type=dict[str, int])


async def _end_sessions(connection: Any, where: str, *values: object) -> int:
    """What they owned becomes nobody's, and due, with the end of the session: not before, and not later."""
    rows = await connection.fetch(f"UPDATE sessions SET ended_at = {NOW} WHERE {where} RETURNING id", *values)
    ids = [row["id"] for row in rows]
    await connection.execute(
        f"UPDATE executions SET owner = NULL, wake_at = least(wake_at, {NOW}) WHERE owner = ANY($1)", ids
    )
    await connection.execute(f"DELETE FROM sessions WHERE ended_at < {NOW} - $1", SESSIONS_KEPT_MS)
    await connection.execute("DELETE FROM limit_holders WHERE session = ANY($1)", ids)
    return len(ids)


# Not there, going away, coming up, or gone in the middle of something.
_UNREACHABLE = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
_BAD_DATA = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,  # a text that no index has room for
    UnicodeEncodeError,
)


_PERMIT_SERVICE = "as the owner of the schema, run `tenuto migrate --role` with its name"


@asynccontextmanager
async def translated(permit: str = _PERMIT_SERVICE) -> AsyncIterator[None]:
    """What the database says, in the words of `tenuto.errors`. `permit` is what helps who may not do it."""
    try:
        yield
    except _UNREACHABLE as error:
        raise StorageError(
            "PostgreSQL cannot be reached", code="unreachable", hint="check the URL and that the server is up"
        ) from error
    except _BAD_DATA as error:
        raise StorageError("the database refused the data of a batch", code="bad_data") from error
    except asyncpg.TransactionRollbackError as error:
        raise StorageError("PostgreSQL ended a transaction that stood in the way of another", code="busy") from error
    except asyncpg.QueryCanceledError as error:
        raise StorageError(
            "PostgreSQL stopped a query that took too long", code="too_slow", hint="ask for less, or try again later"
        ) from error
    except asyncpg.LockNotAvailableError as error:
        raise StorageError("somebody else's transaction holds what a batch needs", code="locked") from error
    except asyncpg.ReadOnlySQLTransactionError as error:
        raise StorageError("the database is read-only", code="read_only", hint="connect to the primary") from error
    except asyncpg.InsufficientPrivilegeError as error:
        raise StorageError(
            f"PostgreSQL does not let this user do that: {error.args[0]}",
            code="not_permitted",
            hint=permit,
        ) from error
    except asyncpg.DiskFullError as error:
        raise StorageError("the database's disk is full", code="full", hint="free space and try again") from error
    except asyncpg.InvalidCatalogNameError as error:
        raise StorageError(
            "the server has no database of that name", code="no_database", hint="create it first, or check the URL"
        ) from error
    except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError) as error:
        raise StorageError("PostgreSQL refused the credentials", code="refused", hint="check the URL") from error
    except asyncpg.PostgresError as error:
        raise StorageError(f"PostgreSQL answered with an error ({error.sqlstate})", code="failed") from error
