"""The ledger in the engine's database. Written once for both dialects."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from tenuto.storage.statements import Statement, Statements
from tenuto.views.jobs import LedgerAttempt, LedgerRow

from .port import IndexRow, JobRecord, JobsWanted

_ROW = LedgerRow.__struct_fields__
_ATTEMPT = LedgerAttempt.__struct_fields__
_INDEX = IndexRow.__struct_fields__
BEHIND_AT_ONCE = 100
NOTICE_LEASE_MS = 60_000


class Behind(Struct, frozen=True):
    """A job whose copy lacks something, and since when."""

    execution: str
    seq: int


class SqlLedger:
    """Implements `Ledger` on a store's database."""

    def __init__(self, statements: Statements) -> None:
        self._sql = statements

    async def job(self, tenant: str | None, id: str) -> JobRecord | None:
        rows = [_row(found) for found in await self._select("ledger", _ROW, tenant, id, "")]
        job = next((row for row in rows if row.key == "JOB"), None)
        return None if job is None else JobRecord(job=job, steps=[row for row in rows if row.key != "JOB"])

    async def attempts(self, tenant: str | None, id: str, step: str | None) -> list[LedgerAttempt] | None:
        if await self.job(tenant, id) is None:
            return None
        found = await self._select("ledger_attempts", _ATTEMPT, tenant, id, "ORDER BY step, attempt")
        rows = [LedgerAttempt(**dict(zip(_ATTEMPT, row, strict=True))) for row in found]
        return [row for row in rows if step in (None, row.step)]

    async def index(self, id: str) -> list[IndexRow]:
        """The keys of a job: none, or one."""
        found = await self._select("job_index", _INDEX, None, id, "")
        return [IndexRow(**dict(zip(_INDEX, row, strict=True))) for row in found]

    async def _select(self, table: str, columns: Sequence[str], tenant: str | None, id: str, order: str) -> list[Any]:
        of_tenant = "" if tenant is None else "AND tenant = $2"
        query = f"SELECT {', '.join(columns)} FROM {table} WHERE execution = $1 {of_tenant} {order}"
        return await self._sql.fetch(query, (id,) if tenant is None else (id, tenant))

    async def check(self) -> None:
        await self._sql.fetch("SELECT 1 FROM ledger LIMIT 1", ())

    async def page(self, wanted: JobsWanted, after: str | None, limit: int) -> list[LedgerRow]:
        """Jobs, newest first. `after` is the last id of the page before."""
        conditions, values = ["key = 'JOB'"], []
        given = {
            "tenant = ${}": wanted.tenant,
            "status = ${}": wanted.status,
            "protocol = ${}": wanted.protocol,
            "created_at >= ${}": wanted.since,
            "created_at < ${}": wanted.before,
            "execution < ${}": after,
        }
        for condition, value in given.items():
            if value is not None:
                values.append(value)
                conditions.append(condition.format(len(values)))
        where = " AND ".join(conditions)
        query = f"SELECT {', '.join(_ROW)} FROM ledger WHERE {where} ORDER BY execution DESC LIMIT {limit:d}"
        return [_row(found) for found in await self._sql.fetch(query, values)]

    async def count(self) -> dict[str, int]:
        """How many jobs have each status."""
        query = "SELECT status, count(*) FROM ledger WHERE key = 'JOB' GROUP BY status"
        return {row[0]: row[1] for row in await self._sql.fetch(query, ())}

    # -- Notices -------------------------------------------------------------------------------------------------------

    async def take_notices(self, now: int) -> list[tuple[LedgerRow, int]]:
        """Jobs that have ended and whose `completed` call is due, each with the calls that failed. Others take them
        after a minute, if they are still due then."""
        due = "notify_at <= $1 AND key = 'JOB'"
        if not await self._sql.fetch(f"SELECT 1 FROM ledger WHERE {due} LIMIT 1", (now,)):
            return []
        query = (
            f"UPDATE ledger SET notify_at = $2, notify_tries = notify_tries + 1 WHERE {due} "
            f"RETURNING {', '.join(_ROW)}, notify_tries"
        )
        rows = await self._sql.run(query, (now, now + NOTICE_LEASE_MS))
        return [(_row(tuple(found)[:-1]), tuple(found)[-1] - 1) for found in rows]

    async def notified(self, execution: str) -> None:
        query = "UPDATE ledger SET notify_at = NULL, notify_tries = 0 WHERE execution = $1 AND key = 'JOB'"
        await self._sql.run(query, (execution,))

    async def put_off_notice(self, execution: str, at: int) -> None:
        await self._sql.run("UPDATE ledger SET notify_at = $2 WHERE execution = $1 AND key = 'JOB'", (execution, at))

    # -- Copies --------------------------------------------------------------------------------------------------------

    async def behind(self) -> list[Behind]:
        """Jobs whose copy lacks something, oldest first."""
        query = (
            "SELECT execution, seq FROM ledger WHERE copied_seq < seq AND key = 'JOB' "
            f"ORDER BY execution LIMIT {BEHIND_AT_ONCE}"
        )
        return [Behind(*row) for row in await self._sql.fetch(query, ())]

    async def copied(self, execution: str, seq: int) -> None:
        """The copy of this job has everything up to this version."""
        query = "UPDATE ledger SET copied_seq = $2 WHERE execution = $1 AND copied_seq < $2"
        await self._sql.run(query, (execution, seq))

    # -- Rebuilding ----------------------------------------------------------------------------------------------------

    async def replace(
        self, execution: str, rows: Sequence[LedgerRow], attempts: Sequence[LedgerAttempt], index: Sequence[IndexRow]
    ) -> None:
        """Replaces the rows of a job by those that its events give."""
        statements: list[Statement] = [("DELETE FROM ledger WHERE execution = $1", (execution,))]
        statements.append(("DELETE FROM ledger_attempts WHERE execution = $1", (execution,)))
        for table, columns, made in (("ledger", _ROW, rows), ("ledger_attempts", _ATTEMPT, attempts)):
            statements += [(_insert(table, columns), _values(row)) for row in made]
        statements += [(_insert("job_index", _INDEX) + " ON CONFLICT DO NOTHING", _values(row)) for row in index]
        # The first statement of a transaction must return a row.
        await self._sql.run_all([("SELECT 1", ()), *statements])


def _insert(table: str, columns: Sequence[str]) -> str:
    marks = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"


def _values(row: Struct) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in row.__struct_fields__)


def _row(found: Sequence[Any]) -> LedgerRow:
    named = dict(zip(_ROW, found, strict=True))
    return LedgerRow(**{**named, "body": bytes(named["body"])})
