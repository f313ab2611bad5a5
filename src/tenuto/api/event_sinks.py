"""`SagaEvents`, the event sinks of users, and the observer that calls them.

Each sink receives its events in the order in which they were recorded, plain and async methods alike. A sink's error is
logged and never reaches the execution. A slow sink falls behind and delays nothing else.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref, step_id
from tenuto.views.reading import Reading
from tenuto.views.results import SagaResult

logger = logging.getLogger("tenuto.events")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventContext:
    """The execution that an event is about."""

    execution_id: str
    saga: str
    version: int
    tenant: str
    correlation_id: str
    headers: Mapping[str, str]


class SagaEvents:
    """Receives events. Override plain or async methods, and pass an instance: `Engine(…, events=[MyEvents()])`.

    `step_id` is the step's id, or `notify#3` for a clone. `error` is the summary that is stored with the attempt.
    """

    def on_start(self, ctx: EventContext) -> Awaitable[None] | None:
        """An execution was started."""
        return None

    def on_step_started(self, ctx: EventContext, step_id: str, attempt: int) -> Awaitable[None] | None:
        """An attempt starts in this process."""
        return None

    def on_step_success(
        self, ctx: EventContext, step_id: str, result: Any, attempts: int, latency_ms: int
    ) -> Awaitable[None] | None:
        """A step completed: by its handler, a guard, a reconcile, or a person's decision."""
        return None

    def on_step_retrying(
        self, ctx: EventContext, step_id: str, error: str, error_class: str, attempt: int, retry_at: datetime | None
    ) -> Awaitable[None] | None:
        """An attempt failed, timed out or was lost with its worker, and a retry or a probe follows."""
        return None

    def on_step_failed(
        self, ctx: EventContext, step_id: str, error: str, error_class: str, attempts: int
    ) -> Awaitable[None] | None:
        """A step failed for good."""
        return None

    def on_step_skipped_idempotent(self, ctx: EventContext, step_id: str) -> Awaitable[None] | None:
        """A step was skipped: a step with the same `idempotency_key` completed in this run."""
        return None

    def on_compensated(self, ctx: EventContext, step_id: str, result: Any) -> Awaitable[None] | None:
        """A step was compensated."""
        return None

    def on_compensation_failed(self, ctx: EventContext, step_id: str, error: str) -> Awaitable[None] | None:
        """A compensation failed for good."""
        return None

    def on_circuit_open(self, ctx: EventContext, step_id: str, skipped: Sequence[str]) -> Awaitable[None] | None:
        """A critical compensation failed. The remaining compensations are left to a person."""
        return None

    def on_completed(self, ctx: EventContext, result: SagaResult[Any]) -> Awaitable[None] | None:
        """A run finished, successfully or not."""
        return None


