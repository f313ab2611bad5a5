"""Task queues on SQLite. There is one writer at a time, so no other worker takes what a statement finds."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol, TypeVar

import apsw

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

from .statements import LIVE

T = TypeVar("T")

WINDOW = 1_000  # waiting tasks among which turns are shared out
_KEY = "execution, path, phase, number"
_IS_KEY = "execution = ? AND path = ? AND phase = ? AND number = ?"
_IS_MINE = f"{_IS_KEY} AND takings = ? AND session = ?"
# ?1 session, ?2 queue, ?3 handlers, ?4 how many, ?5 now
_WAITING = """
session IS NULL AND queue = ?2 AND instr(parked_by, ?1) = 0 AND (
    plan || '/' || handler IN (SELECT value FROM json_each(?3))
    OR '*/' || handler IN (SELECT value FROM json_each(?3)))"""
_NEXT_TENANT = "SELECT min(tenant) FROM tasks WHERE session IS NULL AND queue = ?2"
_TAKE = f"""
WITH RECURSIVE found (tenant) AS (
    {_NEXT_TENANT} UNION ALL SELECT ({_NEXT_TENANT} AND tenant > found.tenant) FROM found WHERE tenant IS NOT NULL
),
tenants AS MATERIALIZED (SELECT tenant, random() AS dice FROM found WHERE tenant IS NOT NULL LIMIT {WINDOW}),
waiting AS (
    SELECT {_KEY}, t.tenant, dice, priority, created_at FROM tenants JOIN tasks t ON ({_KEY}) IN (
        SELECT {_KEY} FROM tasks WHERE tenant = tenants.tenant AND {_WAITING} ORDER BY priority DESC, created_at
        LIMIT max(?4, {WINDOW} / (SELECT count(*) FROM tenants)))
),
taken AS MATERIALIZED (SELECT tenant, execution FROM tasks WHERE session IS NOT NULL AND queue = ?2),
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
)
UPDATE tasks SET session = ?1, beat_at = ?5, takings = takings + 1
WHERE ({_KEY}) IN (SELECT {_KEY} FROM shares ORDER BY priority DESC, share, dice, turn, created_at LIMIT ?4)
RETURNING {_KEY}, takings, plan, queue, handler,
    (SELECT body FROM progress p WHERE p.execution = tasks.execution AND p.path = tasks.path)"""
_BEGIN = f"UPDATE tasks SET begun_at = coalesce(begun_at, ?), beat_at = ? WHERE {_IS_MINE}"
_GIVE_BACK = f"""
UPDATE tasks SET session = NULL, begun_at = NULL, beat_at = NULL, parked = ?, parked_by = parked_by || ?
WHERE {_IS_MINE}"""
_WITHDRAW = f"DELETE FROM tasks WHERE {_IS_KEY} AND begun_at IS NULL AND (takings = 0 OR NOT ?)"
_ORPHANS = """
FROM tasks LEFT JOIN sessions ON sessions.id = tasks.session
WHERE tasks.session IS NOT NULL AND (ended_at > 0 OR sessions.id IS NULL)"""
_OF = f"""
SELECT {_KEY}, plan, queue, handler, worker, begun_at IS NOT NULL, body, parked
FROM tasks LEFT JOIN sessions ON sessions.id = tasks.session LEFT JOIN progress USING (execution, path)
WHERE execution = ? ORDER BY created_at, path, number"""
_PROGRESS = "INSERT OR REPLACE INTO progress (execution, path, body) VALUES (?, ?, ?)"
_MY_PROGRESS = (
    f"INSERT OR REPLACE INTO progress (execution, path, body) SELECT execution, path, ? FROM tasks WHERE {_IS_MINE}"
)
_NO_PROGRESS = "DELETE FROM progress WHERE execution = ? AND path = ?"


class Write(Protocol):
    """Runs something in a transaction, in the thread that writes."""

    async def __call__(self, work: Callable[[apsw.Connection], T]) -> T: ...


class Fetch(Protocol):
    async def __call__(self, query: str, values: Sequence[Any]) -> list[Any]: ...


class SqliteTasks:
    """Implements `tasks.TaskStore`."""

    def __init__(self, write: Write, fetch: Fetch, now: Callable[[], int]) -> None:
        self._write = write
        self._fetch = fetch
        self._now = now

    async def serve(self, session: str, handlers: Sequence[str]) -> None:
        values = (json.dumps(list(handlers)), session)
        await self._write(lambda db: db.execute("UPDATE sessions SET handlers = ? WHERE id = ?", values))

    async def serving(self) -> list[Serving]:
        return [Serving(queues_of(q), json.loads(h)) for q, h in await self._fetch(f"{SERVING} ?", (self._now(),))]

    async def take(self, session: str, queue: str, handlers: Sequence[str], limit: int) -> list[Task]:
        values = (session, queue, json.dumps(list(handlers)))
        if not await self._fetch(f"SELECT 1 FROM tasks WHERE {_WAITING} LIMIT 1", values):
            return []

        def work(db: apsw.Connection) -> list[Task]:
            if db.execute(LIVE, (session,)).fetchone() is None:
                return []
            rows = db.execute(_TAKE, (*values, limit, self._now()))
            return [Task(_taking(row), *row[5:]) for row in rows]

        return await self._write(work)

    async def begin(self, session: str, beginnings: Sequence[Beginning]) -> tuple[set[Taking], set[str | None]]:
        def work(db: apsw.Connection) -> tuple[set[Taking], set[str | None]]:
            if db.execute(LIVE, (session,)).fetchone() is None:
                return set(), set()
            begun = [each for each in beginnings if self._begin(db, session, each)]
            owners = (self._post(db, each.message) for each in begun if each.message is not None)
            return {each.taking for each in begun}, set(chain.from_iterable(owners))

        return await self._write(work)

    def _begin(self, db: apsw.Connection, session: str, beginning: Beginning) -> bool:
        now = self._now()
        key, number = beginning.taking
        db.execute(_BEGIN, (now if beginning.marks else None, now, *key, number, session))
        return db.changes() > 0

    async def answer(self, session: str, answers: Sequence[Answered]) -> set[str | None]:
        def work(db: apsw.Connection) -> set[str | None]:
            owners: set[str | None] = set()
            for answered in answers:
                owners.update(self._post(db, answered.message))
                key, number = answered.taking
                db.execute(f"DELETE FROM tasks WHERE {_IS_MINE}", (*key, number, session))
                if not db.changes():
                    continue  # its progress is reported by the worker that has it now
                if answered.is_last:
                    db.execute(_NO_PROGRESS, key[:2])
                elif answered.progress is not None:
                    db.execute(_PROGRESS, (*key[:2], answered.progress))
            return owners

        return await self._write(work)

    def _post(self, db: apsw.Connection, message: MailMessage) -> list[str | None]:
        return _post(db, message, self._now())

    async def give_back(self, session: str, takings: Sequence[Taking], why: str = "") -> None:
        by = f"{session} " if why else ""
        values = [(why, by, *key, number, session) for key, number in takings]
        await self._write(lambda db: db.executemany(_GIVE_BACK, values))

    async def try_again(self, session: str) -> None:
        query = "UPDATE tasks SET parked_by = replace(parked_by, ?, '') WHERE parked_by <> ''"
        await self._write(lambda db: db.execute(query, (f"{session} ",)))

    async def held(self, session: str) -> list[Held]:
        query = (
            f"SELECT {_KEY}, takings, begun_at IS NOT NULL, status, cancel_requested FROM tasks "
            "JOIN executions ON executions.id = tasks.execution WHERE session = ?"
        )
        rows = await self._fetch(query, (session,))
        return [Held(_taking(row), bool(row[5]), row[6], bool(row[7])) for row in rows]

    async def beat(self, session: str, progress: Mapping[Taking, bytes]) -> None:
        def work(db: apsw.Connection) -> None:
            db.execute("UPDATE tasks SET beat_at = ? WHERE session = ?", (self._now(), session))
            for (key, number), body in progress.items():
                db.execute(_MY_PROGRESS, (body, *key, number, session))

        await self._write(work)

    async def sweep(self, lease_ms: int) -> int:
        if not await self._fetch(f"SELECT 1 {_ORPHANS} LIMIT 1", ()):
            return 0

        def work(db: apsw.Connection) -> int:
            found = [
                (TaskKey(*row[:4]), bool(row[4]))
                for row in db.execute(f"SELECT {_KEY}, begun_at IS NOT NULL {_ORPHANS}")
            ]
            for key, begun in found:
                if begun:
                    self._post(db, loss(key, self._now(), lease_ms))
                    db.execute(f"DELETE FROM tasks WHERE {_IS_KEY}", key)
                else:
                    db.execute(f"UPDATE tasks SET session = NULL, beat_at = NULL WHERE {_IS_KEY}", key)
            return len(found)

        return await self._write(work)

    async def of(self, execution: str) -> list[TaskState]:
        return [
            TaskState(
                key=TaskKey(*row[:4]),
                plan=row[4],
                queue=row[5],
                handler=row[6],
                worker=row[7],
                begun=bool(row[8]),
                progress=row[9],
                parked=row[10],
            )
            for row in await self._fetch(_OF, (execution,))
        ]


def withdraw(db: apsw.Connection, unwanted: Sequence[TaskWithdrawn], now: int) -> None:
    """In the transaction that records why."""
    gone: list[TaskKey] = []
    for task in unwanted:
        key = TaskKey(task.execution, task.path, task.phase, task.number)
        db.execute(_WITHDRAW, (*key, task.sends))
        if db.changes():
            gone.append(key)
    for message in withdrawals(gone, now):
        _post(db, message, now)


def _post(db: apsw.Connection, message: MailMessage, now: int) -> list[str | None]:
    """The owner of the execution, if there is such an execution."""
    owners = db.execute("UPDATE executions SET wake_at = ? WHERE id = ? RETURNING owner", (now, message.execution))
    found = [owner for (owner,) in owners]
    if found:
        query = "INSERT OR IGNORE INTO mailbox (id, execution, body, received_at) VALUES (?, ?, ?, ?)"
        db.execute(query, (message.id, message.execution, message.body, now))
    return found


def _taking(row: Sequence[Any]) -> Taking:
    return Taking(TaskKey(*row[:4]), row[4])
