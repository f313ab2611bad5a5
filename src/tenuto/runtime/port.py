"""The ports of a runtime: one protocol for each kind of work.

A runtime drives the kernel. It turns what happens into facts, stores the entries that `decide` returns, and carries out
the agenda. The memory runtime keeps executions in a dict. The durable runtime commits entries to a database before they
take effect, and shares executions with other processes. So every operation may wait, and a `Reading` states its own
length, because the history behind it may grow.

The parts that need only a store are in `runtime.shared`. The HTTP client implements all ports but `Runtime` itself.
Reads raise `NotFound` for an object that does not exist or belongs to another tenant. `tenant` None means all tenants.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from tenuto.authoring.program import Handler, Program
from tenuto.errors import DefinitionError
from tenuto.kernel.events import Entry
from tenuto.kernel.facts import Answer, Fact
from tenuto.kernel.state import ExecutionStatus
from tenuto.runtime.publication import Published
from tenuto.runtime.shared.filters import Filter
from tenuto.runtime.shared.retention import Pruned
from tenuto.runtime.start_request import StartRequest, Submitted
from tenuto.runtime.vitals import Vitals
from tenuto.storage.audit import Kept, Verified
from tenuto.storage.catalog import Catalog, DefinitionStatus
from tenuto.storage.credits import CreditStore
from tenuto.storage.jobs import JobStore
from tenuto.storage.notices import Notices
from tenuto.storage.operations import BacklogRow
from tenuto.storage.outbox import OutboxStore
from tenuto.storage.registry import AuditWanted, Registry
from tenuto.storage.reviews import ReviewsWanted, ShownReview
from tenuto.storage.runs import RunStore
from tenuto.views import (
    AuditDocument,
    AuditRecord,
    EventDocument,
    ExecutionDocument,
    ExecutionSummary,
    LimitRow,
    TenantLimitRow,
    Until,
    WorkerRow,
)
from tenuto.views.feed import FeedChunk
from tenuto.views.overview import OverviewDocument
from tenuto.views.pages import Page
from tenuto.views.projections import AuditRow
from tenuto.views.reading import Reading


class Lifecycle(Protocol):
    """Opens and closes, and reports the health of this process."""

    async def open(self) -> None: ...

    async def close(self, grace_ms: int) -> None:
        """Starts nothing more, waits up to `grace_ms` for running handlers, then stops them."""

    def vitals(self) -> Vitals: ...

    async def check(self) -> None:
        """Raises `StorageError` unless executions can be stored: the database is available and has the right schema."""


class Commands(Protocol):
    """Starts executions and sends them facts."""

    async def submit(self, request: StartRequest) -> Submitted:
        """Starts an execution. Returns once it is durable."""

    async def tell(self, tenant: str | None, execution_id: str, fact: Fact) -> Answer:
        """Delivers a fact to its execution, whichever process owns it, and waits for the verdict."""


class Programs(Protocol):
    """The definitions that can be started, and the code for them."""

    @property
    def catalog(self) -> Catalog:
        """The stored definitions, including drafts."""

    def provide(self, program: Program) -> None:
        """Registers a program of this process. Does no I/O: the runtime stores its definition soon after."""

    def provided(self, name: str, version: int) -> Program | None:
        """The program of this definition, with the handlers that this process has. None if it is unknown."""

    def provide_handler(self, handler: Handler) -> None:
        """Registers a handler that JSON definitions call by name."""

    def knows(self, name: str) -> bool:
        """Whether a version of this definition is known without I/O."""

    async def publish(self, program: Program, note: AuditRow | None = None) -> bool:
        """Stores the definition now. Raises `DefinitionError` if its version is stored with another plan.

        If this changes the database, `note` is written to the audit log in the same commit. Returns whether it was.
        """

    async def find(self, name: str, version: int | None) -> Program:
        """The program to start: the one that this process provides, or the stored definition. None: the newest."""

    async def published(self) -> list[Published]: ...

    async def store_provided(self) -> list[DefinitionError]:
        """Stores what this process provides as published definitions. Returns the refusals: those with another plan."""

    def note_status(self, name: str, version: int, status: DefinitionStatus) -> None:
        """Records that this status was just set. Other processes learn it from the catalog."""


class Executions(Protocol):
    """Reads executions."""

    async def read(self, tenant: str | None, execution_id: str) -> Reading: ...

    async def read_state(self, tenant: str | None, execution_id: str) -> Reading:
        """Reads the current state. Costs time in proportion to the state, not to the length of the history.

        If the execution is not finished, the history may lack all entries but the first.
        """

    async def events(self, tenant: str | None, execution_id: str, after: int, limit: int) -> list[Entry]:
        """The entries after this number, in proportion to `limit`, whatever the length of the history."""

    async def wait(self, tenant: str | None, execution_id: str, until: Until, timeout_ms: int | None) -> Reading:
        """Waits until the execution is terminal, or with `settled` also until it waits for a person.

        Raises `ResultTimeout` after `timeout_ms`.
        """

    async def document(self, tenant: str | None, execution_id: str) -> ExecutionDocument:
        """The current state as users see it."""

    def follow(self, tenant: str | None, execution_id: str, after: int, every_ms: int) -> AsyncIterator[EventDocument]:
        """Yields the events after this number as they are recorded, until the execution ends."""

    async def page(self, wanted: Filter, cursor: str | None, limit: int) -> Page[ExecutionSummary]: ...

    async def count(self, wanted: Filter, by: Literal["status", "definition"]) -> dict[str, int]: ...

    async def statuses(self, tenant: str | None, ids: Sequence[str]) -> dict[str, ExecutionStatus]:
        """The statuses of those of these executions that exist."""


class Reviews(Protocol):
    """Reads everything that waits for a person, including dead letters."""

    async def page(self, wanted: ReviewsWanted, cursor: str | None, limit: int) -> Page[ShownReview]: ...

    async def find(self, tenant: str | None, id: str) -> ShownReview:
        """One review, open or resolved."""


class Admission(Protocol):
    """The in-flight limits of tenants, as far as starts meet them."""

    def refuses(self, tenant: str, in_flight: int = 0) -> bool:
        """Whether a start without an idempotency key would be refused, as far as is known without I/O.

        `in_flight` is the number of this tenant's starts that were let through and are not answered yet.
        """

    async def wait_for_capacity(self, tenant: str) -> int | None:
        """Waits until the tenant may start executions, and returns how many. None: any number."""


class Limits(Protocol):
    """Limits of the deployment. `note` is written to the audit log in the same commit, if anything changes."""

    async def set(
        self, name: str, rate: tuple[int, int] | None, concurrency: int | None, note: AuditRow | None = None
    ) -> None:
        """Limits the steps that name this limit: starts in so many milliseconds, and concurrency. None: no bound."""

    async def all(self) -> list[LimitRow]: ...

    async def set_tenant(self, tenant: str, max_in_flight: int | None, note: AuditRow | None = None) -> None:
        """Limits the executions of a tenant in flight. A start beyond it raises `TenantLimit`. None: no limit."""

    async def tenants(self, tenant: str | None) -> list[TenantLimitRow]:
        """The in-flight limit of this tenant, or of all tenants that have one."""


class AuditLog(Protocol):
    """The audit log: a chain of rows for each tenant."""

    async def note(self, row: AuditRow) -> None:
        """Records an action that no execution's history contains."""

    async def page(self, tenant: str, wanted: AuditWanted, cursor: str | None, limit: int) -> Page[AuditDocument]:
        """Actor, action and object, newest first."""

    async def chain(self, tenant: str, after: int, limit: int) -> list[AuditRecord]:
        """The same in the order of the chain, after this number."""

    async def verify(self, tenant: str, kept: Kept | None) -> Verified:
        """Whether the chain is intact, and contains this head."""


