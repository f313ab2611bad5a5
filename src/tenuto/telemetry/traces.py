"""Spans of executions and of their attempts, for OpenTelemetry (`pip install 'tenuto[otel]'`).

An execution may outlive every process that works on it, so no span stays open. Each span is created when its end is
recorded, with the recorded times. Span ids are derived from names. So the process that ends an execution can write the
span that attempts in other processes have named as their parent, and a handler's calls can refer to the span of their
attempt before it exists. If an execution's headers contain a `traceparent`, the execution joins the caller's trace.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self

from tenuto.authoring.context import Attribute, SagaContext
from tenuto.authoring.program import Call, Handler
from tenuto.errors import NotSupported
from tenuto.kernel import events as e
from tenuto.kernel.address import Ref, attempt_span, fingerprint, step_id
from tenuto.kernel.definition import plain_name
from tenuto.kernel.evolve import find_step
from tenuto.kernel.state import Execution
from tenuto.views.reading import Reading

try:
    from opentelemetry import context as contexts
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context
    from opentelemetry.trace.status import Status, StatusCode
except ImportError as error:
    raise NotSupported("OpenTelemetry is not installed", hint="pip install 'tenuto[otel]'") from error

_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_MS: Final = 1_000_000  # nanoseconds
_MAX_OPEN: Final = 10_000  # attempts whose attributes are held until they end


class Tracing:
    """An `Observer` that creates spans and passes them to a processor of the OpenTelemetry SDK.

    `sample` is the fraction of new traces that is kept. A caller's trace is kept if the caller samples it.
    """

    hears_starts = False  # a span is created at its end

    def __init__(self, processor: SpanProcessor, *, sample: float = 1.0, service: str = "tenuto") -> None:
        self._ids = _Ids()
        self._attributes: dict[int, dict[str, Attribute]] = {}  # of running attempts, by span id
        resource = Resource.create({"service.name": service})
        sampler = TraceIdRatioBased(sample)
        self._bound = sampler.bound
        self._provider = TracerProvider(sampler=ParentBased(sampler), resource=resource, id_generator=self._ids)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("tenuto")

    @classmethod
    def otlp(cls, *, sample: float = 1.0, service: str = "tenuto") -> Self:
        """Exports spans by OTLP over HTTP, configured by the standard `OTEL_EXPORTER_OTLP_*` variables."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return cls(BatchSpanProcessor(OTLPSpanExporter()), sample=sample, service=service)

    def close(self) -> None:
        self._provider.shutdown()

    # -- Observer
    # --------------------------------------------------------------------------------------------------------

    def started(self, reading: Reading, ref: Ref) -> None:
        """Ignored, because `hears_starts` is false."""

    def decided(self, reading: Reading, entries: Sequence[e.Entry]) -> None:
        for entry in entries:
            match entry.event:
                case e.AttemptSucceeded() | e.ProbeAnswered() as event:
                    self._attempt(reading, entry.at, event, None)
                case e.AttemptFailed() | e.AttemptTimedOut() as event:
                    self._attempt(reading, entry.at, event, event.failure)
                case e.ExecutionFinished() as finished:
                    self._execution(reading, entry.at, finished)
                case _:
                    pass

    def _attempt(
        self,
        reading: Reading,
        at: int,
        event: e.AttemptSucceeded | e.AttemptFailed | e.AttemptTimedOut | e.ProbeAnswered,
        failure: e.Failure | None,
    ) -> None:
        state = reading.state
        headers = reading.started.headers
        id = step_id(event.path)
        self._ids.span_id = attempt_span(state.id, event.path, event.phase, event.number)
        attributes = {
            **_about(reading),
            "saga.step": id,
            "retry.attempt": event.number,
            "dep.name": _dependency(state, event.path),
            "tenuto.path": event.path,
            "tenuto.phase": event.phase,
            "tenuto.worker": event.worker,
            **self._attributes.pop(self._ids.span_id, {}),
        }
        trace_id, flags = self._trace(headers, state.id)
        parent = _in_context(SpanContext(trace_id, execution_span(state.id, state.run), True, flags))
        self._make(f"{plain_name(reading.program.name)}/{id}", parent, event.started_at or at, at, attributes, failure)

    def _execution(self, reading: Reading, at: int, event: e.ExecutionFinished) -> None:
        state = reading.state
        self._ids.trace_id, _ = self._trace(reading.started.headers, state.id)
        self._ids.span_id = execution_span(state.id, state.run)
        incoming = _incoming(reading.started.headers)
        parent = contexts.Context() if incoming is None else _in_context(incoming)
        attributes = {**_about(reading), "tenuto.status": event.status, "tenuto.run": state.run}
        self._make(plain_name(reading.program.name), parent, _began(reading), at, attributes, event.error)

    def _make(
        self,
        name: str,
        parent: contexts.Context,
        start_ms: int,
        end_ms: int,
        attributes: Mapping[str, Attribute],
        failure: e.Failure | None,
    ) -> None:
        span = self._tracer.start_span(name, parent, start_time=start_ms * _MS, attributes=attributes)
        if failure is not None:
            span.set_attribute("error.type", failure.error_class)
            span.set_status(Status(StatusCode.ERROR, failure.code))
        span.end(end_ms * _MS)

    def _trace(self, headers: Mapping[str, str], execution: str) -> tuple[int, TraceFlags]:
        """Returns the trace of an execution, the caller's or a new one, and whether it is sampled."""
        incoming = _incoming(headers)
        if incoming is not None:
            return incoming.trace_id, incoming.trace_flags
        trace_id = int(fingerprint("trace", execution)[:32], 16) or 1
        kept = trace_id & TraceIdRatioBased.TRACE_ID_LIMIT < self._bound
        return trace_id, TraceFlags(TraceFlags.SAMPLED if kept else TraceFlags.DEFAULT)

    # -- Handlers ------------------------------------------------------------------------------------------------------

    def around(self, state: Execution, ref: Ref, handler: Handler) -> Handler:
        """Wraps a handler so that its attempt's span is current for its calls and its own spans."""
        span_id = attempt_span(state.id, ref.path, ref.phase, ref.number)

        def enter(call: Call) -> object:
            trace_id, flags = self._trace(call.headers, state.id)
            context = call.context
            assert isinstance(context, SagaContext)
            given = {name: value for name, value in context.headers.items() if name.lower() != "traceparent"}
            self._remember(span_id, context.attributes)
            context.headers = {**given, "traceparent": f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"}
            return contexts.attach(_in_context(SpanContext(trace_id, span_id, True, flags)))

        async def in_task(call: Call) -> Any:
            token: Any = enter(call)
            try:
                called: Any = handler.invoke(call)
                return await called
            finally:
                contexts.detach(token)

        def in_thread(call: Call) -> object:
            token: Any = enter(call)
            try:
                return handler.invoke(call)
            finally:
                contexts.detach(token)

        invoke: Callable[[Call], Awaitable[Any] | object] = in_task if handler.is_async else in_thread
        return replace(handler, invoke=invoke)

    def _remember(self, span_id: int, attributes: dict[str, Attribute]) -> None:
        """Stores the attributes that a handler sets until its span is created.

        If another process ends the attempt, they are lost.
        """
        self._attributes[span_id] = attributes
        if len(self._attributes) > _MAX_OPEN:
            del self._attributes[next(iter(self._attributes))]


class _Ids(IdGenerator):
    """Returns ids that are set before each span is created."""

    trace_id = 1
    span_id = 1

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


# -- Names -------------------------------------------------------------------------------------------------------------


def execution_span(execution: str, run: int) -> int:
    return int(fingerprint("span", execution, str(run))[:16], 16) or 1


def _incoming(headers: Mapping[str, str]) -> SpanContext | None:
    given = next((value for name, value in headers.items() if name.lower() == "traceparent"), "")
    found = _TRACEPARENT.fullmatch(given.strip())
    if found is None:
        return None
    context = SpanContext(int(found[1], 16), int(found[2], 16), True, TraceFlags(int(found[3], 16)))
    return context if context.is_valid else None


def _in_context(span: SpanContext) -> contexts.Context:
    return set_span_in_context(NonRecordingSpan(span))


# -- Attributes --------------------------------------------------------------------------------------------------------


def _about(reading: Reading) -> dict[str, str | int]:
    state, target = reading.state, reading.started.target
    about: dict[str, str | int] = {
        "tenuto.execution_id": state.id,
        "tenuto.definition": plain_name(reading.program.name),
        "tenuto.version": reading.program.version,
        "tenuto.tenant": state.tenant,
        "tenuto.correlation_id": state.correlation_id,
    }
    if target is not None:
        about[f"{target[0].lower()}.id"] = target[1]  # for an order: `order.id`
    return about


def _dependency(state: Execution, path: str) -> str:
    """Returns the dependency of an attempt: the queue whose workers run it, or its handler."""
    found = find_step(state, path)
    if found is None:
        return ""
    return found.node.queue or found.node.step.handler or ""


def _began(reading: Reading) -> int:
    run = reading.state.run
    opened = (entry for entry in reversed(reading.history) if isinstance(entry.event, e.RunOpened))
    return next((entry.at for entry in opened if run > 1), reading.history[0].at)
