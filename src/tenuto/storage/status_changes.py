"""Status changes of executions, in the order of their commits: what the feed of a process reads.

A commit writes one row with all its changes. On PostgreSQL, positions are assigned before commits become visible, so a
lower position may appear after a higher one. Readers therefore ask again for the positions that they are missing.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

KEPT_MS = 300_000  # how long a reader may be away and continue
ROWS_AT_ONCE = 1_000


class StatusChange(Struct, frozen=True, array_like=True, gc=False):
    """An execution as a commit left it."""

    id: str
    tenant: str
    definition: str
    version: int
    status: str
    seq: int
    created_at: int
    ended_at: int | None
    error_class: str


COLUMNS = StatusChange.__struct_fields__


class ChangesRow(Struct, frozen=True):
    """The changes of one commit."""

    position: int
    at: int
    changes: list[StatusChange]


class Positions(Struct, frozen=True):
    """The first and the last position that are stored; 0 if there is none."""

    first: int
    last: int


class StatusChanges(Protocol):
    async def positions(self) -> Positions: ...

    async def after(self, position: int, missing: Sequence[int] = ()) -> list[ChangesRow]:
        """The rows after this position, `ROWS_AT_ONCE` at most, and those at the missing ones, in order."""

    async def forget(self, before: int) -> None:
        """Deletes rows from before this time, except the last one, which tells how far positions have come."""


decode_changes = msgspec.json.Decoder(list[StatusChange]).decode
