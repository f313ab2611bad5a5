"""Requests to send one command to many executions or dead letters."""

from dataclasses import dataclass
from typing import Literal

from tenuto.kernel.definition import CancelMode
from tenuto.storage.reviews import ReviewsWanted

from .filters import Filter


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRequest:
    """Cancels or retries up to `limit` executions. With `dry_run`, only returns which."""

    verb: Literal["cancel", "retry"]
    wanted: Filter
    reason: str
    limit: int
    cursor: str | None
    mode: CancelMode | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprocessRequest:
    """Reprocesses up to `limit` dead letters."""

    wanted: ReviewsWanted
    reason: str
    limit: int
    cursor: str | None
