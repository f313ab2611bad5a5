"""Logs the events of executions: one JSON object per line, with a stable `action`.

Lines contain executions, steps, keys and classes. They contain no payloads, and error texts only in their recorded,
redacted form. Successful steps are logged at DEBUG; everything that may need attention is logged above it.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any, Final

from tenuto.kernel import events as e
from tenuto.kernel.address import Phase, Ref, idempotency_key, step_id
from tenuto.kernel.definition import plain_name
from tenuto.kernel.evolve import find_step
from tenuto.values.redaction import bounded, redact, redact_value, text_of
from tenuto.values.terminal import escape_lines
from tenuto.views.reading import Reading

MOST_LOGGED: Final = 16 * 1024  # bytes per text
logger = logging.getLogger("tenuto.executions")


class Logging:
    """The `Observer` that writes log lines. The log level for successful steps is read once, on creation."""

    def __init__(self) -> None:
        self.hears_starts = logger.isEnabledFor(logging.DEBUG)
        left_out = () if self.hears_starts else (e.AttemptSucceeded,)
        self._rules = {kind: rule for kind, rule in _RULES.items() if kind not in left_out}

    def started(self, reading: Reading, ref: Ref) -> None:
        _tell(logging.DEBUG, "attempt_started", reading, **_attempt(reading, ref.path, ref.phase, ref.number))

    def decided(self, reading: Reading, entries: Sequence[e.Entry]) -> None:
        for entry in entries:
            rule = self._rules.get(type(entry.event))
            if rule is not None:
                rule(reading, entry)


def _tell(level: int, action: str, reading: Reading, **fields: object) -> None:
    if not logger.isEnabledFor(level):
        return
    state = reading.state
    about = {
        "action": action,
        "execution_id": state.id,
        "definition": plain_name(reading.program.name),
        "version": reading.program.version,
        "tenant": state.tenant,
        "correlation_id": state.correlation_id,
    }
    logger.log(level, action.replace("_", " "), extra={**about, **fields})


def _attempt(reading: Reading, path: str, phase: Phase, number: int) -> dict[str, object]:
    state = reading.state
    step = find_step(state, path)
    generation = step.generation if step is not None else 1
    return {
        "step_id": step_id(path),
        "path": path,
        "phase": phase,
        "attempt": number,
        "idempotency_key": idempotency_key(state.tenant, state.id, path, phase, generation),
    }


def _failure(failure: e.Failure) -> dict[str, object]:
    return {"error_class": failure.error_class, "error_code": failure.code, "error": failure.summary}


def _started(reading: Reading, entry: e.Entry) -> None:
    _tell(logging.INFO, "execution_started", reading)


def _finished(reading: Reading, entry: e.Entry) -> None:
    event = entry.event
    assert isinstance(event, e.ExecutionFinished)
    fields: dict[str, object] = {"status": event.status, "duration_ms": entry.at - reading.history[0].at}
    if event.error is not None:
        fields |= _failure(event.error)
    _tell(logging.ERROR if event.status == "failed" else logging.INFO, "execution_finished", reading, **fields)


def _succeeded(reading: Reading, entry: e.Entry) -> None:
    event = entry.event
    assert isinstance(event, e.AttemptSucceeded)
    about = _attempt(reading, event.path, event.phase, event.number)
    _tell(logging.DEBUG, "attempt_succeeded", reading, **about, duration_ms=entry.at - event.started_at)


def _failed(reading: Reading, entry: e.Entry) -> None:
    event = entry.event
    assert isinstance(event, e.AttemptFailed | e.AttemptTimedOut | e.DispatchFailed)
    action = "attempt_timed_out" if isinstance(event, e.AttemptTimedOut) else "attempt_failed"
    about = _attempt(reading, event.path, event.phase, event.number) | _failure(event.failure)
    if not isinstance(event, e.AttemptTimedOut) and event.trace:
        about["trace"] = event.trace
    _tell(logging.WARNING, action, reading, **about, verdict=event.verdict, retry_at=event.retry_at)


def _lost(reading: Reading, entry: e.Entry) -> None:
    event = entry.event
    assert isinstance(event, e.AttemptLost)
    for loss in event.losses:
        about = _attempt(reading, loss.path, loss.phase, loss.number)
        _tell(logging.WARNING, "attempt_lost", reading, **about, verdict=loss.verdict)


def _ended(reading: Reading, entry: e.Entry) -> None:
    event = entry.event
    assert isinstance(event, e.StepExpired | e.StepRefused)
    action = "step_expired" if isinstance(event, e.StepExpired) else "step_refused"
    _tell(logging.ERROR, action, reading, step_id=step_id(event.path), path=event.path, **_failure(event.failure))


def _asked(reading: Reading, entry: e.Entry) -> None:
    event = entry.event
    assert isinstance(event, e.ReviewOpened)
    level = logging.INFO if event.kind == "approval" else logging.WARNING
    _tell(level, "review_opened", reading, review_id=event.id, kind=event.kind, step_id=step_id(event.path))


def _answered(reading: Reading, entry: e.Entry) -> None:
    event = entry.event
    assert isinstance(event, e.ReviewResolved)
    told = {"review_id": event.id, "resolution": event.resolution, "actor": entry.actor}
    _tell(logging.INFO, "review_resolved", reading, **told)


def _plainly(action: str, level: int) -> Callable[[Reading, e.Entry], None]:
    def tell(reading: Reading, entry: e.Entry) -> None:
        _tell(level, action, reading, actor=entry.actor)

    return tell


_RULES: Final[dict[type, Callable[[Reading, e.Entry], None]]] = {
    e.ExecutionStarted: _started,
    e.ExecutionFinished: _finished,
    e.AttemptSucceeded: _succeeded,
    e.AttemptFailed: _failed,
    e.AttemptTimedOut: _failed,
    e.DispatchFailed: _failed,
    e.AttemptLost: _lost,
    e.StepExpired: _ended,
    e.StepRefused: _ended,
    e.ReviewOpened: _asked,
    e.ReviewResolved: _answered,
    e.RunOpened: _plainly("execution_retried", logging.INFO),
    e.Paused: _plainly("execution_paused", logging.INFO),
    e.Resumed: _plainly("execution_resumed", logging.INFO),
    e.CancelRequested: _plainly("execution_cancel_requested", logging.INFO),
    e.CompensationStarted: _plainly("compensation_started", logging.WARNING),
    e.CompensationStopped: _plainly("compensation_stopped", logging.ERROR),
}


# -- Form --------------------------------------------------------------------------------------------------------------


def configure(level: str = "INFO", form: str = "json", stream: IO[str] | None = None) -> logging.Handler:
    """Configures the log of this process on `stream` (default: stderr), including the lines of other libraries.

    `form` is `json`, `text`, or `auto`: text on a terminal. Secrets are masked in all lines.
    """
    import structlog

    stream = stream or sys.stderr
    if form == "auto":
        form = "text" if stream.isatty() else "json"
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.ExtraAdder(),
        _without_colours,
    ]
    renderers: list[Any] = (
        [structlog.processors.JSONRenderer(sort_keys=False)]
        if form == "json"
        else [_without_controls, structlog.dev.ConsoleRenderer()]
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("message"),
            _mask,
            *renderers,
        ],
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    return handler


# Tenuto creates these values. They contain no secrets, but would be masked as tokens.
_NAMES: Final = frozenset(
    {"idempotency_key", "execution_id", "correlation_id", "review_id", "request_id", "timestamp", "path", "audit_hash"}
)


def _without_colours(_: object, __: str, line: Any) -> Any:
    """Removes the duplicate that the server logs with colour codes for terminals."""
    line.pop("color_message", None)
    return line


def _without_controls(_: object, __: str, line: Any) -> Any:
    """Escapes control characters, which terminals interpret. JSON escapes them itself."""
    return {name: escape_lines(value) if isinstance(value, str) else value for name, value in line.items()}


def _mask(_: object, __: str, line: Any) -> Any:
    return {name: value if name in _NAMES else redact_value(value, name, _masked) for name, value in line.items()}


def _masked(value: object) -> object:
    return value if isinstance(value, int | float | bool | None) else redact(bounded(text_of(value), MOST_LOGGED))
