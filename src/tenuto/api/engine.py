"""`Engine`: the entry point for users. It chooses the runtime by URL and exposes its operations."""

import asyncio
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack

from tenuto.access.audit import Audit
from tenuto.access.keys import Keyring
from tenuto.access.scope import Scope
from tenuto.authoring.program import EVERY_TENANT, Handler
from tenuto.authoring.programs import bind_handler, compile_sagas, handlers_in
from tenuto.authoring.settings import EXTERNAL_COMPENSATIONS, EXTERNAL_STEPS, HANDLER_NAMES, several
from tenuto.authoring.step_overrides import DeploymentOverrides
from tenuto.errors import InvalidInput, NotSupported
from tenuto.handlers.builtin import NAMES as BUILT_IN
from tenuto.handlers.builtin import BuiltIn
from tenuto.handlers.directives import BusSettings, DirectivePublisher
from tenuto.handlers.settings import HandlerSettings
from tenuto.kernel.definition import CancelMode
from tenuto.kernel.events import Resolution
from tenuto.runtime.bus.adapters import make_bus
from tenuto.runtime.bus.embedded import EmbeddedBus
from tenuto.runtime.clock import Clock, Environment
from tenuto.runtime.durable import DatabaseClock
from tenuto.runtime.executor.worker import ASYNC_SLOTS, THREADS
from tenuto.runtime.shared.retention import Pruned
from tenuto.settings import FourEyes, Settings
from tenuto.storage.jobs import JobStore
from tenuto.storage.registry import Registry
from tenuto.values.credits import CreditPolicy
from tenuto.values.durations import Duration, milliseconds
from tenuto.values.names import MAX_ACTOR, check_name
from tenuto.views import (
    IdentityDocument,
    LimitRow,
    TenantLimitRow,
)
from tenuto.views.bulk_results import BulkResult
from tenuto.views.jobs import BUS_QUEUE, DIRECTIVE
from tenuto.views.messages import Announced, Publish

from .backend import local_dispatch
from .bulk_commands import ActiveStatus, BulkCommand, ExecutionFilter, build_filter
from .connection import DURABLE, backend_for
from .context import EngineContext
from .credits import Credits
from .dead_letters import DeadLetters
from .definitions import Definitions
from .engine_queries import EngineQueries
from .engine_starts import EngineStarts
from .event_sinks import EventDispatcher, SagaEvents
from .handle import Handle
from .health import Health, alive, ready
from .identity import Sessions
from .jobs import JobReads, Jobs
from .limits import Limits
from .lists import Lists
from .review_commands import ReviewCommands
from .runs import Runs
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


