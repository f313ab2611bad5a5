"""The port of ledgers: reads of jobs, steps and attempts, and the index of idempotency keys.

The rows in the engine's database are written with the decisions that they follow from. Another ledger is a copy of
them: `Copy` names what it does not have yet.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from tenuto.views.jobs import LedgerAttempt, LedgerRow


class IndexRow(Struct, frozen=True, kw_only=True):
    """The job that an idempotency key created."""

    execution: str
    tenant: str
    hash: str
    created_at: int


class JobRecord(Struct, frozen=True, kw_only=True):
    """A job with its steps, as the ledger has it. `job.seq` is its version."""

    job: LedgerRow
    steps: list[LedgerRow]


class JobsWanted(Struct, frozen=True, kw_only=True):
    """A filter. A field that is None matches everything."""

    tenant: str | None = None
    status: str | None = None
    protocol: str | None = None
    since: int | None = None
    before: int | None = None


class Ledger(Protocol):
    """The reads of the job endpoints. They answer None for a job of another tenant."""

    async def job(self, tenant: str | None, id: str) -> JobRecord | None: ...

    async def attempts(self, tenant: str | None, id: str, step: str | None) -> list[LedgerAttempt] | None:
        """The attempts of a job, or of one of its steps, in the order of their numbers."""

    async def check(self) -> None:
        """Raises `StorageError` unless the ledger can be reached."""


class LedgerCopies(Protocol):
    """A ledger outside the engine's database, which is written after it."""

    async def write(
        self, rows: Sequence[LedgerRow], attempts: Sequence[LedgerAttempt], index: Sequence[IndexRow]
    ) -> None:
        """Writes rows of one job. An older row never replaces a newer one, and a repetition changes nothing."""
