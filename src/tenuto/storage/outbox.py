"""The outbox as relays see it: messages that were committed with the events they tell of, and have to leave.

A message is chosen because it has not been published, never because its number is higher than the last one's: numbers
of different executions are committed in any order. Within an execution messages leave in the order of their numbers, so
only the first unpublished one of an execution can be taken, and those behind it with it. What a relay has taken carries
its session. If that ends before the message is marked as published, it is free again, and leaves twice: the promise is
"at least once".

Written once for both dialects. PostgreSQL's relays pass over what others are just taking; SQLite has one writer.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

AT_ONCE = 100  # messages of one execution that are taken together


class Waiting(Struct, frozen=True):
    """A message to be published, and how often that was tried in vain."""

    execution: str
    seq: int
    body: bytes
    tries: int


class OutboxStanding(NamedTuple):
    """`failing` are those whose last try failed; the ones behind them wait as well."""

    waiting: int
    failing: int
    oldest_at: int | None
    last_error: str


class Statements(Protocol):
    async def fetch(self, query: str, values: Sequence[object]) -> list[Any]: ...

    async def run(self, query: str, values: Sequence[object]) -> list[Any]: ...


class OutboxStore(Protocol):
    async def take(self, relay: str, now: int, executions: int) -> list[Waiting]:
        """Takes what is due of at most so many executions; of each in order, and in one piece."""

    async def published(self, relay: str, now: int, messages: Sequence[tuple[str, int]]) -> None: ...

    async def put_off(self, relay: str, execution: str, seq: int, due_at: int, error: str) -> None:
        """This message could not be published: it is tried again then, and those behind it wait for it."""

    async def give_back(self, relay: str) -> None:
        """The relay leaves: what it has taken and not published is free."""

    async def standing(self) -> OutboxStanding: ...


class SqlOutbox:
    """Implements `OutboxStore`."""

    def __init__(self, statements: Statements, *, skip_locked: bool) -> None:
        self._sql = statements
        # The `OR` keeps PostgreSQL from making a join of what follows it. When a row was changed by another relay since
        # the statement began, its conditions are looked at again, but rows that it was (not) joined with are not.
        lock = "FOR UPDATE SKIP LOCKED" if skip_locked else ""
        self._take = f"""
            WITH heads AS MATERIALIZED (
                SELECT execution, seq FROM outbox o
                WHERE published_at IS NULL AND due_at <= $2
                    AND (session IS NULL
                        OR NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = o.session AND s.ended_at IS NULL))
                    AND NOT EXISTS (SELECT 1 FROM outbox earlier WHERE earlier.execution = o.execution
                        AND earlier.seq < o.seq AND earlier.published_at IS NULL)
                ORDER BY due_at LIMIT $3 {lock}
            )
            UPDATE outbox SET session = $1 FROM heads
            WHERE outbox.execution = heads.execution AND outbox.seq >= heads.seq
                AND outbox.seq < heads.seq + {AT_ONCE} AND published_at IS NULL
            RETURNING outbox.execution, outbox.seq, outbox.body, outbox.tries"""

    async def take(self, relay: str, now: int, executions: int) -> list[Waiting]:
        if not await self._sql.fetch("SELECT 1 FROM outbox WHERE published_at IS NULL LIMIT 1", ()):
            return []
        rows = await self._sql.run(self._take, (relay, now, executions))
        return sorted((Waiting(*row) for row in rows), key=lambda message: (message.execution, message.seq))

    async def published(self, relay: str, now: int, messages: Sequence[tuple[str, int]]) -> None:
        marks = ", ".join(f"(${2 * n + 3}, CAST(${2 * n + 4} AS bigint))" for n in range(len(messages)))
        query = f"""
            UPDATE outbox SET published_at = $2, session = NULL, error = ''
            WHERE session = $1 AND (execution, seq) IN (VALUES {marks})"""
        await self._sql.run(query, (relay, now, *(value for message in messages for value in message)))

    async def put_off(self, relay: str, execution: str, seq: int, due_at: int, error: str) -> None:
        # Those behind it would be looked at in vain with every look until then: also those that were not taken with it.
        query = """
            UPDATE outbox SET session = NULL, due_at = $4, tries = CASE WHEN seq = $3 THEN tries + 1 ELSE tries END,
                error = CASE WHEN seq = $3 THEN $5 ELSE error END
            WHERE execution = $2 AND seq >= $3 AND published_at IS NULL AND (session = $1 OR session IS NULL)
                AND EXISTS (SELECT 1 FROM outbox o WHERE o.execution = $2 AND o.seq = $3 AND o.session = $1)"""
        await self._sql.run(query, (relay, execution, seq, due_at, error))

    async def give_back(self, relay: str) -> None:
        query = "UPDATE outbox SET session = NULL WHERE session = $1 AND published_at IS NULL"
        await self._sql.run(query, (relay,))

    async def standing(self) -> OutboxStanding:
        query = """
            SELECT count(*), coalesce(sum(CASE WHEN error <> '' THEN 1 ELSE 0 END), 0), min(created_at)
            FROM outbox WHERE published_at IS NULL"""
        ((waiting, failing, oldest_at),) = await self._sql.fetch(query, ())
        query = "SELECT error FROM outbox WHERE published_at IS NULL AND error <> '' ORDER BY due_at DESC LIMIT 1"
        errors = await self._sql.fetch(query, ())
        return OutboxStanding(waiting, failing, oldest_at, errors[0][0] if errors else "")
