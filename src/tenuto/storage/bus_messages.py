"""The messages of the embedded bus: one row each, until its receiver completes it.

A receiver locks a message for a time. If the lock expires, the message is delivered again. After `MAX_DELIVERIES` it is
a dead letter, which stays until it expires.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from .statements import Statements, marks

MAX_DELIVERIES: Final = 10
EXPIRED_AT_ONCE: Final = 1_000


class BusMessage(Struct, frozen=True, kw_only=True):
    """A directive on a topic, for the workers of one service. Of two, that with the higher priority leaves first."""

    id: str
    execution: str
    tenant: str
    topic: str
    service: str
    priority: int
    body: bytes
    published_at: int
    due_at: int
    expires_at: int


class Delivery(NamedTuple):
    """A message that was received and locked."""

    id: str
    tenant: str
    topic: str
    body: bytes
    lock_token: str
    locked_until: int
    deliveries: int
    expires_at: int


class TopicDepth(NamedTuple):
    """The messages of a service on a topic. `dead` are its dead letters."""

    topic: str
    service: str
    waiting: int
    locked: int
    dead: int
    oldest_at: int | None


_COLUMNS = BusMessage.__struct_fields__
_LIVE = "dead_reason IS NULL"


class BusMessages:
    def __init__(self, statements: Statements, *, skip_locked: bool) -> None:
        self._sql = statements
        lock = "FOR UPDATE SKIP LOCKED" if skip_locked else ""
        self._receive = f"""
            UPDATE bus_messages SET lock_token = $3, locked_until = $4, deliveries = deliveries + 1
            WHERE id IN (
                SELECT id FROM bus_messages
                WHERE service = $1 AND {_LIVE} AND due_at <= $2 AND expires_at > $2 AND deliveries < {MAX_DELIVERIES}
                    AND (locked_until IS NULL OR locked_until <= $2) AND ($6 = '' OR tenant = $6)
                ORDER BY priority DESC, published_at, id LIMIT $5 {lock})
            RETURNING id, tenant, topic, body, lock_token, locked_until, deliveries, expires_at, priority,
                published_at"""

    async def publish(self, message: BusMessage) -> None:
        """Stores a message. One with the same id is stored once."""
        query = (
            f"INSERT INTO bus_messages ({', '.join(_COLUMNS)}) VALUES ({marks(len(_COLUMNS))}) "
            "ON CONFLICT (id) DO NOTHING"
        )
        await self._sql.run(query, tuple(getattr(message, name) for name in _COLUMNS))

    async def receive(
        self, service: str, now: int, token: str, locked_until: int, limit: int, tenant: str | None
    ) -> list[Delivery]:
        if not await self.has_due(service, now, tenant):
            return []
        rows = await self._sql.run(self._receive, (service, now, token, locked_until, limit, tenant or ""))
        ordered = sorted((tuple(row) for row in rows), key=lambda row: (-row[8], row[9], row[0]))
        return [Delivery(row[0], row[1], row[2], bytes(row[3]), *row[4:8]) for row in ordered]

    async def has_due(self, service: str, now: int, tenant: str | None) -> bool:
        """Whether something can be received. A read, so that waiting receivers do not write."""
        query = (
            f"SELECT 1 FROM bus_messages WHERE service = $1 AND {_LIVE} AND due_at <= $2 AND expires_at > $2 "
            f"AND deliveries < {MAX_DELIVERIES} AND (locked_until IS NULL OR locked_until <= $2) "
            "AND ($3 = '' OR tenant = $3) LIMIT 1"
        )
        return bool(await self._sql.fetch(query, (service, now, tenant or "")))

    async def service_of(self, id: str) -> tuple[str, str] | None:
        """The service and the tenant of a message."""
        rows = await self._sql.fetch("SELECT service, tenant FROM bus_messages WHERE id = $1", (id,))
        return (rows[0][0], rows[0][1]) if rows else None

    async def complete(self, id: str, token: str, now: int) -> bool:
        """Removes a message. False: the lock is lost, here and in the methods below."""
        return await self._settle("DELETE FROM bus_messages", (id, token, now))

    async def abandon(self, id: str, token: str, now: int, due_at: int) -> bool:
        return await self._settle(
            "UPDATE bus_messages SET lock_token = NULL, locked_until = NULL, due_at = $4", (id, token, now, due_at)
        )

    async def renew(self, id: str, token: str, now: int, locked_until: int) -> bool:
        return await self._settle("UPDATE bus_messages SET locked_until = $4", (id, token, now, locked_until))

    async def dead_letter(self, id: str, token: str, now: int, reason: str) -> bool:
        return await self._settle(
            "UPDATE bus_messages SET lock_token = NULL, locked_until = NULL, dead_reason = $4",
            (id, token, now, reason),
        )

    async def _settle(self, change: str, values: Sequence[object]) -> bool:
        where = f"WHERE id = $1 AND lock_token = $2 AND locked_until > $3 AND {_LIVE} RETURNING id"
        return bool(await self._sql.run(f"{change} {where}", values))

    async def withdraw(self, execution: str) -> list[str]:
        """Removes the messages of a job that no receiver has seen, and returns their ids."""
        query = f"DELETE FROM bus_messages WHERE execution = $1 AND deliveries = 0 AND {_LIVE} RETURNING id"
        return [id for (id,) in await self._sql.run(query, (execution,))]

    async def sweep(self, now: int) -> None:
        """Makes dead letters of messages that were delivered too often, and removes those that have expired."""
        worn_out = f"{_LIVE} AND deliveries >= {MAX_DELIVERIES} AND (locked_until IS NULL OR locked_until <= $1)"
        if await self._sql.fetch(f"SELECT 1 FROM bus_messages WHERE {worn_out} LIMIT 1", (now,)):
            query = "UPDATE bus_messages SET dead_reason = 'max_deliveries', lock_token = NULL, locked_until = NULL"
            await self._sql.run(f"{query} WHERE {worn_out}", (now,))
        if await self._sql.fetch("SELECT 1 FROM bus_messages WHERE expires_at <= $1 LIMIT 1", (now,)):
            await self._sql.run("DELETE FROM bus_messages WHERE expires_at <= $1", (now,))

    async def depths(self, now: int) -> list[TopicDepth]:
        locked = f"{_LIVE} AND locked_until > $1"
        query = f"""
            SELECT topic, service, sum(CASE WHEN {_LIVE} AND (locked_until IS NULL OR locked_until <= $1) THEN 1
                ELSE 0 END), sum(CASE WHEN {locked} THEN 1 ELSE 0 END),
                sum(CASE WHEN {_LIVE} THEN 0 ELSE 1 END), min(CASE WHEN {_LIVE} THEN published_at END)
            FROM bus_messages GROUP BY topic, service ORDER BY topic, service"""
        return [TopicDepth(*row) for row in await self._sql.fetch(query, (now,))]


def message_id(job: str, step: str, attempt: int, lease: str) -> str:
    """The id by which receivers deduplicate a directive."""
    return f"{job}/{step}/{attempt}/{lease}"


def attempt_of(id: str) -> tuple[str, str, int]:
    """The job, step and attempt of a message's id."""
    job, step, attempt, _ = id.split("/")
    return job, step, int(attempt)
