"""Statements that both dialects understand, with numbered parameters: `$1`, `$2`, …"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from msgspec import structs

from tenuto.views.projections import AuditRow

Statement: TypeAlias = tuple[str, Sequence[object]]

NOTE = f"INSERT INTO audit ({', '.join(AuditRow.__struct_fields__)}) VALUES ($1, $2, $3, $4, $5, $6, $7)"


class Statements(Protocol):
    """A database that runs statements."""

    async def fetch(self, query: str, values: Sequence[object]) -> list[Any]: ...

    async def run(self, query: str, values: Sequence[object]) -> list[Any]:
        """Runs one statement that writes. Returns the rows that it returns."""

    async def run_all(self, statements: Sequence[Statement]) -> bool:
        """Runs all of them in one transaction, or none: the first must return a row."""


def noting(row: AuditRow | None) -> list[Statement]:
    """The statement that writes a row of the audit, if there is one."""
    return [] if row is None else [(NOTE, structs.astuple(row))]


def marks(count: int) -> str:
    return ", ".join(f"${number + 1}" for number in range(count))
