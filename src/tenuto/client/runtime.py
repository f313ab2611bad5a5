"""The runtime behind `https://` and `http://`: every read and command is an HTTP request to a service.

Results are built from recorded events: the client fetches them and folds them with the same kernel. What only the
service knows, such as why an execution is blocked now, is fetched as a document.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from math import inf
from typing import Any, Final, Literal, NoReturn, get_args

from tenuto.authoring.program import Handler, Program
from tenuto.errors import InvalidInput, NotFound, NotSupported, ResultTimeout, ServiceError, StorageError
from tenuto.kernel import facts as f
from tenuto.kernel.definition import Definition
from tenuto.kernel.events import Entry, ExecutionStarted, ReviewKind
from tenuto.kernel.evolve import evolve
from tenuto.kernel.state import Execution, ExecutionStatus
from tenuto.runtime.clock import Environment
from tenuto.runtime.publication import Published
from tenuto.runtime.shared.documents import Summary, dead_letter_document, review_document
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
from tenuto.values.rates import rate_text
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
    has_reached,
)
from tenuto.views.bulk_results import BulkResult
from tenuto.views.pages import Page
from tenuto.views.projections import AuditRow
from tenuto.views.reading import Reading

from . import lists
from .commands import request_of
from .definitions import Programs, RemoteCatalog
from .identity import RemoteIdentity
from .start import start_body, start_headers
from .stream import followed, recorded
from .transport import Answer, Transport, paged, quoted, quoted_name

CACHED_EXECUTIONS: Final = 32  # of these, only new events are fetched
WAIT_SECONDS: Final = 20.0  # the longest wait of one request
STATUSES_AT_ONCE: Final = 100
ROOM_SECONDS: Final = 1.0
OWN_TENANT: Final = "default"  # the default for callers; the credential decides the actual tenant


class RemoteRuntime:
    """Implements `Runtime` over HTTP. Operations that need the database raise `NotSupported` with a hint."""

    def __init__(
        self, environment: Environment, url: str, api_key: str | None, compile: Callable[[Definition], Program]
    ) -> None:
        self.environment = environment
        self._transport = Transport(url, api_key)
        self.identity = RemoteIdentity(self._transport)
        self._catalog = RemoteCatalog(self._transport)
        self._programs = Programs(self._catalog, compile)
        self._cached: OrderedDict[str, _Record] = OrderedDict()

    # -- Lifecycle -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Opens the connection pool. The first request shows whether the service is there."""
        await self._transport.open()

    async def close(self, grace_ms: int) -> None:
        await self._transport.close()

    def vitals(self) -> Vitals:
        return Vitals(is_open=self._transport.is_open, held=0, lanes={})

    def check_scope(self, tenant: str) -> None:
        self._refuse("Another actor or tenant than that of the API key", "create a client with another API key")

    async def check(self) -> None:
        try:
            await self._transport.get("/readyz", has="status")
        except ServiceError as error:
            raise StorageError(error.message, code=error.code, hint=error.hint) from error

    # -- Definitions ---------------------------------------------------------------------------------------------------

    def provide(self, program: Program) -> None:
        self._programs.provide(program)

    def provided(self, name: str, version: int) -> Program | None:
        return self._programs.own(name, version)

    def provide_handler(self, handler: Handler) -> None:
        """Does nothing: handlers run in workers."""

    async def publish(self, program: Program, note: AuditRow | None = None) -> bool:
        await self._programs.publish(program)
        return False

    async def program(self, name: str, version: int | None) -> Program:
        return await self._programs.to_start(name, version)

    async def definitions(self) -> list[Published]:
        return await self._programs.published()

    @property
    def catalog(self) -> Catalog:
        return self._catalog

    async def keep_definitions(self) -> None:
        """Does nothing: the service stores its own definitions."""

    def knows(self, name: str) -> bool:
        return self._programs.knows(name)

    def note_definition(self, name: str, version: int, status: DefinitionStatus) -> None:
        self._programs.forget_newest()

    # -- Starts and commands -------------------------------------------------------------------------------------------

    def is_crowded(self, tenant: str, under_way: int = 0) -> bool:
        return False  # only the service knows

    async def submit(self, request: StartRequest) -> Submitted:
        if request.connection is not None:
            self._refuse(
                "A caller's transaction", "start it with an engine on the database: Engine(url of the database)"
            )
        self._check_tenant(request.tenant)
        version = request.version
        if version is None and self._programs.is_own(request.program):
            version = request.program.version  # this process has the code of one version
        body, headers = start_body(request, version), start_headers(request)
        answer = await self._transport.send("POST", "/v1/executions", body=body, headers=headers, repeats=True)
        return Submitted(answer.document("execution_id")["execution_id"], created=answer.status == 201)

    async def tell(self, tenant: str | None, execution_id: str, fact: f.Fact) -> f.Answer:
        """Sends a command. A refusal is an error response, so any other response means that it was applied."""
        self._check_tenant(tenant)
        known = self._cached.get(execution_id)
        request = request_of(execution_id, fact, None if known is None else known.state)
        answer = await self._transport.send("POST", request.path, body=request.body, repeats=request.repeats)
        answer.document("execution_id")
        _check_verdict(answer)
        return f.APPLIED

    # -- Reading -------------------------------------------------------------------------------------------------------

    async def read(self, tenant: str | None, execution_id: str) -> Reading:
        self._check_tenant(tenant)
        known = self._cached.get(execution_id)
        try:
            entries = await recorded(self._transport, execution_id, 0 if known is None else len(known.history))
        except NotFound:
            self._cached.pop(execution_id, None)
            raise NotFound(f"There is no execution {execution_id!r}.") from None
        if known is None:
            known = await self._cache(execution_id, entries[0])
        elif execution_id in self._cached:
            self._cached.move_to_end(execution_id)
        known.add(entries)
        return known.reading()

    async def look(self, tenant: str | None, execution_id: str) -> Reading:
        return await self.read(tenant, execution_id)

    async def read_all(self, tenant: str | None, ids: Sequence[str]) -> list[Reading]:
        return [await self.read(tenant, id) for id in ids]

    async def _cache(self, execution_id: str, first: Entry) -> "_Record":
        assert isinstance(first.event, ExecutionStarted)
        program = await self._programs.of(first.event.definition, first.event.version)
        known = self._cached.setdefault(execution_id, _Record(program))
        if len(self._cached) > CACHED_EXECUTIONS:
            self._cached.popitem(last=False)
        return known

    async def document(self, tenant: str | None, execution_id: str) -> ExecutionDocument:
        self._check_tenant(tenant)
        found: ExecutionDocument = await self._transport.get(_at(execution_id), has="execution_id")
        return found

    async def follow(
        self, tenant: str | None, execution_id: str, after: int, every_ms: int
    ) -> AsyncIterator[EventDocument]:
        """Yields events. The service chooses the polling interval."""
        self._check_tenant(tenant)
        async for event in followed(self._transport, execution_id, after):
            yield event

    async def wait(self, tenant: str | None, execution_id: str, until: Until, timeout_ms: int | None) -> Reading:
        """Waits in long-polling requests. The service measures the time, so slow responses do not shorten the wait.

        A service that shuts down responds early; the rest of the time is then requested again.
        """
        left = inf if timeout_ms is None else timeout_ms / 1_000
        clock = asyncio.get_running_loop().time
        while True:
            seconds = min(left, WAIT_SECONDS)
            asked_at = clock()
            await self._transport.get(_at(execution_id), {"wait": until, "seconds": seconds}, has="execution_id")
            answered_at = clock()
            reading = await self.read(tenant, execution_id)
            if has_reached(reading.state, until):
                return reading
            left -= min(seconds, answered_at - asked_at)
            if left <= 0:
                raise ResultTimeout(f"Execution {execution_id} did not settle in time; it continues to run.")

    async def summaries(self, wanted: Filter, cursor: str | None, limit: int) -> Page[ExecutionSummary]:
        self._check_tenant(wanted.tenant)
        return await lists.summaries(self._transport, wanted, cursor, limit)

    async def executions(self, wanted: Filter, cursor: str | None, limit: int) -> Page[Summary]:
        found = await self.summaries(wanted, cursor, limit)
        return Page([lists.summary(row) for row in found.items], found.next_cursor)

    async def count(self, wanted: Filter, by: Literal["status", "definition"]) -> dict[str, int]:
        self._check_tenant(wanted.tenant)
        params = {"group_by": by, "definition": wanted.definition, "correlation_id": wanted.correlation_id}
        counts: dict[str, int] = (await self._transport.get("/v1/executions:count", params, has="counts"))["counts"]
        return counts

    async def act(self, verb: Literal["cancel", "retry"], wanted: Filter, body: Mapping[str, Any]) -> BulkResult | None:
        self._check_tenant(wanted.tenant)
        key = {"Idempotency-Key": self.environment.new_id()}  # makes a retry safe
        request = {**lists.filter_body(wanted, with_status=verb == "cancel"), **body}
        answer = await self._transport.send("POST", f"/v1/executions:{verb}", body=request, headers=key, repeats=True)
        return lists.acted(answer.document("refused"))

    async def answer_letter(self, verb: Literal["reprocess", "discard"], id: str, reason: str) -> DeadLetterRow | None:
        answer = await self._transport.send("POST", f"/v1/dlq/{quoted(id)}:{verb}", body={"reason": reason})
        _check_verdict(answer)
        found: DeadLetterRow = answer.document("error_class")
        return found

    async def reprocess(self, wanted: ReviewsWanted, body: Mapping[str, Any]) -> BulkResult | None:
        self._check_tenant(wanted.tenant)
        key = {"Idempotency-Key": self.environment.new_id()}
        request = {**lists.dead_letter_filter(wanted), **body}
        answer = await self._transport.send("POST", "/v1/dlq:reprocess", body=request, headers=key, repeats=True)
        return lists.reprocessed(answer.document("reprocessed"))

    async def statuses(self, tenant: str | None, ids: Sequence[str]) -> dict[str, ExecutionStatus]:
        found: dict[str, ExecutionStatus] = {}
        for first in range(0, len(ids), STATUSES_AT_ONCE):
            params = {"id": list(ids[first : first + STATUSES_AT_ONCE])}
            found |= (await self._transport.get("/v1/executions:statuses", params, has="statuses"))["statuses"]
        return found

    async def reviews(self, wanted: Filter, cursor: str | None, limit: int) -> Page[ReviewRow]:
        kinds = get_args(ReviewKind) if wanted.kind is None else (wanted.kind,)
        found = await self.review_page(_reviews_wanted(wanted, kinds), cursor, limit)
        return Page([review_document(row) for row in found.items], found.next_cursor)

    async def dead_letters(self, wanted: Filter, cursor: str | None, limit: int) -> Page[DeadLetterRow]:
        found = await self.review_page(_reviews_wanted(wanted, ("dead_letter",)), cursor, limit)
        return Page([dead_letter_document(row) for row in found.items], found.next_cursor)

    async def review_page(self, wanted: ReviewsWanted, cursor: str | None, limit: int) -> Page[ShownReview]:
        self._check_tenant(wanted.tenant)
        return await lists.review_page(self._transport, wanted, cursor, limit)

    async def review(self, tenant: str | None, id: str) -> ShownReview:
        self._check_tenant(tenant)
        return await lists.one_review(self._transport, id)

    # -- Operations ----------------------------------------------------------------------------------------------------

    async def workers(self) -> list[WorkerRow]:
        return [row async for row in paged(self._transport, "/v1/workers", {})]

    async def limit(
        self, name: str, *, rate: tuple[int, int] | None, concurrency: int | None, note: AuditRow | None = None
    ) -> None:
        path = f"/v1/limits/{quoted_name(name)}"
        if rate is None and concurrency is None:
            (await self._transport.send("DELETE", path, repeats=True)).nothing()
        else:
            body = {"rate": None if rate is None else rate_text(*rate), "concurrency": concurrency}
            (await self._transport.send("PUT", path, body=body, repeats=True)).nothing()

    async def limits(self) -> list[LimitRow]:
        return [row async for row in paged(self._transport, "/v1/limits", {})]

    async def tenant_limit(self, tenant: str, max_in_flight: int | None, note: AuditRow | None = None) -> None:
        path = f"/v1/tenant-limits/{quoted(tenant)}"
        if max_in_flight is None:
            (await self._transport.send("DELETE", path, repeats=True)).nothing()
        else:
            (await self._transport.send("PUT", path, body={"max_in_flight": max_in_flight}, repeats=True)).nothing()

    async def tenant_limits(self, tenant: str | None) -> list[TenantLimitRow]:
        return [row async for row in paged(self._transport, "/v1/tenant-limits", {})]

    async def room(self, tenant: str) -> int | None:
        """Waits a moment. Only the next start shows whether there is capacity."""
        await asyncio.sleep(ROOM_SECONDS)
        return 1

    async def audit(self, tenant: str, wanted: AuditWanted, cursor: str | None, limit: int) -> Page[AuditDocument]:
        params = {"action": wanted.action, "actor": wanted.actor, "object_id": wanted.object_id}
        found = await self._transport.get("/v1/audit", {**params, "cursor": cursor, "limit": limit}, has="next_cursor")
        return Page(found["items"], found["next_cursor"])

    async def audit_chain(self, tenant: str, after: int, limit: int) -> list[AuditRecord]:
        found = await self._transport.get("/v1/audit:export", {"after": after, "limit": limit}, has="items")
        rows: list[AuditRecord] = found["items"]
        return rows

    async def verify_audit(self, tenant: str, kept: Kept | None) -> Verified:
        params = {} if kept is None else {"n": kept.n, "hash": kept.hash}
        return Verified(**await self._transport.get("/v1/audit:verify", params, has="broken_at"))

    async def note(self, row: AuditRow) -> None:
        """Does nothing: the service writes the audit log in the name of the credential."""

    # -- Operations that need the database -----------------------------------------------------------------------------

    @property
    def notices(self) -> Notices:
        return _NoNotices()

    @property
    def registry(self) -> Registry:
        self._refuse("The registry of keys", "use the database: `tenuto keys` with TENUTO_URL")

    @property
    def outbox(self) -> OutboxStore:
        self._refuse("The outbox", "use an engine on the database: Engine(url of the database).outbox()")

    async def backlog(self) -> list[BacklogRow]:
        self._refuse("The backlog", "see /metrics of the service")

    def inbox(self, consumer: str, id: str, connection: object) -> AbstractAsyncContextManager[bool]:
        self._refuse("The inbox", "use an engine on the database: Engine(url of the database).inbox(…)")

    async def prune(self, keep_ms: int) -> Pruned:
        self._refuse("Pruning", "use an engine on the database: Engine(url of the database).prune(…)")

    def _refuse(self, what: str, hint: str) -> NoReturn:
        raise NotSupported(f"{what} is not available over HTTP.", code="not_over_http", hint=hint)

    def _check_tenant(self, tenant: str | None) -> None:
        if tenant not in (None, OWN_TENANT):
            raise InvalidInput.at("/tenant", "other_tenant", "over HTTP, the API key decides the tenant: leave it out")