class Engine(EngineStarts, EngineQueries):
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

    `bus` makes this process part of the command gateway: a worker publishes the directives of jobs on that bus.

    `read_only`, with `worker=False`, opens a database for reading, such as a standby or a file without write access.
    Methods that write raise `StorageError` with the code `read_only`.

    `step_overrides` changes `timeout`, `retry` and `limits` of steps without a new version: `{"book-trip.charge":
    {"timeout": "60s"}}`. Give it to every process on the same database. See `docs/guides/sagas.md`.

    With `credits="off"`, runs reserve nothing, and their usage is only recorded. With
    `ledger_isolation="serializable"`, PostgreSQL commits reserves in serializable transactions; they are correct
    without it.
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
        bus: BusSettings | None = None,
        credits: Literal["on", "off"] | CreditPolicy = "on",
        ledger_isolation: Literal["locked", "serializable"] = "locked",
        step_overrides: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        sinks = tuple(events)
        self.url = url
        self._grace_ms = GRACE_MS if shutdown_grace is None else milliseconds(shutdown_grace)
        self._grace_after_signal_ms = SIGNAL_GRACE_MS if shutdown_grace is None else self._grace_ms
        self._dispatcher = EventDispatcher(sinks) if sinks else None
        self._telemetry = telemetry
        self._overrides = DeploymentOverrides(step_overrides)
        environment = self._make_environment(clock, build)
        environment.credits = _credit_policy(credits)
        self._handlers: dict[str, Handler] = {}
        backend = backend_for(
            url,
            environment,
            telemetry,
            observers=() if self._dispatcher is None else (self._dispatcher,),
            worker=worker,
            queues=queues if bus is None else (*queues, BUS_QUEUE),
            slots=slots,
            threads=threads,
            lease_ms=milliseconds(lease),
            api_key=api_key,
            announced=Announced(messages) or None,
            publish=publish,
            keep_ms=None if retention is None else milliseconds(retention),
            read_only=read_only,
            overrides=self._overrides,
            serializable=ledger_isolation == "serializable",
        )
        self._context = EngineContext(backend, environment, Scope())
        self._keyrings: list[Keyring] = []  # shared with scoped engines, created on first use
        self._outside = outside or HandlerSettings.from_environment()
        self._built_in = None if backend.notices is None else BuiltIn(self._outside, backend.notices)
        if self._built_in is not None:
            self._provide_built_in(self._built_in)
        self._directives = None if bus is None else self._make_publisher(bus)

    def _provide_built_in(self, built_in: BuiltIn) -> None:
        for name, function in built_in.functions.items():
            bound = bind_handler(name, function, (EVERY_TENANT,))
            if (prepare := built_in.preparations.get(name)) is not None:
                bound = replace(bound, prepare=prepare)
            self._context.backend.programs.provide_handler(bound)

    def _make_publisher(self, bus: BusSettings) -> DirectivePublisher:
        dispatch = self._context.backend.dispatch
        now_ms = self._context.environment.now_ms
        if dispatch is None:
            raise NotSupported("A client of a service publishes no directives.", hint="give `bus` to the workers")
        made = make_bus(bus.url, dispatch.jobs.messages, now_ms)
        tokens = None if isinstance(made, EmbeddedBus) else bus.tokens  # there, the gateway adds it when it delivers
        publisher = DirectivePublisher(made, dispatch, now_ms, public_url=bus.public_url, tokens=tokens)
        self._context.backend.programs.provide_handler(bind_handler(DIRECTIVE, publisher.publish))
        return publisher

    def _make_environment(self, clock: Clock | None, build: str) -> Environment:
        if clock is None and self.url.partition(":")[0] in DURABLE:
            clock = DatabaseClock()
        return Environment(clock, build=build)

    async def __aenter__(self) -> Self:
        await self._context.backend.lifecycle.open()
        if self._overrides:
            await self._check_overrides()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _check_overrides(self) -> None:
        try:
            self._overrides.check(found.definition for found in await self._context.backend.programs.published())
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Closes the engine. Running handlers get `shutdown_grace` (default 10 s, or 30 s after a signal) to finish."""
        await self._context.backend.lifecycle.close(self._grace_ms)
        if self._built_in is not None:
            await self._built_in.close()
        if self._directives is not None:
            await self._directives.close()
        if self._dispatcher is not None:
            await self._dispatcher.close(self._grace_ms / 1_000)
        if self._telemetry is not None:
            await asyncio.to_thread(self._telemetry.close)  # flushes pending spans and logs

    def alive(self) -> Health:
        """Reports whether this process works. If it does not, restart it."""
        return alive(self._context.backend.lifecycle)

    async def ready(self) -> Health:
        """Reports whether this process can take work: it holds its lease, commits, and the database is available."""
        return await ready(self._context.backend.lifecycle)

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
            self._context.backend.programs.provide(program)

    def handler(self, name: str, function: Callable[..., Any], *, tenants: Iterable[str] = ()) -> None:
        """Registers a function that JSON definitions call by this name. A later registration replaces it.

        Definitions published by a tenant may call it only if `tenants` includes that tenant, or is `["*"]`.
        """
        bound = bind_handler(name, function, several(tenants))
        self._handlers[name] = bound
        self._context.backend.programs.provide_handler(bound)

    async def apply(self, document: Mapping[str, Any] | Path | str) -> None:
        """Validates and publishes a JSON definition."""
        await self.catalog.apply(document)

    # -- Messages and retention ----------------------------------------------------------------------------------------

    def inbox(self, consumer: str, message_id: str, connection: Any = None) -> AbstractAsyncContextManager[bool]:
        """Deduplicates consumed messages: `async with engine.inbox("billing", message.id, connection) as first:`.

        `first` is true once per message. The message id is recorded in the connection's current transaction, together
        with the effects of processing it.
        """
        if not consumer or not message_id or consumer.startswith("tenuto."):
            raise InvalidInput.at(
                "", "id", "consumer and message_id must not be empty, and the prefix `tenuto.` is reserved"
            )
        return self._context.backend.operations.inbox(consumer, message_id, connection)

    async def prune(self, *, older_than: Duration) -> Pruned:
        """Removes executions that ended longer ago than `older_than`, with all their data, in small batches.

        Executions that wait for a person stay, including those with an open dead letter. Removing an execution frees
        its idempotency key, so keep executions for longer than callers may repeat a request. Inbox records and
        published messages are kept for at least seven days.
        """
        return await self._context.backend.operations.prune(milliseconds(older_than))

    async def outbox(self) -> OutboxStatus:
        """Returns how many messages wait to be published, how many failed, and the age of the oldest."""
        standing = await self._context.backend.operations.outbox.standing()
        oldest = standing.oldest_at
        return OutboxStatus(
            waiting=standing.waiting,
            failing=standing.failing,
            oldest_at=None if oldest is None else datetime.fromtimestamp(oldest / 1_000, UTC),
            last_error=standing.last_error or None,
        )

    @property
    def runs(self) -> Runs:
        """Creates, reads and commands runs."""
        return Runs(self._context, self._program)

    @property
    def credits(self) -> Credits:
        """The accounts and ledgers of organisations."""
        return Credits(self._context)

    # -- Commands ------------------------------------------------------------------------------------------------------

    def get(self, id: str) -> Handle[Any]:
        """Returns a handle on an execution. It does not check that the execution exists; the first call does."""
        return Handle(self._context, id)

    async def resolve(
        self,
        review_id: str,
        resolution: Resolution,
        *,
        reason: str = "",
        result: object = None,
        again: bool = False,
        actor: str | None = None,
    ) -> None:
        """Resolves a review. `retry` on a dead letter starts the next run of its execution.

        Every resolution except `approved` and `rejected` needs a reason. `actor` is as in `Handle.approve`.
        """
        commands = ReviewCommands(self._context.acting_as(actor))
        await commands.resolve(review_id, resolution, reason=reason, result=result, again=again)

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
        wanted = build_filter(self._context.scope.tenant, status, chosen)
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
        wanted = build_filter(self._context.scope.tenant, None, chosen)
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
        self._context.backend.identity.check_scope(tenant)
        other = copy.copy(self)
        permitted = None if roles is None else frozenset(roles)
        scope = Scope(tenant, actor, permitted, frozenset(four_eyes))
        other._context = self._context._replace(scope=scope)
        return other

    def asgi(self, settings: Settings | None = None) -> Any:
        """Returns the HTTP service as an ASGI app to mount elsewhere. Default settings: the environment."""
        return import_module("tenuto.service.app").create_app(self, settings)

    @property
    def now_ms(self) -> int:
        """The engine's current time in milliseconds: the database's clock, if there is a database."""
        return self._context.environment.now_ms()

    @property
    def scope(self) -> Scope:
        """The tenant, actor and permissions of this engine."""
        return self._context.scope

    @property
    def telemetry(self) -> "Telemetry | None":
        """The telemetry that this engine was given, if any."""
        return self._telemetry

    @property
    def registry(self) -> Registry:
        """The store of API keys, the audit log and stored responses."""
        return self._context.backend.operations.registry

    @property
    def directives(self) -> DirectivePublisher | None:
        """The publisher of directives, if this process is part of the command gateway."""
        return self._directives

    @property
    def jobs(self) -> Jobs:
        """The jobs of the command gateway."""
        return Jobs(self._context, None if self._directives is None else self._directives.bus)

    @property
    def job_reads(self) -> JobReads:
        """The jobs of the command gateway, here or at a service."""
        remote = self._context.backend.remote_jobs
        return self.jobs if remote is None else remote

    @property
    def job_store(self) -> JobStore:
        """The ledger of jobs, the log of callbacks, and the messages of the embedded bus."""
        return local_dispatch(self._context.backend).jobs

    def new_id(self) -> str:
        """A new id, as executions have."""
        return self._context.environment.new_id()

    async def post_signed(self, url: str, id: str, content: bytes, now_s: int) -> str | None:
        """Posts a webhook that does not belong to a step. Returns what went wrong; None if it was accepted."""
        assert self._built_in is not None, "a client of a service posts nothing"
        return await self._built_in.post_signed(url, id, content, now_s)

    @property
    def audit(self) -> Audit:
        """The audit log, and its verification."""
        return Audit(self._context.backend.audit, self._context.scope)

    @property
    def keys(self) -> Keyring:
        """The API keys of the HTTP service."""
        self._context.scope.require("keys:write")
        if not self._keyrings:
            self._keyrings.append(Keyring(self.registry, self._context.environment.now_ms))
        return self._keyrings[0]

    async def me(self) -> IdentityDocument:
        """Returns who calls, and what the roles permit. At a service it is the holder of the API key."""
        return await self._context.backend.identity.me(self._context.scope)

    @property
    def sessions(self) -> Sessions:
        """The sign-in sessions of the console."""
        return Sessions(self._context.backend.identity, self._context.scope)

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
        return DeadLetters(self._context)


def _credit_policy(given: Literal["on", "off"] | CreditPolicy) -> CreditPolicy:
    return given if isinstance(given, CreditPolicy) else CreditPolicy(enabled=given == "on")


def _only_names_handlers(given: object) -> bool:
    if isinstance(given, ModuleType | type) or not getattr(given, HANDLER_NAMES, ()):
        return False
    return not any(hasattr(given, part) for part in (EXTERNAL_STEPS, EXTERNAL_COMPENSATIONS))
