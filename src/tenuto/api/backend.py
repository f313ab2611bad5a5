"""Where the executions of an engine live: in a runtime of this process, or at a service."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from tenuto.errors import NotSupported
from tenuto.runtime.port import (
    Admission,
    AuditLog,
    Commands,
    Dispatch,
    Executions,
    Feed,
    Lifecycle,
    Limits,
    Operations,
    Programs,
    Reviews,
)
from tenuto.runtime.shared.bulk_requests import BulkRequest, ReprocessRequest
from tenuto.storage.credits import CreditStore
from tenuto.storage.notices import Notices
from tenuto.storage.runs import RunStore
from tenuto.views import DeadLetterRow
from tenuto.views.bulk_results import BulkResult

from .identity import Identity

if TYPE_CHECKING:
    from tenuto.client.jobs import RemoteJobs


class CompositeCommands(Protocol):
    """Commands that take several steps: `command` for each one from this process, or one request to a service."""

    async def for_executions(self, request: BulkRequest, command: Callable[[str], Awaitable[None]]) -> BulkResult:
        """Sends a command to the executions that match a filter."""

    async def for_dead_letters(
        self, request: ReprocessRequest, command: Callable[[str], Awaitable[None]]
    ) -> BulkResult:
        """Reprocesses the dead letters that match a filter."""

    async def for_dead_letter(
        self,
        verb: Literal["reprocess", "discard"],
        id: str,
        reason: str,
        command: Callable[[], Awaitable[DeadLetterRow]],
    ) -> DeadLetterRow:
        """Reprocesses or discards one dead letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The collaborators of an engine, one for each kind of work."""

    lifecycle: Lifecycle
    commands: Commands
    composite: CompositeCommands
    programs: Programs
    executions: Executions
    reviews: Reviews
    admission: Admission
    limits: Limits
    audit: AuditLog
    identity: Identity
    operations: Operations
    feed: Feed
    notices: Notices | None  # None: no handlers run here
    dispatch: Dispatch | None  # None: the command gateway is elsewhere
    credits: Callable[[], CreditStore] | None = None  # None: a client of a service
    runs: Callable[[], RunStore] | None = None
    remote_jobs: "RemoteJobs | None" = None  # None: jobs are read from the ledger


def local_dispatch(backend: Backend) -> Dispatch:
    """What the command gateway needs. Raises `NotSupported` in a client of a service."""
    if backend.dispatch is None:
        raise NotSupported("Jobs are not available here over HTTP.", code="not_over_http", hint="use the service's API")
    return backend.dispatch