class Operations(Protocol):
    """What operators and the service need of the database behind the executions."""

    @property
    def registry(self) -> Registry:
        """API keys, the audit log and stored responses of the service."""

    @property
    def outbox(self) -> OutboxStore:
        """Messages to publish."""

    async def workers(self) -> list[WorkerRow]:
        """The processes that run steps of these executions."""

    async def backlog(self) -> list[BacklogRow]:
        """What waits, in all processes."""

    def inbox(self, consumer: str, id: str, connection: object) -> AbstractAsyncContextManager[bool]:
        """Whether this consumer receives this id for the first time, in the transaction of the caller's connection."""

    async def prune(self, keep_ms: int) -> Pruned:
        """Removes executions that ended longer ago than this, except those that wait for a person."""


class Feed(Protocol):
    """What happens now to all executions of a tenant."""

    async def overview(self, tenant: str | None) -> OverviewDocument:
        """Figures of a tenant, or of all: computed once for all who ask at the same time."""

    def follow(
        self, tenant: str | None, watched: Mapping[str, int | None], after: str | None
    ) -> AsyncIterator[FeedChunk]:
        """Yields status changes, and the events of executions that are watched, each after an event. None: the last.

        `after` is the id of a chunk that was received before. The first chunk tells where the feed begins.
        """


class Dispatch(Protocol):
    """What the command gateway needs of the process that runs its steps."""

    @property
    def jobs(self) -> JobStore:
        """The ledger of jobs, the log of callbacks, and the messages of the embedded bus."""

    def pause_queue(self, queue: str) -> None:
        """Takes no more attempts from this queue, because what they need cannot be reached."""

    def resume_queue(self, queue: str) -> None:
        """Takes attempts from this queue again."""


class Runtime(Lifecycle, Commands, Protocol):
    """Runs executions. Everything else that it can do belongs to a part of its own."""

    @property
    def programs(self) -> Programs: ...

    @property
    def executions(self) -> Executions: ...

    @property
    def reviews(self) -> Reviews: ...

    @property
    def admission(self) -> Admission: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def audit(self) -> AuditLog: ...

    @property
    def operations(self) -> Operations: ...

    @property
    def feed(self) -> Feed: ...

    @property
    def credits(self) -> CreditStore:
        """Accounts and the ledger of credits."""

    @property
    def runs(self) -> RunStore:
        """Runs as they were created."""

    @property
    def notices(self) -> Notices:
        """Notifications that handlers have sent."""

    @property
    def dispatch(self) -> Dispatch: ...
