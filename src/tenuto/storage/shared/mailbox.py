"""Reads of the mailbox that both databases share."""

from collections.abc import Sequence

from tenuto.storage.port import MAIL_AT_ONCE, Mail

from .database import Database

WOKEN_AT_ONCE = 1_000

_ASLEEP = "owner IS NULL AND wake_at IS NULL AND parked = ''"
_UNREAD_ASLEEP = f"""
SELECT DISTINCT m.execution FROM mailbox m JOIN executions e ON e.id = m.execution
WHERE m.verdict IS NULL AND {_ASLEEP} LIMIT $1"""
_UNREAD = """
SELECT m.id, m.execution, m.body, m.received_at FROM mailbox m JOIN executions e ON e.id = m.execution
WHERE m.verdict IS NULL AND e.owner = $1 ORDER BY m.received_at, m.id LIMIT $2"""


class SqlMailbox:
    """The part of `Mailbox` that is the same on both databases."""

    def __init__(self, database: Database) -> None:
        self._sql = database

    async def unread(self, session: str) -> list[Mail]:
        rows = await self._sql.fetch(_UNREAD, (session, MAIL_AT_ONCE))
        return [Mail(id=id, execution=execution, body=body, received_at=at) for id, execution, body, at in rows]

    async def verdicts(self, ids: Sequence[str]) -> dict[str, bytes]:
        query = f"SELECT id, verdict FROM mailbox WHERE id {self._sql.dialect.among} AND verdict IS NOT NULL"
        return {row[0]: row[1] for row in await self._sql.fetch(query, (self._sql.listed(ids),))}

    async def wake_unread(self) -> int:
        sql = self._sql
        rows = await sql.fetch(_UNREAD_ASLEEP, (WOKEN_AT_ONCE,))
        if not rows:
            return 0
        query = f"UPDATE executions SET wake_at = {sql.clock()} WHERE id {sql.dialect.among} AND {_ASLEEP} RETURNING id"
        return len(await sql.run(query, (sql.listed([id for (id,) in rows]),)))
