"""The database as SQL that both dialects share sees it."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from tenuto.storage.statements import Statements


class Dialect(Struct, frozen=True, kw_only=True):
    """The parts of statements in which the databases differ."""

    name: str
    mark: str  # the sign of a numbered parameter
    among: str  # the condition that a column is in the list that is the first parameter
    plans: str  # pairs of a definition and a version, from a first parameter that is a JSON array


class Database(Statements, Protocol):
    """Runs statements with parameters `$1`, `$2`, ….

    SQLite has one writer: a statement that changes nothing goes through `fetch`, so that it does not wait for writes.
    """

    @property
    def dialect(self) -> Dialect: ...

    async def run_many(self, statements: Sequence[tuple[str, Sequence[Sequence[object]]]]) -> None:
        """Runs each statement once for each of its rows, all in one transaction."""

    def listed(self, values: Sequence[str]) -> object:
        """A list, as a parameter."""

    def clock(self) -> str:
        """The database's time in milliseconds, as an expression."""
