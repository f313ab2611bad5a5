"""From what a handler gave or raised to the outcome that is reported."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Raw

from tenuto.authoring import outcome as answers
from tenuto.authoring.program import Handler
from tenuto.errors import ExpressionError, PayloadError, StepError
from tenuto.kernel import facts as f
from tenuto.kernel.address import Phase
from tenuto.kernel.definition import ERROR_CLASSES, JSON, ErrorClass, Scope, Step, node_from_document
from tenuto.kernel.events import NULL
from tenuto.kernel.retry import classify
from tenuto.runtime.bus.port import BusUnreachable
from tenuto.values.codec import encode
from tenuto.values.durations import milliseconds
from tenuto.values.redaction import bounded, redact, summary
from tenuto.values.schema import Schema

from .error_trace import error_trace


class Parked(msgspec.Struct, frozen=True):
    """No outcome, and no effect: a stored value does not decode with the code that is here, or there is no connection
    to the bus. The attempt is made later, as it is."""

    why: str
    reason: Literal["incompatible", "bus"] = "incompatible"


# -- Values ------------------------------------------------------------------------------------------------------------


def succeeded(
    handler: Handler,
    phase: Phase,
    value: object,
    schema: Schema | None = None,
    *,
    may_repeat: bool = True,
    classify: Sequence[Mapping[str, ErrorClass]] = (),
) -> f.Outcome:
    """What a handler's value means in its phase. `may_repeat` is `Role.may_repeat`.

    `classify` are the tables of the step and its definition, which may say that a wrong value is tried again.
    """
    is_probe = phase in ("guard", "reconcile")
    try:
        if is_probe:
            return _probed(handler, value, schema)
        if phase == "plan":
            return _planned(value)
        return f.Succeeded(result=_stored(handler, value, schema))
    except BaseException as error:  # serializing runs the value's own code, which may raise anything
        fits_no_declaration = isinstance(error, PayloadError) and error.code == INVALID_OUTPUT and not is_probe
        code = INVALID_OUTPUT if fits_no_declaration else INVALID_RESULT
        failure = unusable(_told(error), may_repeat=may_repeat, code=code, declared=_declared_class(error, classify))
        return failure if isinstance(error, PayloadError) else _traced(failure, error)


def answered(result: Raw, step: Step) -> f.Succeeded | f.Failed:
    """What a result that came from outside means for this step."""
    try:
        _check(result, None if step.output_schema is None else Schema(step.output_schema))
    except PayloadError as error:
        return unusable(error.message, may_repeat=step.safety == "SAFE_TO_RETRY", code=INVALID_OUTPUT)
    return f.Succeeded(result=result)


INVALID_RESULT: Final = "invalid_result"
INVALID_OUTPUT: Final = "invalid_output"


_PAYLOAD_ERROR: Final = (f"{PayloadError.__module__}.{PayloadError.__qualname__}", PayloadError.__name__)


def _declared_class(error: BaseException, tables: Sequence[Mapping[str, ErrorClass]]) -> ErrorClass | None:
    """Returns the class that `classify` gives to a value that cannot be used, by the name `PayloadError`."""
    if not isinstance(error, PayloadError):
        return None
    return next((table[name] for table in tables for name in _PAYLOAD_ERROR if name in table), None)


def unusable(why: str, *, may_repeat: bool, code: str = INVALID_RESULT, declared: ErrorClass | None = None) -> f.Failed:
    """The outcome of an attempt that finished, but whose value cannot be used: the only place that decides this.

    The handler returned, so its effect was made. If the step may not be repeated, the outcome is unknown: the kernel
    asks its probe, or a person. If it may be repeated, a value that cannot be stored, or that is not of the type that
    the code declares, fails the step at once, because the next one would be the same: unless `classify` says otherwise
    (`declared`). A value that does not fit the step's `output_schema` (`invalid_output`) is tried again, because
    another try may do better. Either way there is something to undo.
    """
    error_class: ErrorClass = declared or ("RETRYABLE" if code == INVALID_OUTPUT else "NON_RETRYABLE")
    return f.Failed(
        error_class=error_class if may_repeat else "INDETERMINATE",
        code=code,
        summary=bounded(why),
        partial_effect=True,
    )


def _stored(handler: Handler, value: object, schema: Schema | None) -> Raw:
    raw = handler.encode(value)
    result = NULL if raw is None else raw
    _check(result, schema)
    return result


def _check(result: Raw, schema: Schema | None) -> None:
    if schema is not None and (problems := schema.problems_of(result, is_made=True)):
        raise PayloadError("\n".join(map(str, problems)), code=INVALID_OUTPUT)


def _told(error: BaseException) -> str:
    if isinstance(error, PayloadError):
        return error.message if error.code == INVALID_OUTPUT else summary(error.message)
    return f"the result cannot be written as JSON ({type(error).__name__})"


def _refused(code: str, why: str) -> f.Failed:
    return f.Failed(error_class="NON_RETRYABLE", code=code, summary=summary(why))


def _probed(handler: Handler, value: object, schema: Schema | None) -> f.Outcome:
    match value:
        case answers.Done(result):
            return f.Done(result=_stored(handler, result, schema))
        case answers.NotDone():
            return f.NotDone()
        case answers.Pending(retry_after=wait):
            return f.Pending(retry_after_ms=_wait_ms(wait))
        case answers.Unknown(reason):
            return f.Unknown(reason=summary(str(reason)))
    given = type(value).__name__
    return _refused("bad_answer", f"a probe answers Done, NotDone, Pending or Unknown, and this one gave {given}")


LONGEST_WAIT_MS = 10 * 365 * 24 * 3_600_000  # what is asked beyond that is no time that a database could hold


def _wait_ms(wait: object) -> int | None:
    if wait is None:
        return None
    try:
        return min(milliseconds(wait), LONGEST_WAIT_MS)  # type: ignore[arg-type]  # a handler may give anything
    except OverflowError:
        return LONGEST_WAIT_MS


def _planned(value: object) -> f.Outcome:
    if not isinstance(value, list | tuple):
        return _refused(
            "bad_plan", f"a planner gives a list of steps and scopes, and this one gave {type(value).__name__}"
        )
    children: list[JSON] = []
    for position, child in enumerate(value):
        document = msgspec.json.decode(msgspec.json.encode(child)) if isinstance(child, Step | Scope) else child
        try:
            node_from_document(document)
        except (msgspec.ValidationError, TypeError) as error:
            return f.Failed(error_class="RETRYABLE", code="bad_plan", summary=summary(f"child {position}: {error}"))
        encode(document, where=f"child {position}")
        children.append(document)
    return f.Planned(children=tuple(children))


# -- Exceptions --------------------------------------------------------------------------------------------------------

# When several things went wrong at once, the one that forbids the most decides.
_SEVERITY: tuple[ErrorClass, ...] = (
    "TRANSIENT",
    "RETRYABLE",
    "DEPENDENCY_FAILED",
    "RATE_LIMITED",
    "NON_RETRYABLE",
    "INDETERMINATE",
    "COMPENSATION_REQUIRED",
)


def failed(
    error: BaseException, step: Step, defaults: Mapping[str, ErrorClass], *, may_repeat: bool = True
) -> f.Failed | Parked:
    """What an exception means: its class by the errors of ours, else by the tables of the step and its definition."""
    try:
        found = _understood(error, step, defaults, may_repeat)
        return _traced(found, error) if isinstance(found, f.Failed) else found
    except BaseException:  # user code: anything it does may fail, and the attempt must still end
        error_class = classify(("builtins.Exception", "Exception"), step, dict(defaults))
        return f.Failed(error_class=error_class, code="unreadable_error", summary="an exception that cannot be read")


def _traced(failure: f.Failed, error: BaseException) -> f.Failed:
    trace = error_trace(error)
    return msgspec.structs.replace(failure, trace=trace) if trace else failure


def _understood(
    error: BaseException, step: Step, defaults: Mapping[str, ErrorClass], may_repeat: bool
) -> f.Failed | Parked:
    match error:
        case BaseExceptionGroup(exceptions=several):  # of a TaskGroup inside the handler
            found = [_understood(one, step, defaults, may_repeat) for one in several]
            failures = [one for one in found if isinstance(one, f.Failed)]
            return max(failures, key=lambda one: _SEVERITY.index(one.error_class)) if failures else found[0]
        case BusUnreachable():
            return Parked(summary(str(error)), "bus")
        case StepError():
            return _declared(error)
        case PayloadError(code="incompatible"):
            return Parked(summary(error.message))
        case PayloadError(code="invalid_result"):  # the call was answered, and the answer cannot be read
            return unusable(summary(error.message), may_repeat=may_repeat)
        case PayloadError() | ExpressionError():
            return _refused(error.code, error.message)
    return _classified(error, step, defaults)


def _declared(error: StepError) -> f.Failed:
    """One of our own classes. Its author chose the words, and may have put those of another into them."""
    error_class: ErrorClass = next((known for known in ERROR_CLASSES if known == error.error_class), "RETRYABLE")
    try:
        retry_after = _wait_ms(error.retry_after)
    except ValueError:
        retry_after = None
    return f.Failed(
        error_class=error_class,
        code=bounded(redact(bounded(str(error.code))), 128),
        summary=summary(str(error.message)),
        retry_after_ms=retry_after,
        partial_effect=bool(error.partial_effect),
    )


def _classified(error: BaseException, step: Step, defaults: Mapping[str, ErrorClass]) -> f.Failed:
    name = type(error).__name__
    told = summary(f"{name}: {_text(error)}".rstrip(": "))
    if not isinstance(error, Exception | asyncio.CancelledError):  # SystemExit and its like end a handler, not a worker
        unknown = step.safety == "NOT_SAFE_TO_RETRY"
        return f.Failed(error_class="INDETERMINATE" if unknown else "NON_RETRYABLE", code=name, summary=told)
    classes = type(error).__mro__
    ancestry = tuple(part for cls in classes for part in (f"{cls.__module__}.{cls.__qualname__}", cls.__name__))
    return f.Failed(error_class=classify(ancestry, step, dict(defaults)), code=name, summary=told)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # the __str__ of a user's exception may fail
        return ""
