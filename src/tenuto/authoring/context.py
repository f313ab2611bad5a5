"""`SagaContext`: the attempt that a handler runs in."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeAlias

from tenuto.errors import NonRetryableError
from tenuto.values.names import check_name

Attribute: TypeAlias = str | int | float | bool


class HeartbeatReply(NamedTuple):
    """The reply to a heartbeat: whether the execution is paused or cancelled."""

    paused: bool
    cancelled: bool


class AttemptServices(Protocol):
    """The services of a runtime for a running attempt. `SagaContext` forwards to them."""

    def is_cancelled(self) -> bool: ...
    def heartbeat(self, progress: object) -> HeartbeatReply: ...
    def result_of(self, step: str) -> object: ...
    def once(self, key: str, connection: object) -> AbstractAsyncContextManager[bool]: ...


class SagaContext:
    """One attempt of one step, as its handler sees it."""

    __slots__ = (
        "_noted",
        "_services",
        "attempt",
        "attributes",
        "correlation_id",
        "deadline",
        "execution_id",
        "forward_key",
        "headers",
        "idempotency_key",
        "lease_id",
        "owner",
        "path",
        "progress",
        "saga",
        "step_id",
        "tenant",
        "variables",
    )

    def __init__(
        self,
        services: AttemptServices,
        *,
        execution_id: str,
        saga: str,
        step_id: str,
        path: str,
        correlation_id: str,
        tenant: str,
        attempt: int,
        idempotency_key: str,
        forward_key: str,
        lease_id: str,
        deadline: datetime | None,
        headers: Mapping[str, str],
        variables: Mapping[str, Any],
        progress: object,
        owner: str | None = None,
    ) -> None:
        self._services = services
        self._noted: set[str | None] = set()  # names for which `once` was true in this attempt
        self.execution_id = execution_id
        self.saga = saga
        self.step_id = step_id
        self.path = path
        self.correlation_id = correlation_id
        self.tenant = tenant
        self.attempt = attempt
        self.idempotency_key = idempotency_key
        self.forward_key = forward_key
        self.lease_id = lease_id
        self.deadline = deadline
        self.headers = headers
        self.variables = variables
        self.progress = progress
        self.attributes: dict[str, Attribute] = {}
        self.owner = owner  # the tenant that owns the definition; None for the deployment

    @property
    def cancelled(self) -> bool:
        """Whether a cancel was requested. Long handlers check it from time to time, and stop early if they can."""
        return self._services.is_cancelled()

    def result_of(self, step: str | Callable[..., Any]) -> Any:
        """Returns the result of a completed step, decoded to its annotated type."""
        return self._services.result_of(step if isinstance(step, str) else step_name(step))

    def set_attribute(self, name: str, value: Attribute) -> None:
        """Sets an attribute of the attempt's trace span, such as `dep.name`. Without traces it has no effect."""
        self.attributes[name] = value

    async def heartbeat(self, progress: object = None) -> HeartbeatReply:
        """Reports that the attempt is alive. `progress` is shown to people and passed to the next attempt."""
        return self._services.heartbeat(progress)

    def heartbeat_sync(self, progress: object = None) -> HeartbeatReply:
        """`heartbeat` for plain `def` handlers, which run in threads."""
        return self._services.heartbeat(progress)

    def once(self, connection: Any, name: str | None = None) -> AbstractAsyncContextManager[bool]:
        """Makes a database write happen once per step: `async with ctx.once(connection) as first:`.

        `first` is true once per idempotency key, and is recorded in the connection's current transaction. A handler
        with several transactions gives each a name: `ctx.once(connection, "credit")`.
        """
        check_name(name, "name")
        return self._once(connection, name)

    @asynccontextmanager
    async def _once(self, connection: Any, name: str | None) -> AsyncIterator[bool]:
        key = self.idempotency_key if name is None else f"{self.idempotency_key}/{name}"
        async with self._services.once(key, connection) as first:
            if not first and name in self._noted:
                raise _used_twice(self.step_id, name)
            yield first
        if first:
            self._noted.add(name)


def _used_twice(step: str, name: str | None) -> NonRetryableError:
    """Not retryable: a retry would find both recorded, and the second write would be missing silently."""
    call = "ctx.once(connection)" if name is None else f"ctx.once(connection, {name!r})"
    return NonRetryableError(
        f"Step {step!r} used `{call}` for two transactions in one attempt, so the second was not written.",
        code="once_twice",
        hint='give each transaction its own name, such as `ctx.once(connection, "credit")`; '
        "if a commit fails, raise, so that the step is retried",
        partial_effect=True,
    )


STEP_ID_ATTRIBUTE = "__tenuto_step_id__"


def step_name(function: Callable[..., Any]) -> str:
    """Returns the step id of a decorated function."""
    name: str = getattr(function, STEP_ID_ATTRIBUTE, None) or function.__name__
    return name
