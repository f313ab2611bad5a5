"""The built-in handler that publishes the directives of jobs.

The attempt, its lease and its task are committed before it is called. While the bus is unreachable, the queue of
directives is paused: nothing is published or recorded, and directives leave in order once the bus is back.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from tenuto.access.callback_tokens import CallbackTokens, Claims, read_keys
from tenuto.authoring.context import SagaContext
from tenuto.errors import NonRetryableError
from tenuto.kernel.address import attempt_span
from tenuto.runtime.bus.port import Bus, BusUnreachable
from tenuto.storage.bus_messages import BusMessage, message_id
from tenuto.values.lanes import lane_of, routing_key, topic_of
from tenuto.views.jobs import BUS_QUEUE, JobInput
from tenuto.views.projections import PRIORITIES

logger = logging.getLogger("tenuto.bus")

RECONNECT_SECONDS: Final = 1.0
DAY_MS: Final = 86_400_000
_TRACEPARENT = re.compile(r"(00-[0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class BusSettings:
    """How directives leave this process, and how their receivers call back.

    `url` selects the bus; empty is the embedded one. `public_url` is where platform workers reach the service.
    `callback_keys` are `id:secret` texts: the first signs callback tokens, all verify them.
    """

    url: str = ""
    public_url: str = ""
    callback_keys: tuple[str, ...] = field(default=(), repr=False)

    @property
    def tokens(self) -> CallbackTokens:
        return CallbackTokens(read_keys(self.callback_keys))


class QueueGate(Protocol):
    """The part of a runtime that stops and starts taking attempts from a queue."""

    def pause_queue(self, queue: str) -> None: ...

    def resume_queue(self, queue: str) -> None: ...


class Directive(msgspec.Struct, kw_only=True):
    """The message that a platform worker receives. `callback_token` is added when it is delivered."""

    jobId: str
    tenant_id: str
    stepId: str
    protocol_id: str
    step_type: str
    attempt_no: int
    lease_id: str
    input_ref: str
    workspace_ref: str | None
    output_ref: str
    payload: Any
    callback_urls: dict[str, str]
    correlation_id: str
    traceparent: str | None
    idempotency_key: str
    callback_token: str | msgspec.UnsetType = msgspec.UNSET


class DirectiveInput(msgspec.Struct, kw_only=True):
    """The `with` of a directive's step, as a protocol compiles it."""

    service: str
    step_type: str
    protocol_id: str
    priority: str
    answer_ms: int
    payload: Any
    envelope: dict[str, Any]
    workspace_ref: str | None


class DirectivePublisher:
    """Publishes directives on a bus."""

    def __init__(
        self,
        bus: Bus,
        gate: QueueGate,
        now_ms: Callable[[], int],
        *,
        public_url: str,
        tokens: CallbackTokens | None,
    ) -> None:
        """`tokens`: adds a callback token to each message, for buses that deliver messages without the gateway."""
        self.bus = bus
        self._gate = gate
        self._now = now_ms
        self.public_url = public_url.rstrip("/")  # where platform workers reach the service
        self._tokens = tokens
        self._reconnecting: asyncio.Task[None] | None = None
        self.published: dict[int, int] = {}  # directives by lane
        self.failures = 0

    async def publish(self, given: Any, ctx: SagaContext) -> None:
        try:
            step = msgspec.convert(given, DirectiveInput)
            message = self._message(step, msgspec.convert(step.envelope, JobInput), ctx)
        except msgspec.ValidationError as error:
            raise NonRetryableError(f"The directive cannot be made: {error}", code="bad_directive") from None
        try:
            await self.bus.publish(message)
        except BusUnreachable as error:
            self._wait_for_bus(error)
            raise
        except Exception:
            self.failures += 1
            raise
        lane = int(message.topic.removeprefix(topic_of(0)[:-1]))
        self.published[lane] = self.published.get(lane, 0) + 1

    def _message(self, step: DirectiveInput, given: JobInput, ctx: SagaContext) -> BusMessage:
        now = self._now()
        expires_at = now + step.answer_ms + DAY_MS  # a late result still gets its verdict
        directive = Directive(
            jobId=ctx.execution_id,
            tenant_id=ctx.tenant,
            stepId=ctx.step_id,
            protocol_id=step.protocol_id,
            step_type=step.step_type,
            attempt_no=ctx.attempt,
            lease_id=ctx.lease_id,
            input_ref=given.input_ref,
            workspace_ref=step.workspace_ref,
            output_ref=given.output_ref,
            payload=step.payload,
            callback_urls=self._callback_urls(step.envelope.get("callback_urls") or {}),
            correlation_id=ctx.correlation_id,
            traceparent=_traceparent(ctx),
            idempotency_key=ctx.idempotency_key,
        )
        if self._tokens is not None:
            directive.callback_token = self._tokens.sign(claims_of(directive, step.service, expires_at))
        return BusMessage(
            id=message_id(ctx.execution_id, ctx.step_id, ctx.attempt, ctx.lease_id),
            execution=ctx.execution_id,
            tenant=ctx.tenant,
            topic=topic_of(lane_of(routing_key(ctx.tenant, given.mode, given.doc_id))),
            service=step.service,
            priority=PRIORITIES[step.priority],
            body=msgspec.json.encode(directive),
            published_at=now,
            due_at=now,
            expires_at=expires_at,
        )

    def _callback_urls(self, given: dict[str, str]) -> dict[str, str]:
        own = f"{self.public_url}/v1/callbacks"
        return {kind: given.get(kind) or f"{own}/{kind}" for kind in ("ack", "result")}

    def _wait_for_bus(self, error: BusUnreachable) -> None:
        self._gate.pause_queue(BUS_QUEUE)
        if self._reconnecting is None or self._reconnecting.done():
            logger.warning("The bus cannot be reached; directives wait: %s", error, extra={"action": "bus_unreachable"})
            self._reconnecting = asyncio.create_task(self._reconnect(), name="tenuto-bus")

    async def _reconnect(self) -> None:
        while True:
            await asyncio.sleep(RECONNECT_SECONDS)
            try:
                await self.bus.check(())
            except BusUnreachable:
                continue
            except Exception as error:  # whatever else is wrong shows when a directive is published
                logger.warning("The bus was checked: %s", type(error).__name__, extra={"action": "bus_checked"})
            self._gate.resume_queue(BUS_QUEUE)
            logger.warning("The bus can be reached again.", extra={"action": "bus_reached"})
            return

    @property
    def is_waiting(self) -> bool:
        """Whether directives wait because the bus cannot be reached."""
        return self._reconnecting is not None and not self._reconnecting.done()

    async def close(self) -> None:
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.wait([self._reconnecting])
        await self.bus.close()


def claims_of(directive: Directive, service: str, expires_at: int) -> Claims:
    """What the callback token of a directive is bound to."""
    return Claims(
        tenant=directive.tenant_id,
        job=directive.jobId,
        step=directive.stepId,
        attempt=directive.attempt_no,
        lease=directive.lease_id,
        service=service,
        expires_at=expires_at,
    )


def _traceparent(ctx: SagaContext) -> str | None:
    """The attempt's span in the trace of the caller."""
    given = next((value for name, value in ctx.headers.items() if name.lower() == "traceparent"), "")
    found = _TRACEPARENT.fullmatch(given.strip())
    if found is None:
        return None
    span = attempt_span(ctx.execution_id, ctx.path, "forward", ctx.attempt)
    return f"{found[1]}-{span:016x}-{found[2]}"
