"""The log of callbacks: every one that was authenticated, with its verdict. Append-only."""

from typing import Any

from msgspec import structs

from tenuto.views.jobs import CallbackRow

from .statements import Statements, marks

_COLUMNS = CallbackRow.__struct_fields__


class CallbackLog:
    """Reads the log, and adds callbacks that no execution decided: those that were rejected, or are for no job.

    All others are written with the decision on them.
    """

    def __init__(self, statements: Statements) -> None:
        self._sql = statements

    async def add(self, row: CallbackRow) -> None:
        query = f"INSERT INTO callbacks ({', '.join(_COLUMNS)}) VALUES ({marks(len(_COLUMNS))})"
        await self._sql.run(query, structs.astuple(row))

    async def page(self, tenant: str | None, execution: str, after: str | None, limit: int) -> list[CallbackRow]:
        """The callbacks of a job, oldest first. `after` is the last id of the page before."""
        conditions, values = ["execution = $1"], [execution]
        for condition, value in (("tenant = ${}", tenant), ("id > ${}", after)):
            if value is not None:
                values.append(value)
                conditions.append(condition.format(len(values)))
        where = " AND ".join(conditions)
        query = f"SELECT {', '.join(_COLUMNS)} FROM callbacks WHERE {where} ORDER BY id LIMIT {limit:d}"
        found: list[Any] = await self._sql.fetch(query, values)
        return [CallbackRow(**dict(zip(_COLUMNS, row, strict=True))) for row in found]

    async def counts(self) -> dict[str, int]:
        query = "SELECT verdict, count(*) FROM callbacks GROUP BY verdict"
        return {row[0]: row[1] for row in await self._sql.fetch(query, ())}
