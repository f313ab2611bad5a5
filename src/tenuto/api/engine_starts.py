"""The part of `Engine` that starts executions."""

from collections.abc import AsyncIterable, Callable, Iterable
from contextlib import suppress
from typing import Any, Literal, TypeVar, Unpack, overload

from tenuto.authoring.decorators import Saga
from tenuto.authoring.markers import StepInputs
from tenuto.authoring.program import Program
from tenuto.authoring.saga_source import saga_name
from tenuto.errors import DefinitionConflict, IdempotencyConflict, InvalidInput, NotFound
from tenuto.kernel.definition import owned_name, plain_name
from tenuto.runtime.start_request import StartOptions, StartRequest, Submitted, check_options, explained
from tenuto.values.names import DEFAULT_TENANT, check_name, check_one_of
from tenuto.views.results import SagaResult

from .batch import Batch, BatchStarter
from .context import EngineContext
from .definitions import is_draft
from .handle import Handle

I = TypeVar("I")  # noqa: E741  (the input of a saga)
O = TypeVar("O")  # noqa: E741  (its output)


class EngineStarts:
    """Starts executions of sagas and JSON definitions."""

    _context: EngineContext

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
        return SagaResult(await self._context.backend.executions.wait(None, id, "settled", None))

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
        id = given or self._context.environment.new_id()
        options["correlation_id"] = id
        tenant = self._tenant(options.get("tenant"))

        async def submit(item: Any) -> Submitted:
            return await self._submit(saga, item, None if key is None else key(item), options)

        starter = BatchStarter(
            submit, lambda: self._context.backend.admission.wait_for_capacity(tenant), waits=on_limit == "wait"
        )
        await starter.run(items)
        return Batch(self._context, id, starter.ids, by_id=bool(given) or not starter.all_new)

    def is_crowded(self, tenant: str, under_way: int = 0) -> bool:
        """Returns whether the next start of this tenant would be refused by its in-flight limit.

        It uses local knowledge only and is cheap, so a server can refuse a request before it reads the body. With
        `under_way`, the number of starts that are not answered yet, only a few are let through at a time.
        """
        return self._context.backend.admission.refuses(tenant, under_way)

    async def _submit(
        self, saga: type | str, input: object, key: str | None, options: StartOptions, connection: object = None
    ) -> Submitted:
        self._context.scope.require("executions:start")
        check_options(options, key)
        tenant = self._tenant(options.get("tenant"))
        program = await self._program(saga, options.get("version"), tenant)
        if program.plan.run is not None:
            text = f"{plain_name(program.name)!r} is a run: create it with `engine.runs.create` or POST /api/v1/runs"
            raise InvalidInput.at("/definition", "is_a_run", text)
        request = StartRequest.build(
            program,
            input,
            options,
            tenant=tenant,
            actor=self._context.scope.actor,
            idempotency_key=key,
            connection=connection,
        )
        try:
            return await self._context.backend.commands.submit(request)
        except IdempotencyConflict as conflict:
            if not conflict.execution_id or connection is not None:
                raise
            found = conflict
            with suppress(NotFound):  # it was pruned in the meantime
                known = await self._context.backend.executions.read(tenant, conflict.execution_id)
                found = explained(conflict, request, known)
            raise found from None

    async def _program(self, saga: type | str, version: int | None, tenant: str) -> Program:
        """Finds the definition to start: the tenant's own, or else the one of the deployment."""
        name = saga_name(saga)
        programs = self._context.backend.programs
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
            if isinstance(saga, str) and await is_draft(programs.catalog, name, version, tenant):
                error.hint = "it is a draft: publish it first"
                raise
            raise unknown or error from None

    def _tenant(self, asked: str | None) -> str:
        own = self._context.scope.tenant
        check_name(asked, "tenant")
        if own is not None and asked not in (None, own):
            raise InvalidInput.at(
                "/tenant", "other_tenant", f"this engine is scoped to tenant {own!r}: use an engine of tenant {asked!r}"
            )
        return asked or own or DEFAULT_TENANT
