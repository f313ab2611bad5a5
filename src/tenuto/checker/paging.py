"""All rows of a page of executions: one query for each kind, and of each the next row is at hand."""

from collections.abc import AsyncIterator, Collection

from msgspec import Struct

from tenuto.storage.shared.records import OF_EXECUTION, ExecutionRecord, Reader, select

_IN_PAGE = "t.execution > $1 AND t.execution <= $2"


class Rows:
    """The rows of one kind, in the order of their executions. Those of executions that are not there are left out."""

    def __init__(self, rows: AsyncIterator[Struct], executions: Collection[str]) -> None:
        self._rows = rows
        self._executions = executions
        self._next: Struct | None = None
        self._over = False

    async def of(self, execution: str) -> AsyncIterator[Struct]:
        """What belongs to this one. Executions are asked for in their order, each once."""
        while (row := await self._peek()) is not None and _execution(row) == execution:
            self._next = None
            yield row

    async def _peek(self) -> Struct | None:
        while not self._over and (self._next is None or _execution(self._next) not in self._executions):
            self._next = await anext(self._rows, None)
            self._over = self._next is None
        return self._next


def _execution(row: Struct) -> str:
    execution: str = getattr(row, "execution")  # noqa: B009  (what is read here has one, whatever kind it is)
    return execution


def rows_of_page(reader: Reader, after: str, page: list[ExecutionRecord]) -> list[Rows]:
    executions = frozenset(row.id for row in page)
    last = page[-1].id
    return [Rows(reader.rows(kind, select(kind, _IN_PAGE), after, last), executions) for kind in OF_EXECUTION]
