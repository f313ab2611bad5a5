"""Commits batches to PostgreSQL, over one connection, so that batches follow one another.

A batch without rare parts is a single statement, and therefore a single round trip: it locks the session's row and
those of tenants with a limit, inserts as many starts as the limits allow, and returns what it wrote. Rare parts are
written by further statements of the same transaction.
"""

from collections.abc import Sequence, Set
from typing import Any, Literal

import asyncpg
import msgspec

from tenuto.storage.port import Append, Basis, Batch, Committed, ExecutionRow, NewExecution, Refusal
from tenuto.storage.shared.rows import basis_values, execution_values, move_values, rest_of, values_of
from tenuto.storage.shared.status_changes import columns_of
from tenuto.storage.status_changes import COLUMNS as CHANGED
from tenuto.views.projections import AuditRow, execution_of

from .admissions import admit, known_keys, refused_starts
from .database import PostgresDatabase
from .errors import translated
from .lock_conflicts import blocked
from .reserves import refused_reserves, reserve
from .statements import LIVE, NOW
from .tasks import withdraw

_SETTLE = "INSERT INTO credit_changes (tenant, balance, held) VALUES ($1, $2, $3)"
Isolation = Literal["read_committed", "serializable"]
SERIALIZABLE_TRIES = 5
COLUMNS = ", ".join(ExecutionRow.__struct_fields__)

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
limited AS MATERIALIZED ( -- until this is committed, no other start of these tenants commits
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
    RETURNING {", ".join(CHANGED)}
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
    RETURNING {columns_of("e")}
),
told AS ( -- to the feed
    INSERT INTO status_changes (at, changes)
    SELECT {NOW}, json_agg(json_build_array({", ".join(CHANGED)}))::text
    FROM (SELECT * FROM new UNION ALL SELECT * FROM moved) told HAVING count(*) > 0
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

# The same, with rows of the audit log.
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


class PostgresCommits:
    """Writes batches, and finds out what became of one whose outcome is unknown."""

    def __init__(self, database: PostgresDatabase, *, serializable: bool = False) -> None:
        self._database = database
        self._serializable = serializable  # commits with a reserve

    async def commit(self, batch: Batch) -> Committed:
        database = self._database
        async with translated():
            if database.committer.is_closed():
                await database.reconnect_committer()
            try:
                return await self._commit(batch)
            except asyncpg.PostgresError:
                raise
            except BaseException:
                database.committer.terminate()  # a transaction may be open
                raise
        raise AssertionError("translated() does not swallow")

    async def _commit(self, batch: Batch) -> Committed:
        if _is_plain(batch):
            return await self._write_all(batch, {})
        if batch.reserves and self._serializable:
            for _ in range(SERIALIZABLE_TRIES):
                try:
                    return await self._commit_in_parts(batch, "serializable")
                except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError):
                    continue  # locks and constraints decide at last: they need no isolation
        return await self._commit_in_parts(batch, "read_committed")

    async def _commit_in_parts(self, batch: Batch, isolation: Isolation) -> Committed:
        connection = self._database.committer
        async with connection.transaction(isolation=isolation):
            refused = await refused_starts(connection, batch)
            if batch.reserves:
                unpaid = await refused_reserves(connection, batch)
                known = await known_keys(connection, [start for start in batch.starts if start.id in unpaid])
                repeated = [start.id for start in batch.starts if (start.tenant, start.key) in known]
                refused = {**unpaid, **dict.fromkeys(repeated, "duplicate_key"), **refused}
            committed = await self._write_all(batch, {**refused, **await self._refused_extras(batch)})
            if not committed.fenced:
                await self._rest(batch, committed.refused)
            return committed

    async def _write_all(self, batch: Batch, refused: dict[str, Refusal]) -> Committed:
        """Those for whom there was no room are looked at again: their keys may be known, or known keys took up room."""
        committed = await self._write(batch, refused)
        full = [start for start in batch.starts if committed.refused.get(start.id) == "tenant_limit"]
        known = await known_keys(self._database.committer, full) if full else ()
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
        row = await self._database.committer.fetchrow(
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
            missing = await self._database.committer.fetch(_NOT_WRITTEN, *map(list, columns))
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
        found = await self._database.committer.fetch(_NOT_BASED, *columns, batch.session)
        return await self._why_refused(batch, [execution for (execution,) in found])

    async def _why_refused(self, batch: Batch, ids: Sequence[str]) -> dict[str, Refusal]:
        """Refuses decisions on entries that the database does not have, although the session owns the execution."""
        owned = {tuple(row) for row in await self._database.committer.fetch(_OWNED, list(ids), batch.session)}
        bases = batch.bases
        return {id: "stale" if id in bases and (id, bases[id].epoch) in owned else "not_owner" for id in ids}

    async def _rest(self, batch: Batch, refused: dict[str, Refusal]) -> None:
        connection = self._database.committer
        for standing in batch.standings.values():
            if standing.admission and standing.id not in refused:
                await admit(connection, standing)
        for query, rows in rest_of(batch, refused):
            await connection.executemany(query, rows)
        if batch.reserves:
            await reserve(connection, batch.reserves, refused)
        changes = [(s.tenant, s.balance, s.held) for s in batch.settlements if s.execution not in refused]
        if changes:
            await connection.executemany(_SETTLE, changes)
        unwanted = [task for task in batch.withdrawn if task.execution not in refused]
        if unwanted:
            await withdraw(connection, unwanted)

    async def written(self, appends: Sequence[Append]) -> list[bool]:
        query = (
            "SELECT e.body FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS a (execution, seq, place) "
            "LEFT JOIN events e ON e.execution = a.execution AND e.seq = a.seq ORDER BY a.place"
        )
        rows = await self._database.fetch(query, ([a.execution for a in appends], [a.seq for a in appends]))
        return [row["body"] == append.body for row, append in zip(rows, appends, strict=True)]

    async def blocked(self, batch: Batch) -> Set[str]:
        async with self._database.lend() as connection:
            return await blocked(connection, batch)
        raise AssertionError("translated() does not swallow")


def _is_plain(batch: Batch) -> bool:
    """Whether the one statement is enough. For keys it is: the unique index decides between two starts."""
    tasks = batch.tasks or batch.tasks_ended or batch.withdrawn
    paid = batch.credit_entries or batch.settlements or batch.reserves
    rare = paid or batch.reviews or batch.closed or batch.mail or batch.snapshots or batch.outbox
    return not (
        tasks or rare or batch.is_about_jobs or any(standing.admission for standing in batch.standings.values())
    )


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
