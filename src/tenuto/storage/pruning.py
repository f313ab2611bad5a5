"""Deletes old executions in small transactions that use an index, so that other work is not disturbed.

An execution is deleted as a whole: its row first, because triggers protect the events of existing executions, then
everything that belongs to it. An execution stays, however old, while something waits for a person, such as an open dead
letter. It also stays while it has unpublished messages, unread mail or an owner.

A long history is not deleted in one transaction. The transaction that deletes the row adds a row to `leftovers`. The
events follow in pieces, and the row in `leftovers` goes last. If the process dies, the next pruning finishes its work.

Shared by both dialects.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from .statements import Statement

AT_ONCE = 200  # executions, or rows of another kind, in one transaction
ENTRIES_AT_ONCE = 2_000
ONCE = "tenuto.once/"  # the consumer of `ctx.once`, before the execution's id

_PRUNABLE = """
ended_at IS NOT NULL AND owner IS NULL AND wake_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM reviews r WHERE r.execution = executions.id AND r.resolution IS NULL)
    AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.execution = executions.id AND o.published_at IS NULL)"""
_CHILDREN = (
    "DELETE FROM snapshots WHERE execution",
    "DELETE FROM reviews WHERE execution",
    "DELETE FROM mailbox WHERE verdict IS NOT NULL AND execution",
    "DELETE FROM mailbox WHERE verdict IS NULL AND execution",
    "DELETE FROM tasks WHERE execution",
    "DELETE FROM progress WHERE execution",
    "DELETE FROM outbox WHERE execution",
    "DELETE FROM sent_notifications WHERE execution",
    "DELETE FROM ledger WHERE execution",
    "DELETE FROM ledger_attempts WHERE execution",
    "DELETE FROM job_index WHERE execution",
    "DELETE FROM callbacks WHERE execution",
    "DELETE FROM bus_messages WHERE execution",
)


class Cursor(NamedTuple):
    """How far a sweep has come, in the order in which executions ended."""

    ended_at: int = -1
    id: str = ""


class Statements(Protocol):
    async def fetch(self, query: str, values: Sequence[object]) -> list[Any]: ...

    async def run(self, query: str, values: Sequence[object]) -> list[Any]: ...

    async def run_all(self, statements: Sequence[Statement]) -> bool: ...


class Pruning:
    def __init__(self, statements: Statements) -> None:
        self._sql = statements

    async def executions(self, before: int, after: Cursor) -> tuple[int, Cursor | None]:
        """Removes some of those that ended before this time. Gives how many, and where to go on; None at the end."""
        query = f"""
            SELECT id, ended_at, seq, CASE WHEN {_PRUNABLE} THEN 1 ELSE 0 END AS prunable FROM executions
            WHERE ended_at IS NOT NULL AND ended_at < $1 AND (ended_at, id) > ($2, $3)
            ORDER BY ended_at, id LIMIT {AT_ONCE}"""
        found = [tuple(row) for row in await self._sql.fetch(query, (before, *after))]
        prunable = [(id, seq) for id, _, seq, prunable in found if prunable]
        removed = 0
        for group in _groups([(id, seq) for id, seq in prunable if seq <= ENTRIES_AT_ONCE]):
            removed += await self._remove(group)
        for id in (id for id, seq in prunable if seq > ENTRIES_AT_ONCE):
            removed += await self._remove_long(id)
        last = Cursor(found[-1][1], found[-1][0]) if len(found) == AT_ONCE else None
        return removed, last

    async def _remove(self, ids: list[str]) -> int:
        marks = _marks(ids)
        # An execution that was retried meanwhile stays, with everything that belongs to it.
        kept = f"SELECT id FROM executions WHERE id IN ({marks})"
        gone = f"IN ({marks}) AND execution NOT IN ({kept})"
        row = f"DELETE FROM executions WHERE id IN ({marks}) AND {_PRUNABLE} RETURNING id"
        notes = f"""
            DELETE FROM inbox WHERE consumer IN ({_marks(ids, ONCE)})
                AND substr(consumer, {len(ONCE) + 1}) NOT IN ({kept})"""
        run = f"DELETE FROM runs WHERE id IN ({marks}) AND id NOT IN ({kept})"
        children = [run, f"DELETE FROM events WHERE execution {gone}", *(f"{child} {gone}" for child in _CHILDREN)]
        statements: list[Statement] = [(row, ids), *((child, ids) for child in children), (notes, ids)]
        return len(ids) if await self._sql.run_all(statements) else 0

    async def _remove_long(self, id: str) -> int:
        row = f"DELETE FROM executions WHERE id = $1 AND {_PRUNABLE} RETURNING id"
        note = "INSERT INTO leftovers (execution) VALUES ($1)"
        run = "DELETE FROM runs WHERE id = $1"
        if not await self._sql.run_all([(row, [id]), (note, [id]), (run, [id])]):
            return 0
        await self._clear(id)
        return 1

    async def leftovers(self) -> None:
        """Finishes what others began."""
        for row in await self._sql.fetch("SELECT execution FROM leftovers", ()):
            await self._clear(row[0])

    async def _clear(self, id: str) -> None:
        piece = f"""
            DELETE FROM events WHERE execution = $1 AND seq <= (
                SELECT max(seq) FROM (SELECT seq FROM events WHERE execution = $1 ORDER BY seq LIMIT {ENTRIES_AT_ONCE})
                AS first)
            RETURNING seq"""
        while await self._sql.run(piece, (id,)):
            pass
        note = "DELETE FROM leftovers WHERE execution = $1 RETURNING execution"
        notes = "DELETE FROM inbox WHERE consumer = $1"
        rest: list[Statement] = [(f"{child} = $1", [id]) for child in _CHILDREN]
        await self._sql.run_all([(note, [id]), *rest, (notes, [ONCE + id])])

    async def messages(self, before: int) -> int:
        """Messages that left before this time, of executions that are kept."""
        return await self._some("outbox", "execution, seq", "published_at IS NOT NULL AND published_at < $1", before)

    async def notes(self, before: int) -> int:
        """What consumers met before this time. The marks of `ctx.once` go with their executions."""
        return await self._some("inbox", "consumer, id", "substr(consumer, 1, 7) <> 'tenuto.' AND at < $1", before)

    async def _some(self, table: str, key: str, where: str, before: int) -> int:
        query = f"""
            DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE {where} LIMIT {AT_ONCE})
            RETURNING 1"""
        return len(await self._sql.run(query, (before,)))


def _groups(found: list[tuple[str, int]]) -> list[list[str]]:
    """Executions that go together: few enough that their histories are a small transaction."""
    groups: list[list[str]] = []
    room = 0
    for id, entries in found:
        if not groups or entries > room:
            groups.append([])
            room = ENTRIES_AT_ONCE
        groups[-1].append(id)
        room -= entries
    return groups


def _marks(ids: Sequence[str], prefix: str = "") -> str:
    before = f"'{prefix}' || " if prefix else ""
    return ", ".join(f"{before}${number}" for number in range(1, len(ids) + 1))
