"""Status changes of executions, on both databases."""

from collections.abc import Sequence

from tenuto.storage.status_changes import COLUMNS, ROWS_AT_ONCE, ChangesRow, Positions, decode_changes

from .database import Database

_POSITIONS = """
SELECT coalesce((SELECT min(position) FROM status_changes), 0),
    coalesce((SELECT max(position) FROM status_changes), 0)"""
_AFTER = f"""
SELECT position, at, changes FROM status_changes WHERE position > $1 ORDER BY position LIMIT {ROWS_AT_ONCE}"""
_AT = "SELECT position, at, changes FROM status_changes WHERE position IN ({}) ORDER BY position"
# Rows are nearly in the order of time: the search for the first to keep passes over those to delete alone.
_FIRST_KEPT = """
SELECT (SELECT min(position) FROM status_changes), coalesce(
    (SELECT position FROM status_changes WHERE at >= $1 ORDER BY position LIMIT 1),
    (SELECT max(position) FROM status_changes))"""
_FORGET = "DELETE FROM status_changes WHERE position < $1"


class SqlStatusChanges:
    """Implements `StatusChanges`."""

    def __init__(self, database: Database) -> None:
        self._sql = database

    async def positions(self) -> Positions:
        return Positions(*(await self._sql.fetch(_POSITIONS, ()))[0])

    async def after(self, position: int, missing: Sequence[int] = ()) -> list[ChangesRow]:
        rows = await self._sql.fetch(_AFTER, (position,))
        if missing:
            late = await self._sql.fetch(_AT.format(", ".join(f"{int(number)}" for number in missing)), ())
            rows = [*late, *rows]
        return [ChangesRow(number, at, decode_changes(changes)) for number, at, changes in rows]

    async def forget(self, before: int) -> None:
        first, kept = (await self._sql.fetch(_FIRST_KEPT, (before,)))[0]
        if first is not None and first < kept:
            await self._sql.run(_FORGET, (kept,))


def columns_of(table: str) -> str:
    """The columns of a change, from a table of executions."""
    return ", ".join(f"{table}.{name}" for name in COLUMNS)