class _Record:
    """An execution as far as it was read. Concurrent readers may add the same entries."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.state = Execution(program.plan)
        self.history: list[Entry] = []

    def add(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.seq == len(self.history) + 1:
                evolve(self.state, entry)
                self.history.append(entry)

    def reading(self) -> Reading:
        return Reading(self.program, self.state, self.history)


class _NoNotices:
    """Implements `Notices` for handlers that never run here."""

    async def begin_notice(self, notice: Any) -> Any:
        raise AssertionError("no handler runs in a client")

    async def end_notice(self, key: str, receipt: bytes) -> None:
        raise AssertionError("no handler runs in a client")

    async def notice(self, key: str) -> None:
        raise AssertionError("no handler runs in a client")


def _check_verdict(answer: Answer) -> None:
    if answer.status == 202:
        raise ResultTimeout(
            "The command was accepted, but its verdict is not known yet.",
            code="verdict_unknown",
            hint="check the state of the execution; do not send the command again",
        )


def _at(execution_id: str) -> str:
    return f"/v1/executions/{quoted(execution_id)}"


def _reviews_wanted(wanted: Filter, kinds: tuple[str, ...]) -> ReviewsWanted:
    return ReviewsWanted(
        kinds=kinds,
        definition=wanted.definition,
        execution=wanted.execution_id,
        error_class=wanted.error_class,
    )
