"""Task queues on PostgreSQL: a worker skips tasks that another one is taking.

Rows are locked in one order, to prevent deadlocks: the session, then one execution, then tasks in the order of their
keys. So each message is posted in a transaction of its own.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from tenuto.storage.shared.rows import values_of
from tenuto.storage.tasks import (
    SERVING,
    Answered,
    Beginning,
    Held,
    MailMessage,
    Serving,
    Taking,
    Task,
    TaskKey,
    TaskState,
    loss,
    queues_of,
    withdrawals,
)
from tenuto.views.projections import TaskWithdrawn

from .statements import LIVE, NOW, columns

WINDOW = 1_000  # waiting tasks among which turns are shared out
_KEY = "execution, path, phase, number"
_T_KEY = "t.execution, t.path, t.phase, t.number"
_IS_MINE = f"({_T_KEY}) = (mine.execution, mine.path, mine.phase, mine.number)"
_IS_KEY = "execution = $2 AND path = $3 AND phase = $4 AND number = $5"
# $1 session, $2 queue, $3 handlers, $4 how many
_WAITING = """
session IS NULL AND queue = $2 AND strpos(parked_by, $1) = 0
    AND (plan || '/' || handler = ANY($3::text[]) OR '*/' || handler = ANY($3::text[]))"""
_NEXT_TENANT = "SELECT min(tenant) AS tenant FROM tasks WHERE session IS NULL AND queue = $2"
# More are chosen than are wanted: some may just be taken by others, and are passed over.
_TAKE = f"""
WITH RECURSIVE lease AS ({LIVE}),
found AS (
    {_NEXT_TENANT} UNION ALL SELECT ({_NEXT_TENANT} AND tenant > found.tenant) FROM found WHERE tenant IS NOT NULL
),
tenants AS MATERIALIZED (SELECT tenant, random() AS dice FROM found WHERE tenant IS NOT NULL LIMIT {WINDOW}),
waiting AS (
    SELECT t.*, dice FROM tenants, LATERAL (
        SELECT {_KEY}, tenant, priority, created_at FROM tasks
        WHERE tenant = tenants.tenant AND {_WAITING} ORDER BY priority DESC, created_at
        LIMIT greatest($4::int, {WINDOW} / (SELECT count(*) FROM tenants))) t
),
taken AS MATERIALIZED (SELECT tenant, execution FROM tasks WHERE session IS NOT NULL AND queue = $2),
by_execution AS MATERIALIZED (SELECT execution, count(*) AS busy FROM taken GROUP BY execution),
by_tenant AS MATERIALIZED (SELECT tenant, count(*) AS taken_of_tenant FROM taken GROUP BY tenant),
turns AS (
    SELECT waiting.*, coalesce(busy, 0)
        + row_number() OVER (PARTITION BY execution ORDER BY priority DESC, created_at) AS turn
    FROM waiting LEFT JOIN by_execution USING (execution)
),
shares AS (
    SELECT turns.*, coalesce(taken_of_tenant, 0)
        + row_number() OVER (PARTITION BY tenant ORDER BY priority DESC, turn, created_at) AS share
    FROM turns LEFT JOIN by_tenant USING (tenant)
),
chosen AS (SELECT * FROM shares ORDER BY priority DESC, share, dice, turn, created_at LIMIT 4 * $4::int + 16),
mine AS (
    SELECT {_T_KEY} FROM lease, chosen c JOIN tasks t USING ({_KEY}) WHERE t.session IS NULL
    ORDER BY c.priority DESC, share, dice, turn, c.created_at LIMIT $4::int FOR UPDATE OF t SKIP LOCKED
)
UPDATE tasks t SET session = $1, beat_at = {NOW}, takings = takings + 1 FROM mine WHERE {_IS_MINE}
RETURNING {_T_KEY}, t.takings, t.plan, t.queue, t.handler,
    (SELECT body FROM progress p WHERE p.execution = t.execution AND p.path = t.path) AS progress"""
_MARK = f"""
WITH lease AS ({LIVE}),
mine AS (
    SELECT {_T_KEY}, b.marks FROM lease, tasks t
    JOIN unnest($2::text[], $3::text[], $4::text[], $5::int[], $6::int[], $7::bool[]) AS b ({_KEY}, takings, marks)
        USING ({_KEY}, takings)
    WHERE t.session = $1 ORDER BY {_T_KEY} FOR UPDATE OF t
)
UPDATE tasks t SET begun_at = CASE WHEN mine.marks THEN coalesce(t.begun_at, {NOW}) ELSE t.begun_at END,
    beat_at = {NOW}
