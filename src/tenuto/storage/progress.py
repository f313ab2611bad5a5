"""The progress that handlers report."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class ProgressRow(Struct, frozen=True):
    """The progress of a step, as its handler reported it."""

    execution: str
    path: str
    body: bytes


class Progress(Protocol):
    async def of(self, executions: Sequence[str]) -> list[ProgressRow]: ...

    async def save(self, rows: Sequence[ProgressRow], gone: Sequence[tuple[str, str]]) -> None:
        """Writes rows, and deletes those of these executions and paths."""
