"""Stored executions and their histories."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct


class ExecutionRow(Struct, frozen=True, kw_only=True):
    """An execution without its history."""

    id: str
    tenant: str
    definition: str
    version: int
    status: str
    run: int
    seq: int
    epoch: int
    owner: str | None
    wake_at: int | None
    priority: int
    correlation_id: str
    target_type: str
    target_id: str
    key: str | None
    concurrency_key: str | None
    request_hash: str
    cancel_requested: bool
    error_class: str
    parked: str
    created_at: int
    ended_at: int | None


class SnapshotRow(Struct, frozen=True):
    """A snapshot of the state after entry `seq`."""

    execution: str
    seq: int
    body: bytes


class Loaded(Struct, frozen=True):
    """A stored execution. `bodies` are its rows in order: all, or with a snapshot the first one and the later ones."""

    row: ExecutionRow
    snapshot: SnapshotRow | None
    bodies: list[bytes]


class Wanted(Struct, frozen=True, kw_only=True):
    """A filter. A field that is None matches everything."""

    tenant: str | None = None
    status: str | None = None
    definition: str | None = None
    correlation_id: str | None = None
    target_id: str | None = None
    since: int | None = None
    before: int | None = None
    active: bool = False
    newest_first: bool = False
    version: int | None = None
    error_class: str | None = None
    failed: bool = False  # executions that ended with an error
    q: str | None = None  # an id or its beginning, or an idempotency key, a target or a correlation id


class Executions(Protocol):
    """Reads of executions and their histories."""

    async def load(self, ids: Sequence[str], *, short: bool = False) -> list[Loaded]:
        """Executions with their histories, in no particular order. Unknown ones are left out.

        `short`: an execution with a snapshot comes with that, its first row, and the rows after the snapshot.
        """

    async def bodies(self, id: str, first: int, last: int) -> list[bytes]:
        """The rows that hold the entries first..last."""

    async def holding(self, id: str, seqs: Sequence[int]) -> list[bytes]:
        """The rows that hold these entries."""

    async def tails(self, after: Mapping[str, int]) -> dict[str, list[bytes]]:
        """For each execution the rows after this entry, in order. Executions without such rows are left out."""

    async def find(self, id: str) -> ExecutionRow | None: ...

    async def find_by_keys(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
        """For pairs of a tenant and an idempotency key: the execution, and the hash of the request that started it."""

    async def page(self, wanted: Wanted, after: str | None, limit: int) -> list[ExecutionRow]:
        """One page, by default oldest first. `after`: the last id of the page before."""

    async def count(self, wanted: Wanted, by: str) -> dict[str, int]: ...

    async def statuses(self, ids: Sequence[str], tenant: str | None = None) -> dict[str, str]:
        """The status of these executions; only this tenant's, if one is given."""

    async def changed(self, known: Sequence[tuple[str, str]]) -> list[str]:
        """For pairs of an id and a status: the executions that have another status, or no longer exist."""
