"""The port of runtimes: what every one of them does, and the world that is given to it.

A runtime drives the kernel: it turns what happens into facts, keeps the entries that `decide` gives, and carries out
the agenda. Memory keeps executions in a dict; the durable runtime commits entries to a database before it acts, and
shares executions with other processes; Temporal keeps them in workflows. So everything here may wait, nothing here
hands out a state that somebody else goes on changing unnoticed (a `Reading` knows its own length), and facts for an
execution go to `tell`, which finds whoever owns it.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

from tenuto.authoring.program import Handler, Program
from tenuto.kernel.facts import Answer, Fact
from tenuto.kernel.state import ExecutionStatus
from tenuto.runtime.publication import Published
from tenuto.runtime.shared.documents import Summary
from tenuto.runtime.shared.filters import Filter
from tenuto.runtime.shared.retention import Pruned
from tenuto.runtime.start_request import StartRequest, Submitted
from tenuto.runtime.vitals import Vitals
from tenuto.storage.audit import Kept, Verified
from tenuto.storage.catalog import Catalog, DefinitionStatus
from tenuto.storage.notices import Notices
from tenuto.storage.operations import BacklogRow
from tenuto.storage.outbox import OutboxStore
from tenuto.storage.registry import AuditWanted, Registry
from tenuto.storage.reviews import ReviewsWanted, ShownReview
from tenuto.views import (
    AuditDocument,
    AuditRecord,
    DeadLetterRow,
    EventDocument,
    ExecutionDocument,
    ExecutionSummary,
    LimitRow,
    ReviewRow,
    TenantLimitRow,
    Until,
    WorkerRow,
)
from tenuto.views.bulk_results import BulkResult
from tenuto.views.pages import Page
from tenuto.views.projections import AuditRow
from tenuto.views.reading import Reading


class Runtime(Protocol):
    """Reads answer `NotFound` for what is not there, or is not this tenant's."""

    @property
    def notices(self) -> Notices: ...

    @property
    def registry(self) -> Registry:
        """What a service keeps beside the executions: keys, the audit, answers."""

    @property
    def outbox(self) -> OutboxStore:
        """Messages that have to leave."""

    def vitals(self) -> Vitals: ...

    def check_scope(self, tenant: str) -> None:
        """Raises unless one may act through it for this tenant, in a name of one's own."""

    async def check(self) -> None:
        """Raises `StorageError` unless executions can be kept: the database answers, and has the right schema."""

    async def backlog(self) -> list[BacklogRow]:
        """What waits, in all processes."""

    async def open(self) -> None: ...

    async def close(self, grace_ms: int) -> None:
        """Starts nothing more, waits for running handlers as long as allowed, then stops them."""

    def provide(self, program: Program) -> None:
        """From now on this process can run executions of this definition. No I/O: it is stored with the next start."""

    def provided(self, name: str, version: int) -> Program | None:
        """The program of that definition, with those handlers that this process has; None if it knows of none."""

    def provide_handler(self, handler: Handler) -> None:
        """A handler that JSON definitions call by name."""

    async def publish(self, program: Program, note: AuditRow | None = None) -> bool:
        """Stores the definition now. The same name and version with another plan is a `DefinitionError`.

        If that changes anything in a database, `note` is written into the audit in the same commit. Whether it was.
        """

    async def program(self, name: str, version: int | None) -> Program:
        """The program to start: what this process has, or the stored definition alone. None: the newest version."""

    async def definitions(self) -> list[Published]: ...

    @property
    def catalog(self) -> Catalog:
        """Where definitions are kept, drafts and all."""

    async def keep_definitions(self) -> None:
        """What this process provides is in the catalog, published."""

    def knows(self, name: str) -> bool:
        """Whether a version of it can be started, as far as this process knows without asking."""

    def note_definition(self, name: str, version: int, status: DefinitionStatus) -> None:
        """This version's status has just changed. Other processes find out by themselves."""

    def is_crowded(self, tenant: str, under_way: int = 0) -> bool:
        """Whether a start that is no repetition could only be refused, as far as this process knows without asking.

        `under_way`: so many others are on their way here, or here, and not answered.
        """

    async def submit(self, request: StartRequest) -> Submitted: ...

    def inbox(self, consumer: str, id: str, connection: object) -> AbstractAsyncContextManager[bool]:
        """Whether this consumer meets this id for the first time, as part of the caller's transaction."""

    async def prune(self, keep_ms: int) -> Pruned:
        """Removes what ended longer ago than this, except what waits for a person."""

    async def tell(self, tenant: str | None, execution_id: str, fact: Fact) -> Answer:
        """Brings a fact to its execution, wherever that is, and waits for the verdict."""

    async def read(self, tenant: str | None, execution_id: str) -> Reading: ...

    async def look(self, tenant: str | None, execution_id: str) -> Reading:
        """Where it stands, for those who do not ask how it came there: of an execution that is not over, the history
        may lack all but its first entry. It costs time in proportion to the state, not to the history."""

    async def read_all(self, tenant: str | None, ids: Sequence[str]) -> list[Reading]:
        """Those of them that there are, in no order, and without the progress of what runs elsewhere."""

    async def document(self, tenant: str | None, execution_id: str) -> ExecutionDocument:
        """Where it stands, as it is shown."""

    def follow(self, tenant: str | None, execution_id: str, after: int, every_ms: int) -> AsyncIterator[EventDocument]:
        """What is recorded after this number, as it happens; ends with the execution."""

    async def wait(self, tenant: str | None, execution_id: str, until: Until, timeout_ms: int | None) -> Reading:
        """Waits until the execution is terminal, or (`settled`) waits for a person; `ResultTimeout` after that time."""

    async def executions(self, wanted: Filter, cursor: str | None, limit: int) -> Page[Summary]: ...

    async def summaries(self, wanted: Filter, cursor: str | None, limit: int) -> Page[ExecutionSummary]:
        """The same as they are shown, and of blocked ones why."""

    async def count(self, wanted: Filter, by: Literal["status", "definition"]) -> dict[str, int]: ...

    async def act(self, verb: Literal["cancel", "retry"], wanted: Filter, body: Mapping[str, Any]) -> BulkResult | None:
        """Where executions are told elsewhere: what came of it for all that fit. None: they are told from here."""

    async def answer_letter(self, verb: Literal["reprocess", "discard"], id: str, reason: str) -> DeadLetterRow | None:
        """Where executions are told elsewhere: what became of a dead letter. None: it is answered from here."""

    async def reprocess(self, wanted: ReviewsWanted, body: Mapping[str, Any]) -> BulkResult | None:
        """The same of all dead letters that fit."""

    async def reviews(self, wanted: Filter, cursor: str | None, limit: int) -> Page[ReviewRow]: ...

    async def dead_letters(self, wanted: Filter, cursor: str | None, limit: int) -> Page[DeadLetterRow]: ...

    async def review_page(self, wanted: ReviewsWanted, cursor: str | None, limit: int) -> Page[ShownReview]: ...

    async def review(self, tenant: str | None, id: str) -> ShownReview:
        """One of them, open or resolved."""

    async def workers(self) -> list[WorkerRow]:
        """The processes that run steps, of those that share these executions."""

    async def statuses(self, tenant: str | None, ids: Sequence[str]) -> dict[str, ExecutionStatus]:
        """How these executions stand."""

    async def note(self, row: AuditRow) -> None:
        """Something was done that no execution's history tells."""

    async def audit(self, tenant: str, wanted: AuditWanted, cursor: str | None, limit: int) -> Page[AuditDocument]:
        """Who did what, newest first."""

    async def audit_chain(self, tenant: str, after: int, limit: int) -> list[AuditRecord]:
        """The same in the order of the chain, after this number."""

    async def verify_audit(self, tenant: str, kept: Kept | None) -> Verified:
        """Whether the chain of the audit holds, and has this head in it."""

    async def limit(
        self, name: str, *, rate: tuple[int, int] | None, concurrency: int | None, note: AuditRow | None = None
    ) -> None:
        """At most so many starts in so many milliseconds, and so many at once, of all steps that name this limit.

        `note` is written into the audit in the same commit, unless there was no limit to lift.
        """

    async def limits(self) -> list[LimitRow]: ...

    async def tenant_limit(self, tenant: str, max_in_flight: int | None, note: AuditRow | None = None) -> None:
        """How many executions of a tenant may be under way; what would be one more is refused with `TenantLimit`.

        `note` is written into the audit in the same commit, unless there was no limit to lift.
        """

    async def tenant_limits(self, tenant: str | None) -> list[TenantLimitRow]:
        """Of all tenants that have one, or of this one."""

    async def room(self, tenant: str) -> int | None:
        """Waits until the tenant may start something, and gives how many. None: as many as it likes."""
