"""`Engine`: the entry point for users. It chooses the runtime by URL and exposes its operations."""

import asyncio
import copy
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar, Unpack, get_args, overload

import msgspec

from tenuto.access.audit import Audit
from tenuto.access.keys import Keyring
from tenuto.access.scope import Scope
from tenuto.authoring.decorators import Saga
from tenuto.authoring.markers import StepInputs
from tenuto.authoring.program import EVERY_TENANT, Handler, Program
from tenuto.authoring.programs import bind_handler, compile_sagas, handlers_in
from tenuto.authoring.saga_source import saga_name
from tenuto.authoring.settings import EXTERNAL_COMPENSATIONS, EXTERNAL_STEPS, HANDLER_NAMES, several
from tenuto.errors import DefinitionConflict, IdempotencyConflict, InvalidInput, NotFound
from tenuto.handlers.builtin import NAMES as BUILT_IN
from tenuto.handlers.builtin import BuiltIn
from tenuto.handlers.settings import HandlerSettings
from tenuto.kernel import facts as f
from tenuto.kernel.decide.open_reviews import not_open
from tenuto.kernel.definition import CancelMode, ErrorClass, owned_name, plain_name, to_document
from tenuto.kernel.events import NULL, Resolution, ReviewKind
from tenuto.kernel.state import ExecutionStatus
from tenuto.runtime.clock import Clock, Environment
from tenuto.runtime.durable import DatabaseClock
from tenuto.runtime.executor.worker import ASYNC_SLOTS, THREADS
from tenuto.runtime.shared.filters import Filter, check_filter, milliseconds_at
from tenuto.runtime.shared.in_flight import tenant_is_full
from tenuto.runtime.shared.retention import Pruned
from tenuto.runtime.shared.reviews import dead_letter_document, review_document
from tenuto.runtime.start_request import StartOptions, StartRequest, Submitted, check_options, explained
from tenuto.settings import FourEyes, Settings
from tenuto.storage.registry import Registry
from tenuto.storage.reviews import ReviewsWanted
from tenuto.values.codec import encode
from tenuto.values.durations import Duration, milliseconds
from tenuto.values.names import DEFAULT_TENANT, MAX_ACTOR, check_name, check_one_of
from tenuto.views import (
    DeadLetterRow,
    ExecutionSummary,
    IdentityDocument,
    LimitRow,
    ReviewRow,
    TenantLimitRow,
    WorkerRow,
)
from tenuto.views.bulk_results import BulkResult
from tenuto.views.messages import Announced, Publish
from tenuto.views.pages import Page
from tenuto.views.results import SagaResult

from .batch import Batch, BatchStarter
from .bulk_commands import ActiveStatus, BulkCommand, ExecutionFilter, build_filter
from .connection import DURABLE, backend_for
from .context import EngineContext, check_again, check_reason, refusal
from .dead_letters import DeadLetters
from .definitions import Definitions
from .event_sinks import EventDispatcher, SagaEvents
from .handle import Handle
from .health import Health, alive, ready
from .identity import Sessions
from .limits import Limits
from .lists import Lists
from .stop_signals import stopping

if TYPE_CHECKING:
    from tenuto.telemetry import Telemetry

I = TypeVar("I")  # noqa: E741  (the input of a saga)
O = TypeVar("O")  # noqa: E741  (its output)
T = TypeVar("T")

PAGE = 100
GRACE_MS = 10_000
SIGNAL_GRACE_MS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStatus:
    """The messages that are not published yet. `failing` counts those whose last attempt failed."""

    waiting: int
    failing: int
    oldest_at: datetime | None
    last_error: str | None


class DefinitionDocument(TypedDict):
    name: str
    version: int
    status: Literal["draft", "published", "deprecated"]
    hash: str
    definition: Any