FROM mine WHERE {_IS_MINE} RETURNING {_T_KEY}, t.takings"""
_BEAT = f"""
WITH mine AS (SELECT {_KEY} FROM tasks WHERE session = $1 FOR UPDATE SKIP LOCKED)
UPDATE tasks t SET beat_at = {NOW} FROM mine WHERE {_IS_MINE}"""
_GIVE_BACK = f"""
UPDATE tasks SET session = NULL, begun_at = NULL, beat_at = NULL, parked = $7, parked_by = parked_by || $8
WHERE session = $1 AND {_IS_KEY} AND takings = $6"""
_ANSWERED = f"DELETE FROM tasks WHERE session = $1 AND {_IS_KEY} AND takings = $6"
_ORPHANS = """
FROM tasks t LEFT JOIN sessions s ON s.id = t.session
WHERE t.session IS NOT NULL AND (s.ended_at IS NOT NULL OR s.id IS NULL)"""
_OF = f"""
SELECT {_KEY}, plan, queue, handler, worker, begun_at IS NOT NULL AS begun, body AS progress, parked
FROM tasks LEFT JOIN sessions ON sessions.id = tasks.session LEFT JOIN progress USING (execution, path)
WHERE execution = $1 ORDER BY created_at, path, number"""
_WITHDRAW = f"""
WITH mine AS (
    SELECT {_T_KEY} FROM tasks t
    JOIN unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::bool[]) AS w ({_KEY}, sends) USING ({_KEY})
    WHERE t.begun_at IS NULL AND (t.takings = 0 OR NOT w.sends) ORDER BY {_T_KEY} FOR UPDATE OF t
)
DELETE FROM tasks t USING mine WHERE {_IS_MINE} RETURNING {_T_KEY}, {NOW} AS now"""
_PROGRESS = """
INSERT INTO progress (execution, path, body) VALUES ($1, $2, $3)
ON CONFLICT (execution, path) DO UPDATE SET body = excluded.body"""
_MY_PROGRESS = f"""
INSERT INTO progress (execution, path, body)
SELECT execution, path, $7 FROM tasks WHERE session = $1 AND {_IS_KEY} AND takings = $6
ON CONFLICT (execution, path) DO UPDATE SET body = excluded.body"""
_NO_PROGRESS = "DELETE FROM progress WHERE execution = $1 AND path = $2"

Connect = Callable[[], AbstractAsyncContextManager[Any]]


class PostgresTasks:
    """Implements `tasks.TaskStore`. `connect` lends a connection."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    async def serve(self, session: str, handlers: Sequence[str]) -> None:
        async with self._connect() as db:
            await db.execute("UPDATE sessions SET handlers = $2 WHERE id = $1", session, json.dumps(list(handlers)))

    async def serving(self) -> list[Serving]:
        async with self._connect() as db:
            return [Serving(queues_of(q), json.loads(h)) for q, h in await db.fetch(SERVING + NOW)]

    async def take(self, session: str, queue: str, handlers: Sequence[str], limit: int) -> list[Task]:
        async with self._connect() as db:
            rows = await db.fetch(_TAKE, session, queue, list(handlers), limit)
        return [Task(_taking(row), row["plan"], row["queue"], row["handler"], row["progress"]) for row in rows]

    async def begin(self, session: str, beginnings: Sequence[Beginning]) -> tuple[set[Taking], set[str | None]]:
        plain = [each for each in beginnings if each.message is None]
        owners: set[str | None] = set()
        async with self._connect() as db:
            begun = await _mark(db, session, plain) if plain else set()
            for each in beginnings:
                if each.message is not None and await self._begin_with_message(db, session, each, each.message, owners):
                    begun.add(each.taking)
        return begun, owners

    async def _begin_with_message(
        self, db: Any, session: str, each: Beginning, message: MailMessage, owners: set[str | None]
    ) -> bool:
        async with db.transaction():
            if await db.fetchval(LIVE, session) is None:
                return False
            await _lock_execution(db, message.execution)
            begun = await _mark(db, session, [each])
            if begun:
                owners.update(await _post(db, message))
            return bool(begun)

    async def answer(self, session: str, answers: Sequence[Answered]) -> set[str | None]:
        owners: set[str | None] = set()
        async with self._connect() as db:
            for answered in answers:
                key, number = answered.taking
                async with db.transaction():
                    owners.update(await _post(db, answered.message))
                    if await db.execute(_ANSWERED, session, *key, number) == "DELETE 0":
                        continue  # its progress is reported by the worker that has it now
                    if answered.is_last:
                        await db.execute(_NO_PROGRESS, *key[:2])
                    elif answered.progress is not None:
                        await db.execute(_PROGRESS, *key[:2], answered.progress)
        return owners

    async def give_back(self, session: str, takings: Sequence[Taking], why: str = "") -> None:
        by = f"{session} " if why else ""
        async with self._connect() as db:
            await db.executemany(_GIVE_BACK, [(session, *key, number, why, by) for key, number in sorted(takings)])

    async def try_again(self, session: str) -> None:
        query = "UPDATE tasks SET parked_by = replace(parked_by, $1, '') WHERE parked_by <> ''"
        async with self._connect() as db:
            await db.execute(query, f"{session} ")

    async def held(self, session: str) -> list[Held]:
        query = (
            f"SELECT {_KEY}, takings, begun_at IS NOT NULL AS begun, e.status, e.cancel_requested FROM tasks "
            "JOIN executions e ON e.id = tasks.execution WHERE session = $1"
        )
        async with self._connect() as db:
            rows = await db.fetch(query, session)
        return [Held(_taking(row), row["begun"], row["status"], row["cancel_requested"]) for row in rows]

    async def beat(self, session: str, progress: Mapping[Taking, bytes]) -> None:
        async with self._connect() as db:
            await db.execute(_BEAT, session)
            if progress:
                rows = [(session, *key, number, body) for (key, number), body in sorted(progress.items())]
                await db.executemany(_MY_PROGRESS, rows)

    async def sweep(self, lease_ms: int) -> int:
        async with self._connect() as db:
            rows = await db.fetch(f"SELECT {_T_KEY}, t.session, t.begun_at IS NOT NULL AS begun {_ORPHANS}")
            for row in rows:
                await self._orphan(db, row["session"], _key(row), begun=row["begun"], lease_ms=lease_ms)
            return len(rows)

    async def _orphan(self, db: Any, session: str, key: TaskKey, *, begun: bool, lease_ms: int) -> None:
        """Returns or loses a task. Concurrent sweeps and the owner may do the same: the first one acts."""
        if not begun:
            query = "UPDATE tasks SET session = NULL, beat_at = NULL WHERE session = $1 AND begun_at IS NULL"
            await db.execute(f"{query} AND {_IS_KEY}", session, *key)
            return
        async with db.transaction():
            await _lock_execution(db, key.execution)
            query = f"DELETE FROM tasks WHERE session = $1 AND {_IS_KEY} RETURNING {NOW}"
            now = await db.fetchval(query, session, *key)
            if now is not None:
                await _post(db, loss(key, now, lease_ms))

    async def of(self, execution: str) -> list[TaskState]:
        async with self._connect() as db:
            rows = await db.fetch(_OF, execution)
        fields = ("plan", "queue", "handler", "worker", "begun", "progress", "parked")
        return [TaskState(key=_key(row), **{name: row[name] for name in fields}) for row in rows]