class EventDispatcher:
    """The `Observer` that turns entries into calls of the sinks' methods."""

    hears_starts = True

    def __init__(self, sinks: Sequence[SagaEvents]) -> None:
        self._deliveries = [_Delivery(sink) for sink in sinks]

    def started(self, reading: Reading, ref: Ref) -> None:
        if ref.phase == "forward":
            self._deliver("on_step_started", _context(reading), _name(ref.path), ref.number)

    def decided(self, reading: Reading, entries: Sequence[e.Entry]) -> None:
        context = _context(reading)
        for entry in entries:
            self._dispatch(reading, context, entry)

    async def close(self, patience_s: float) -> None:
        """Waits up to `patience_s` seconds for pending deliveries."""
        await asyncio.gather(*(delivery.close(patience_s) for delivery in self._deliveries))

    def _deliver(self, method: str, *arguments: object) -> None:
        for delivery in self._deliveries:
            delivery.deliver(method, arguments)

    def _dispatch(self, reading: Reading, context: EventContext, entry: e.Entry) -> None:
        match entry.event:
            case e.ExecutionStarted():
                self._deliver("on_start", context)
            case e.AttemptSucceeded(phase="forward") as event:
                self._succeeded(reading, context, event.path, event.result, event.number, entry.at - event.started_at)
            case e.AttemptSucceeded(phase="compensate") as event:
                decoders = reading.program.decode_compensation
                self._deliver(
                    "on_compensated", context, _name(event.path), _decoded(decoders, event.path, event.result)
                )
            case e.ProbeAnswered(verdict="succeed") as event:
                self._succeeded(reading, context, event.path, event.result, event.number, entry.at - event.started_at)
            case e.WaitEnded() as event:
                self._succeeded(reading, context, event.path, event.payload, 1, 0)
            case e.ReviewResolved() as event:
                self._resolved(reading, context, event, entry.at)
            case e.AttemptFailed() | e.AttemptTimedOut() as event:
                self._failed(context, event)
            case e.AttemptLost(losses=losses):
                for loss in losses:
                    self._lost(context, loss)
            case e.StepExpired(path=path, failure=failure) | e.StepRefused(path=path, failure=failure):
                self._deliver("on_step_failed", context, _name(path), failure.summary, failure.error_class, 0)
            case e.NodesClosed(status="marked", paths=paths):
                for path in paths:
                    self._deliver("on_step_skipped_idempotent", context, _name(path))
            case e.CompensationStopped(reason="circuit_open", pending=pending):
                undo = reading.state.undo
                broken = next(iter(undo.failed), "") if undo is not None else ""
                self._deliver("on_circuit_open", context, _name(broken), [_name(path) for path in pending])
            case e.ExecutionFinished():
                self._deliver("on_completed", context, SagaResult[Any](reading))
            case _:
                pass

    def _succeeded(
        self, reading: Reading, context: EventContext, path: str, result: Raw, attempts: int, latency_ms: int
    ) -> None:
        value = _decoded(reading.program.decode_result, path, result)
        self._deliver("on_step_success", context, _name(path), value, attempts, latency_ms)

    def _resolved(self, reading: Reading, context: EventContext, event: e.ReviewResolved, at: int) -> None:
        """A person's decision settled a step. The id of a review contains the number of the event that opened it."""
        opened = reading.history[int(event.id.rpartition(".")[2]) - 1]
        assert isinstance(opened.event, e.ReviewOpened)
        path = opened.event.path
        if event.verdict == "succeed":
            self._succeeded(reading, context, path, event.result, opened.event.attempts or 1, at - opened.at)
        elif event.verdict in ("fail", "undo", "skip") and event.failure is not None:
            failure = event.failure
            self._deliver(
                "on_step_failed", context, _name(path), failure.summary, failure.error_class, opened.event.attempts
            )

    def _failed(self, context: EventContext, event: e.AttemptFailed | e.AttemptTimedOut) -> None:
        failure, name = event.failure, _name(event.path)
        if event.phase == "forward":
            self._forward_failed(context, name, failure, event.number, event.verdict, event.retry_at)
        elif event.phase == "compensate" and event.verdict != "retry":
            self._deliver("on_compensation_failed", context, name, failure.summary)

    def _lost(self, context: EventContext, loss: e.Loss) -> None:
        failure = e.Failure("TRANSIENT", "worker_lost", "the worker that ran this attempt is gone", loss.path)
        if loss.phase == "forward":
            self._forward_failed(context, _name(loss.path), failure, loss.number, loss.verdict, loss.retry_at)

    def _forward_failed(
        self,
        context: EventContext,
        name: str,
        failure: e.Failure,
        number: int,
        verdict: e.Verdict,
        retry_at: int | None,
    ) -> None:
        if verdict in ("retry", "probe"):
            due = None if retry_at is None else datetime.fromtimestamp(retry_at / 1_000, UTC)
            self._deliver("on_step_retrying", context, name, failure.summary, failure.error_class, number, due)
        elif verdict != "review":  # a person decides whether it failed
            self._deliver("on_step_failed", context, name, failure.summary, failure.error_class, number)


class _Delivery:
    """Calls the methods of one sink in the order of the events.

    While nothing waits, a plain method is called at once. Behind an async call that has not ended, everything waits.
    """

    def __init__(self, sink: SagaEvents) -> None:
        self._sink = sink
        self._waiting: asyncio.Queue[tuple[str, Callable[[], object]]] = asyncio.Queue()
        self._undelivered = 0
        self._task: asyncio.Task[None] | None = None

    def deliver(self, method: str, arguments: tuple[object, ...]) -> None:
        function = getattr(self._sink, method, None)
        if function is None:
            return
        call = partial(function, *arguments)
        if not self._undelivered and not inspect.iscoroutinefunction(function):
            try:
                answer = call()
            except Exception:
                _report(method)
                return
            if not inspect.isawaitable(answer):
                return
            future = asyncio.ensure_future(answer)
            call = partial(_same, future)
        self._undelivered += 1
        self._waiting.put_nowait((method, call))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            method, call = await self._waiting.get()
            try:
                answer = call()
                if inspect.isawaitable(answer):
                    await answer
            except Exception:
                _report(method)
            finally:
                self._undelivered -= 1
                self._waiting.task_done()

    async def close(self, patience_s: float) -> None:
        if self._task is None:
            return
        rest = asyncio.ensure_future(self._waiting.join())
        await asyncio.wait([rest], timeout=patience_s)
        rest.cancel()
        self._task.cancel()
        await asyncio.wait([self._task], timeout=patience_s)


def _same(answer: object) -> object:
    return answer


def _report(method: str) -> None:
    logger.exception("An event sink failed.", extra={"action": "event_sink_failed", "sink_method": method})


def _context(reading: Reading) -> EventContext:
    state, started = reading.state, reading.started
    return EventContext(
        execution_id=state.id,
        saga=started.definition,
        version=started.version,
        tenant=state.tenant,
        correlation_id=state.correlation_id,
        headers=started.headers,
    )


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _decoded(decoders: Mapping[str, Any], path: str, raw: Raw) -> object:
    decode = decoders.get(step_id(path))
    try:
        return msgspec.json.decode(raw) if decode is None else decode(raw)
    except Exception:
        logger.exception("A result could not be decoded for event sinks.", extra={"action": "event_result_undecodable"})
        return None
