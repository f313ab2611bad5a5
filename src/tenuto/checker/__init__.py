"""Checks stored data: every invariant, on a database or on an export of one.

There are three functions: `export_lines` writes all records as lines of JSON; `check` reports every violation; `stuck`
reports overdue work, by queries alone. All of them only read. To stop early, close the iterator (`aclosing`), which
also closes the database.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager

from msgspec import Struct

from tenuto.storage import make_reader
from tenuto.storage.shared.records import Reader

from .check import Checker, Counts
from .export import Exporter
from .findings import Finding
from .invariants import INVARIANTS, Invariant
from .ndjson import read_lines
from .records import read_database
from .stuck import SLACK_MS, find_stuck

__all__ = [
    "INVARIANTS",
    "SLACK_MS",
    "Checker",
    "Counts",
    "Finding",
    "Invariant",
    "check_database",
    "export_lines",
    "find_stuck_in",
    "records_of",
    "records_of_lines",
]


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[Reader]:
    reader = make_reader(url)
    await reader.open()
    try:
        yield reader
    finally:
        await reader.close()


async def records_of(url: str, version: str = "") -> AsyncGenerator[Struct]:
    async with _opened(url) as reader, aclosing(read_database(reader, version)) as records:
        async for record in records:
            yield record


def records_of_lines(lines: Iterable[bytes]) -> AsyncGenerator[Struct]:
    return read_lines(lines)


async def export_lines(url: str, version: str) -> AsyncGenerator[bytes]:
    async with aclosing(records_of(url, version)) as records:
        async for line in Exporter().lines(records):
            yield line


async def check_database(url: str, *, slack_ms: int = SLACK_MS) -> list[Finding]:
    """Returns all violations in a database."""
    async with aclosing(records_of(url)) as records:
        return [found async for found in Checker(slack_ms=slack_ms).findings(records)]


async def find_stuck_in(url: str, slack_ms: int = SLACK_MS) -> AsyncGenerator[Finding]:
    async with _opened(url) as reader, aclosing(find_stuck(reader, slack_ms)) as findings:
        async for found in findings:
            yield found
