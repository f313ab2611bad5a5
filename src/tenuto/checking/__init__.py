"""Whether what is stored is sound: every invariant, asked of a database or of an export of one.

Three things can be asked for: `export_lines`, the whole record as lines of JSON; `check`, every violation in a record;
`stuck`, what somebody should have done by now, by queries alone. All of them only read.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from msgspec import Struct

from tenuto.storage import make_reader
from tenuto.storage.records import Reader

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


async def records_of(url: str, version: str = "") -> AsyncIterator[Struct]:
    async with _opened(url) as reader:
        async for record in read_database(reader, version):
            yield record


def records_of_lines(lines: Iterable[bytes]) -> AsyncIterator[Struct]:
    return read_lines(lines)


async def export_lines(url: str, version: str) -> AsyncIterator[bytes]:
    async for line in Exporter().lines(records_of(url, version)):
        yield line


async def check_database(url: str, *, slack_ms: int = SLACK_MS) -> list[Finding]:
    """All that is wrong with a database, for those who expect nothing."""
    return [found async for found in Checker(slack_ms=slack_ms).findings(records_of(url))]


async def find_stuck_in(url: str, slack_ms: int = SLACK_MS) -> AsyncIterator[Finding]:
    async with _opened(url) as reader:
        async for found in find_stuck(reader, slack_ms):
            yield found