async def withdraw(db: Any, unwanted: Sequence[TaskWithdrawn]) -> None:
    """In the transaction that records why, which has locked their executions."""
    rows = await db.fetch(_WITHDRAW, *columns([values_of(task) for task in unwanted], 5))
    gone = sorted(_key(row) for row in rows)
    for message in withdrawals(gone, rows[0]["now"] if rows else 0):
        await _post(db, message)


def _key(row: Any) -> TaskKey:
    return TaskKey(row["execution"], row["path"], row["phase"], row["number"])


def _taking(row: Any) -> Taking:
    return Taking(_key(row), row["takings"])


async def _mark(db: Any, session: str, beginnings: Sequence[Beginning]) -> set[Taking]:
    columns = zip(*((*each.taking.key, each.taking.number, each.marks) for each in beginnings), strict=True)
    return {_taking(row) for row in await db.fetch(_MARK, session, *(list(column) for column in columns))}


async def _lock_execution(db: Any, execution: str) -> None:
    await db.execute("SELECT 1 FROM executions WHERE id = $1 FOR UPDATE", execution)


async def _post(db: Any, message: MailMessage) -> list[str | None]:
    """The owner of the execution, if there is such an execution."""
    query = f"UPDATE executions SET wake_at = {NOW} WHERE id = $1 RETURNING owner, {NOW} AS now"
    row = await db.fetchrow(query, message.execution)
    if row is None:
        return []
    query = "INSERT INTO mailbox (id, execution, body, received_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING"
    await db.execute(query, message.id, message.execution, message.body, row["now"])
    return [row["owner"]]