class Engine:
    """Runs sagas and JSON definitions. The URL selects where executions are stored.

    `memory://` keeps executions in this process; `sqlite:///…` and `postgresql://…` store them in a database.
    `https://…` makes this engine a client of a service, with the same methods. `api_key` identifies the caller and its
    tenant. A client runs no steps; registered sagas provide the types of inputs and results.

    `lease` is how long a process may fail to renew its lease before other processes take over its executions.
    `outside` limits what the built-in handlers may reach. Default: the environment (`TENUTO_EGRESS_ALLOW` and others).

    `messages` selects the events that are written to the outbox, in the transaction that records them:
    `"execution.finished"`, `"step.*"`, `"*"`. Give it to every process on the same database. `publish` is called with
    each `Message`, at least once and in order within an execution. One process with `publish` is enough; several share
    the work.

    `retention` is how long finished executions are kept in a database. Default: forever. See `prune`.

    `read_only`, with `worker=False`, opens a database for reading, such as a standby or a file without write access.
    Methods that write raise `StorageError` with the code `read_only`.
    """

    def __init__(
        self,
        url: str = "memory://",
        *,
        worker: bool = True,
        queues: Sequence[str] = ("default",),
        events: Iterable[SagaEvents] = (),
        clock: Clock | None = None,
        shutdown_grace: Duration | None = None,
        lease: Duration = "15s",
        slots: int = ASYNC_SLOTS,
        threads: int = THREADS,
        build: str = "",
        api_key: str | None = None,
        outside: HandlerSettings | None = None,
        telemetry: "Telemetry | None" = None,
        messages: Iterable[str] = (),
        publish: Publish | None = None,
        retention: Duration | None = None,
        read_only: bool = False,
    ) -> None:
        sinks = tuple(events)
        self.url = url
        self._grace_ms = GRACE_MS if shutdown_grace is None else milliseconds(shutdown_grace)
        self._grace_after_signal_ms = SIGNAL_GRACE_MS if shutdown_grace is None else self._grace_ms
        self._dispatcher = EventDispatcher(sinks) if sinks else None
        self._telemetry = telemetry
        self._environment = self._make_environment(clock, build)
        self._handlers: dict[str, Handler] = {}
        self._scope = Scope()
        self._backend = backend_for(
            url,
            self._environment,
            telemetry,
            observers=() if self._dispatcher is None else (self._dispatcher,),
            worker=worker,
            queues=queues,
            slots=slots,
            threads=threads,
            lease_ms=milliseconds(lease),
            api_key=api_key,
            announced=Announced(messages) or None,
            publish=publish,
            keep_ms=None if retention is None else milliseconds(retention),
            read_only=read_only,
        )
        self._keyrings: list[Keyring] = []  # shared with scoped engines, created on first use
        self._outside = outside or HandlerSettings.from_environment()
        self._built_in = None if self._backend.notices is None else BuiltIn(self._outside, self._backend.notices)
        if self._built_in is not None:
            self._provide_built_in(self._built_in)

    def _provide_built_in(self, built_in: BuiltIn) -> None:
        for name, function in built_in.functions.items():
            bound = bind_handler(name, function, (EVERY_TENANT,))
            if (prepare := built_in.preparations.get(name)) is not None:
                bound = replace(bound, prepare=prepare)
            self._backend.programs.provide_handler(bound)

    def _make_environment(self, clock: Clock | None, build: str) -> Environment:
        if clock is None and self.url.partition(":")[0] in DURABLE:
            clock = DatabaseClock()
        return Environment(clock, build=build)

    async def __aenter__(self) -> Self:
        await self._backend.lifecycle.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the engine. Running handlers get `shutdown_grace` (default 10 s, or 30 s after a signal) to finish."""
        await self._backend.lifecycle.close(self._grace_ms)
        if self._built_in is not None:
            await self._built_in.close()
        if self._dispatcher is not None:
            await self._dispatcher.close(self._grace_ms / 1_000)
        if self._telemetry is not None:
            await asyncio.to_thread(self._telemetry.close)  # flushes pending spans and logs

    def alive(self) -> Health:
        """Reports whether this process works. If it does not, restart it."""
        return alive(self._backend.lifecycle)

    async def ready(self) -> Health:
        """Reports whether this process can take work: it holds its lease, commits, and the database is available."""
        return await ready(self._backend.lifecycle)

    async def serve_forever(self) -> None:
        """Runs until SIGTERM or Ctrl-C, then closes the engine: the main function of a worker process.

        A second signal ends the process immediately.
        """
        with stopping() as stop:
            await stop.wait()
        self._grace_ms = self._grace_after_signal_ms
        await self.close()

    # -- Definitions ---------------------------------------------------------------------------------------------------

    def register(self, *sagas: object) -> None:
        """Registers sagas, and functions or modules with their external steps, compensations and `@handler`s.

        The sagas are published when the engine opens, or at once if it is open, so that every process can start them.
        If another plan is stored under a saga's version, the error is logged, this process runs nothing of that saga,
        and starting it here raises `DefinitionError`.
        """
        for given in sagas:
            for named in handlers_in(given):
                self.handler(named.name, named.function, tenants=named.tenants)
        for program in compile_sagas(*(given for given in sagas if not _only_names_handlers(given))):
            self._backend.programs.provide(program)

    def handler(self, name: str, function: Callable[..., Any], *, tenants: Iterable[str] = ()) -> None:
        """Registers a function that JSON definitions call by this name. A later registration replaces it.

        Definitions published by a tenant may call it only if `tenants` includes that tenant, or is `["*"]`.
        """
        bound = bind_handler(name, function, several(tenants))
        self._handlers[name] = bound
        self._backend.programs.provide_handler(bound)

    async def apply(self, document: Mapping[str, Any] | Path | str) -> None:
        """Validates and publishes a JSON definition."""
        await self.catalog.apply(document)

    async def definitions(self, *, name: str | None = None) -> AsyncIterator[DefinitionDocument]:
        """Yields the registered and published definitions, each with the canonical document of its plan."""
        self._scope.require("definitions:read")
        owner = self._scope.tenant
        for found in await self._backend.programs.published():
            definition = found.definition
            tenant, _, plain = definition.name.rpartition("/")
            if name in (None, plain) and (not tenant or owner in (None, tenant)):
                yield {
                    "name": plain,
                    "version": definition.version,
                    "status": found.status,
                    "hash": found.plan_hash,
                    "definition": to_document(msgspec.structs.replace(definition, name=plain)),
                }

    # -- Starting ------------------------------------------------------------------------------------------------------

    @overload
    async def execute(
        self,
        saga: type[Saga[I, O]],
        input: I | StepInputs,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[StartOptions],
    ) -> SagaResult[O]: ...
    @overload
    async def execute(
        self,
        saga: str,
        input: object = None,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[StartOptions],
    ) -> SagaResult[Any]: ...
    async def execute(
        self,
        saga: type | str,
        input: object = None,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[StartOptions],
    ) -> SagaResult[Any]:
        """Starts an execution and waits until it finishes or waits for a person."""
        id = (await self._submit(saga, input, idempotency_key, options)).execution_id
        return SagaResult(await self._backend.executions.wait(None, id, "settled", None))

    @overload
    async def start(
        self,
        saga: type[Saga[I, O]],
        input: I | StepInputs,
        *,
        idempotency_key: str | None = None,
        connection: Any = None,
        **options: Unpack[StartOptions],
    ) -> Handle[O]: ...
    @overload
    async def start(
        self,
        saga: str,
        input: object = None,
        *,
        idempotency_key: str | None = None,
        connection: Any = None,
        **options: Unpack[StartOptions],
    ) -> Handle[Any]: ...
    async def start(
        self,
        saga: type | str,
        input: object = None,
        *,
        idempotency_key: str | None = None,
        connection: Any = None,
        **options: Unpack[StartOptions],
    ) -> Handle[Any]:
        """Starts an execution, and returns once it is durable.

        The same idempotency key with the same request returns the same execution.
        """
        submitted = await self._submit(saga, input, idempotency_key, options, connection)
        return Handle(self._context, submitted.execution_id, created=submitted.created, as_started=submitted.as_started)

    def inbox(self, consumer: str, message_id: str, connection: Any = None) -> AbstractAsyncContextManager[bool]:
        """Deduplicates consumed messages: `async with engine.inbox("billing", message.id, connection) as first:`.

        `first` is true once per message. The message id is recorded in the connection's current transaction, together
        with the effects of processing it.
        """
        if not consumer or not message_id or consumer.startswith("tenuto."):
            raise InvalidInput.at(
                "", "id", "consumer and message_id must not be empty, and the prefix `tenuto.` is reserved"
            )
        return self._backend.operations.inbox(consumer, message_id, connection)

    async def prune(self, *, older_than: Duration) -> Pruned:
        """Removes executions that ended longer ago than `older_than`, with all their data, in small batches.

        Executions that wait for a person stay, including those with an open dead letter. Removing an execution frees
        its idempotency key, so keep executions for longer than callers may repeat a request. Inbox records and
        published messages are kept for at least seven days.
        """
        return await self._backend.operations.prune(milliseconds(older_than))

    async def outbox(self) -> OutboxStatus:
        """Returns how many messages wait to be published, how many failed, and the age of the oldest."""
        standing = await self._backend.operations.outbox.standing()
        oldest = standing.oldest_at
        return OutboxStatus(
            waiting=standing.waiting,
            failing=standing.failing,
            oldest_at=None if oldest is None else datetime.fromtimestamp(oldest / 1_000, UTC),
            last_error=standing.last_error or None,
        )

    @overload
    async def start_many(
        self,
        saga: type[Saga[I, O]],
        items: Iterable[I] | AsyncIterable[I],
        *,
        key: Callable[[I], str] | None = None,
        on_limit: Literal["wait", "raise"] = "wait",
        **options: Unpack[StartOptions],
    ) -> Batch[O]: ...
    @overload
    async def start_many(
        self,
        saga: str,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        key: Callable[[Any], str] | None = None,
        on_limit: Literal["wait", "raise"] = "wait",
        **options: Unpack[StartOptions],
    ) -> Batch[Any]: ...
    async def start_many(
        self,
        saga: type | str,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        key: Callable[[Any], str] | None = None,
        on_limit: Literal["wait", "raise"] = "wait",
        **options: Unpack[StartOptions],
    ) -> Batch[Any]:
        """Starts one execution per item. With `key`, calling it again starts only the missing items.

        If the tenant reaches its in-flight limit, the call waits, or with `on_limit="raise"` raises `TenantLimit`.
        Executions that were already started continue.
        """
        check_one_of(on_limit, Literal["wait", "raise"], "/on_limit")
        given = options.get("correlation_id")
        id = given or self._environment.new_id()
        options["correlation_id"] = id
        tenant = self._tenant(options.get("tenant"))

        async def submit(item: Any) -> Submitted:
            return await self._submit(saga, item, None if key is None else key(item), options)

        starter = BatchStarter(
            submit, lambda: self._backend.admission.wait_for_capacity(tenant), waits=on_limit == "wait"
        )
        await starter.run(items)
        return Batch(self._context, id, starter.ids, by_id=bool(given) or not starter.all_new)

    def is_crowded(self, tenant: str, under_way: int = 0) -> bool:
        """Returns whether the next start of this tenant would be refused by its in-flight limit.

        It uses local knowledge only and is cheap, so a server can refuse a request before it reads the body. With
        `under_way`, the number of starts that are not answered yet, only a few are let through at a time.
        """
        return self._backend.admission.refuses(tenant, under_way)

    async def _submit(
        self, saga: type | str, input: object, key: str | None, options: StartOptions, connection: object = None
    ) -> Submitted:
        self._scope.require("executions:start")
        check_options(options, key)
        tenant = self._tenant(options.get("tenant"))
        if key is None and connection is None and self._backend.admission.refuses(tenant):
            raise tenant_is_full(tenant)
        program = await self._program(saga, options.get("version"), tenant)
        request = StartRequest.build(
            program,
            input,
            options,
            tenant=tenant,
            actor=self._scope.actor,
            idempotency_key=key,
            connection=connection,
        )
        try:
            return await self._backend.commands.submit(request)
        except IdempotencyConflict as conflict:
            if not conflict.execution_id or connection is not None:
                raise
            found = conflict
            with suppress(NotFound):  # it was pruned in the meantime
                known = await self._backend.executions.read(tenant, conflict.execution_id)
                found = explained(conflict, request, known)
            raise found from None

    async def _program(self, saga: type | str, version: int | None, tenant: str) -> Program:
        """Finds the definition to start: the tenant's own, or else the one of the deployment."""
        name = saga_name(saga)
        programs = self._backend.programs
        if isinstance(saga, str) and "/" in name:  # the internal name of a tenant's definition
            raise NotFound(f"There is no definition {name!r}.")
        deprecated: DefinitionConflict | None = None
        unknown: NotFound | None = None
        if isinstance(saga, str) and tenant != DEFAULT_TENANT:
            own = owned_name(tenant, name)
            if programs.knows(own) or not programs.knows(name):
                try:
                    return await programs.find(own, version)
                except NotFound as error:
                    unknown = error  # its hint also names the tenant's own definitions
                except DefinitionConflict as error:
                    if version is not None:
                        raise
                    deprecated = error
        try:
            return await programs.find(name, version)
        except NotFound as error:
            if deprecated is not None:
                raise deprecated from None
            if isinstance(saga, str) and await self.catalog.is_draft(name, version, tenant):
                error.hint = "it is a draft: publish it first"
                raise
            raise unknown or error from None

    def _tenant(self, asked: str | None) -> str:
        own = self._scope.tenant
        check_name(asked, "tenant")
        if own is not None and asked not in (None, own):
            raise InvalidInput.at(
                "/tenant", "other_tenant", f"this engine is scoped to tenant {own!r}: use an engine of tenant {asked!r}"
            )
        return asked or own or DEFAULT_TENANT

    # -- Reading -------------------------------------------------------------------------------------------------------

    def get(self, id: str) -> Handle[Any]:
        """Returns a handle on an execution. It does not check that the execution exists; the first call does."""
        return Handle(self._context, id)

    async def executions(
        self,
        *,
        status: ExecutionStatus | None = None,
        definition: str | None = None,
        correlation_id: str | None = None,
        target_id: str | None = None,
        since: datetime | None = None,
    ) -> AsyncIterator[Handle[Any]]:
        """Yields the matching executions, oldest first."""
        self._scope.require("executions:read")
        check_filter(status=status, definition=definition, correlation_id=correlation_id, target_id=target_id)
        wanted = Filter(
            tenant=self._scope.tenant,
            status=status,
            definition=definition,
            correlation_id=correlation_id,
            target_id=target_id,
            since_ms=milliseconds_at(since, "since"),
        )
        async for summary in _pages(lambda cursor: self._backend.executions.page(wanted, cursor, PAGE)):
            yield self.get(summary["execution_id"])

    async def summaries(
        self,
        *,
        status: ExecutionStatus | None = None,
        definition: str | None = None,
        correlation_id: str | None = None,
        target_id: str | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        version: int | None = None,
        error_class: ErrorClass | None = None,
        q: str | None = None,
        blocked: bool = False,
        newest_first: bool = False,
    ) -> AsyncIterator[ExecutionSummary]:
        """Yields a summary of each matching execution.

        `blocked` selects executions that cannot proceed, and says why. `before` then means blocked since before that
        time; otherwise it means started before it. `q` finds executions by their id or its beginning, their idempotency
        key, target or correlation id.
        """
        page = partial(
            self.listing.executions,
            status=status,
            definition=definition,
            correlation_id=correlation_id,
            target_id=target_id,
            since=since,
            before=before,
            version=version,
            error_class=error_class,
            q=q,
            blocked=blocked,
            newest_first=newest_first,
            limit=PAGE,
        )
        async for summary in _pages(lambda cursor: page(cursor=cursor)):
            yield summary

    async def workers(self) -> list[WorkerRow]:
        """Returns the worker processes and their load. An engine scoped to a tenant gets an empty list."""
        self._scope.require("executions:read")
        return await self._backend.operations.workers() if self._scope.is_deployment else []

    async def count(
        self,
        *,
        group_by: Literal["status", "definition"] = "status",
        definition: str | None = None,
        correlation_id: str | None = None,
    ) -> Mapping[str, int]:
        """Counts executions by status or by definition."""
        self._scope.require("executions:read")
        check_one_of(group_by, Literal["status", "definition"], "/group_by")
        check_filter(definition=definition, correlation_id=correlation_id)
        wanted = Filter(tenant=self._scope.tenant, definition=definition, correlation_id=correlation_id)
        counts = await self._backend.executions.count(wanted, group_by)
        return _by_plain_name(counts) if group_by == "definition" and self._scope.tenant is not None else counts

    async def reviews(
        self, *, kind: ReviewKind | None = None, definition: str | None = None, execution_id: str | None = None
    ) -> AsyncIterator[ReviewRow]:
        """Yields everything that waits for a person, including dead letters. `kind` selects one kind."""
        self._scope.require("reviews:read")
        check_filter(kind=kind, definition=definition, execution_id=execution_id)
        wanted = ReviewsWanted(
            tenant=self._scope.tenant,
            kinds=get_args(ReviewKind) if kind is None else (kind,),
            definition=definition,
            execution=execution_id,
        )
        async for row in _pages(lambda cursor: self._backend.reviews.page(wanted, cursor, PAGE)):
            yield review_document(row)

    async def dlq(
        self, *, definition: str | None = None, error_class: ErrorClass | None = None
    ) -> AsyncIterator[DeadLetterRow]:
        """Yields the open dead letters: one for each execution that failed for good."""
        self._scope.require("dlq:read")
        check_filter(error_class=error_class, definition=definition)
        wanted = ReviewsWanted(
            tenant=self._scope.tenant, kinds=("dead_letter",), definition=definition, error_class=error_class
        )
        async for row in _pages(lambda cursor: self._backend.reviews.page(wanted, cursor, PAGE)):
            yield dead_letter_document(row)

    # -- Commands ------------------------------------------------------------------------------------------------------

    async def resolve(
        self, review_id: str, resolution: Resolution, *, reason: str = "", result: object = None, again: bool = False
    ) -> None:
        """Resolves a review. `retry` on a dead letter starts the next run of its execution.

        Every resolution except `approved` and `rejected` needs a reason.
        """
        check_one_of(resolution, Resolution, "/resolution")
        if again and resolution != "retry":
            raise InvalidInput.at(
                "/again", "without_retry", "`again` repeats an effect, so it needs the resolution `retry`"
            )
        if resolution not in ("approved", "rejected"):
            check_reason(reason)
        execution_id = review_id.rpartition(".")[0]
        if not execution_id:
            raise NotFound(f"There is no review {review_id!r}.")
        context = self._context
        context.scope.require("approvals:write", "dlq:write")
        if again:
            context.scope.require("effects:again")
        reading = await context.read_state(execution_id)
        review = reading.state.reviews.get(review_id)
        if review is None:
            raise refusal(not_open(reading.state, review_id))
        context.scope.require("dlq:write" if review.kind == "dead_letter" else "approvals:write")
        if review.kind == "dead_letter" and resolution == "retry":
            check_again(again=again, start=None)
            await context.check_retry(reading, None, again=False, reason=reason)
            run = reading.state.run  # the run that the dead letter is about
            await context.command(
                execution_id, f.Retry(at=context.now, actor=self._scope.actor, reason=reason, run=run)
            )
            return
        given = NULL if result is None else encode(result, where="result")
        await context.decide(reading, review, resolution, reason, given, again=again)

    async def cancel_many(
        self,
        *,
        reason: str,
        mode: CancelMode | None = None,
        status: ActiveStatus | None = None,
        limit: int = 100,
        cursor: str | None = None,
        dry_run: bool = False,
        **chosen: Unpack[ExecutionFilter],
    ) -> BulkResult:
        """Cancels up to `limit` (at most 1,000) matching executions that are not finished, oldest first.

        At least one filter is needed. Refused executions are reported with a reason and left unchanged. `dry_run` only
        returns the executions that would be cancelled.
        """
        wanted = build_filter(self._scope.tenant, status, chosen)
        return await BulkCommand(self._context, wanted, limit=limit, cursor=cursor, dry_run=dry_run).cancel(
            mode, reason
        )

    async def retry_many(
        self,
        *,
        reason: str,
        limit: int = 100,
        cursor: str | None = None,
        dry_run: bool = False,
        **chosen: Unpack[ExecutionFilter],
    ) -> BulkResult:
        """Starts the next run of up to `limit` (at most 1,000) matching executions that failed, oldest first.

        At least one filter is needed. Refused executions are reported with a reason and left unchanged. `dry_run` only
        returns the executions that would be retried.
        """
        wanted = build_filter(self._scope.tenant, None, chosen)
        return await BulkCommand(self._context, wanted, limit=limit, cursor=cursor, dry_run=dry_run).retry(reason)

    async def limit(self, name: str, *, rate: str | None = None, concurrency: int | None = None) -> None:
        """Sets a limit for all steps with `limits=[name]`: a rate such as `"14/s"`, a concurrency, or both.

        All workers of a database share the limit, and it stays until it is changed. Waiting for it uses up neither
        attempts nor timeouts. Without `rate` and `concurrency`, the limit is removed.
        """
        await Limits(self._context).limit(name, rate=rate, concurrency=concurrency)

    async def limits(self) -> list[LimitRow]:
        """Returns the limits, with the attempts that run under each and those that wait.

        An engine scoped to a tenant gets an empty list.
        """
        return await Limits(self._context).limits()

    async def tenant_limit(self, tenant: str, *, max_in_flight: int | None) -> None:
        """Sets how many executions of a tenant may be in flight. A start beyond the limit raises `TenantLimit`.

        Executions already in flight count and continue. None removes the limit.
        """
        await Limits(self._context).tenant_limit(tenant, max_in_flight=max_in_flight)

    async def tenant_limits(self) -> list[TenantLimitRow]:
        """Returns the tenants that have an in-flight limit, and how many of their executions are in flight."""
        return await Limits(self._context).tenant_limits()

    def scoped(
        self, *, tenant: str, actor: str, roles: Iterable[str] | None = None, four_eyes: Iterable[FourEyes] = ()
    ) -> Self:
        """Returns this engine scoped to one tenant and actor. Data of other tenants is not found.

        With `roles`, only the actions they permit are allowed, as over HTTP. Without, your program checks permissions.
        """
        check_name(tenant, "tenant")
        check_name(actor, "actor", MAX_ACTOR)
        self._backend.identity.check_scope(tenant)
        other = copy.copy(self)
        permitted = None if roles is None else frozenset(roles)
        other._scope = Scope(tenant, actor, permitted, frozenset(four_eyes))
        return other

    def asgi(self, settings: Settings | None = None) -> Any:
        """Returns the HTTP service as an ASGI app to mount elsewhere. Default settings: the environment."""
        return import_module("tenuto.service.app").create_app(self, settings)

    @property
    def now_ms(self) -> int:
        """The engine's current time in milliseconds: the database's clock, if there is a database."""
        return self._environment.now_ms()

    @property
    def scope(self) -> Scope:
        """The tenant, actor and permissions of this engine."""
        return self._scope

    @property
    def telemetry(self) -> "Telemetry | None":
        """The telemetry that this engine was given, if any."""
        return self._telemetry

    @property
    def registry(self) -> Registry:
        """The store of API keys, the audit log and stored responses."""
        return self._backend.operations.registry

    @property
    def audit(self) -> Audit:
        """The audit log, and its verification."""
        return Audit(self._backend.audit, self._scope)

    @property
    def keys(self) -> Keyring:
        """The API keys of the HTTP service."""
        self._scope.require("keys:write")
        if not self._keyrings:
            self._keyrings.append(Keyring(self.registry, self._environment.now_ms))
        return self._keyrings[0]

    async def me(self) -> IdentityDocument:
        """Returns who calls, and what the roles permit. At a service it is the holder of the API key."""
        return await self._backend.identity.me(self._scope)

    @property
    def sessions(self) -> Sessions:
        """The sign-in sessions of the console."""
        return Sessions(self._backend.identity, self._scope)

    @property
    def catalog(self) -> Definitions:
        """Drafts, publishes and deprecates definitions."""
        return Definitions(self._context, self._handlers, BUILT_IN, self._outside.open_limits)

    @property
    def listing(self) -> Lists:
        """Lists one page at a time, with cursors."""
        return Lists(self._context)

    @property
    def letters(self) -> DeadLetters:
        """Reprocesses and discards dead letters. `dlq` and `listing` show them."""
        return DeadLetters(self._context, self.resolve)

    @property
    def _context(self) -> EngineContext:
        return EngineContext(self._backend, self._environment, self._scope)


def _only_names_handlers(given: object) -> bool:
    if isinstance(given, ModuleType | type) or not getattr(given, HANDLER_NAMES, ()):
        return False
    return not any(hasattr(given, part) for part in (EXTERNAL_STEPS, EXTERNAL_COMPENSATIONS))


async def _pages(fetch: Callable[[str | None], Awaitable[Page[T]]]) -> AsyncIterator[T]:
    cursor: str | None = None
    while True:
        page = await fetch(cursor)
        for item in page.items:
            yield item
        cursor = page.next_cursor
        if cursor is None:
            return


def _by_plain_name(counts: Mapping[str, int]) -> dict[str, int]:
    """Adds up counts by plain name: a tenant's definition and the deployment's can have the same name."""
    found: dict[str, int] = {}
    for name, count in counts.items():
        found[plain_name(name)] = found.get(plain_name(name), 0) + count
    return found
