"""The errors that Tenuto raises, and those that handlers raise to classify a failure."""

# TenutoError
# ├── StepError                       raised by handlers; `error_class` decides what follows
# │   ├── TransientError              TRANSIENT
# │   ├── RetryableError              RETRYABLE
# │   ├── NonRetryableError           NON_RETRYABLE
# │   ├── RateLimitedError            RATE_LIMITED
# │   ├── DependencyFailedError       DEPENDENCY_FAILED
# │   ├── CompensationRequiredError   COMPENSATION_REQUIRED
# │   └── IndeterminateError          INDETERMINATE
# ├── ValidationError                 `problems` lists what is wrong, and where
# │   ├── DefinitionError
# │   ├── InvalidInput
# │   │   └── BadCursor
# │   └── SettingsError
# ├── ExpressionError
# ├── PayloadError
# ├── UnknownHandler
# ├── NotAuthenticated
# ├── NotPermitted
# ├── NotFound
# ├── InvalidTransition
# ├── DefinitionConflict
# ├── IdempotencyConflict
# ├── RequestInFlight
# ├── ConcurrencyConflict
# ├── TenantLimit
# ├── RateExceeded
# ├── ExecutionFailed
# ├── ResultTimeout
# ├── StorageError                    the database cannot be used; nothing was lost
# ├── ServiceError                    client only: the service is unreachable, or its response is not valid
# ├── NotSupported
# └── EngineClosed
#
# A class holds everything about its error. The first paragraph of its docstring is the default message, the last one
# says what to do: the reference page is made from both. `http_status` is the status of the HTTP response, `exit_code`
# that of a command; a subclass inherits them. A `code` never changes once released: HTTP problems, logs and callers
# rely on it.

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self


class _Timedelta(Protocol):
    # Stands for datetime.timedelta: the kernel imports this module, and nothing below the kernel knows a calendar.
    def total_seconds(self) -> float: ...


class TenutoError(Exception):
    """Something went wrong in Tenuto.

    Catch it to handle any Tenuto error.
    """

    code: str = "tenuto_error"
    http_status: int = 500
    exit_code: int = 1

    def __init__(self, message: str = "", *, code: str | None = None, hint: str | None = None) -> None:
        self.message = message or _default_message(type(self))
        self.hint = hint
        if code is not None:
            self.code = code
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\nWhat to do: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions are rebuilt by calling the class with `args`, which would lose the keywords: restore the fields.
        return _rebuild, (type(self), self.args, self.__dict__)


class StepError(TenutoError):
    """The step failed.

    `retry_after` is the shortest time to wait: seconds, a string such as "2s", or a timedelta. `partial_effect=True`
    means that the attempt may have left something to undo.

    Raise one of its subclasses, which say what kind of failure it is.
    """

    code = "step_failed"
    error_class: ClassVar[str] = "RETRYABLE"

    def __init__(
        self,
        message: str = "",
        *,
        code: str | None = None,
        hint: str | None = None,
        retry_after: float | str | _Timedelta | None = None,
        partial_effect: bool = False,
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.retry_after = retry_after
        self.partial_effect = partial_effect


class TransientError(StepError):
    """A transient fault: the same call is likely to succeed soon.

    Raise it for a fault that passes by itself. The step is retried after 100 ms, doubling up to 30 s.
    """

    code = "transient"
    error_class = "TRANSIENT"


class RetryableError(StepError):
    """The call failed and may be retried.

    Raise it if you cannot tell more. An unknown exception counts as this one. Delays as for `TransientError`.
    """

    code = "retryable"
    error_class = "RETRYABLE"


class NonRetryableError(StepError):
    """The call was refused permanently: a retry cannot succeed.

    Raise it for a definite refusal without any effect. The step fails at once.
    """

    code = "non_retryable"
    error_class = "NON_RETRYABLE"


class RateLimitedError(StepError):
    """The called service limits the rate of calls.

    Raise it with `retry_after` if the other side named a time. Retried after 1 s, doubling up to 5 min.
    """

    code = "rate_limited"
    error_class = "RATE_LIMITED"


class DependencyFailedError(StepError):
    """A service that the call needs is down.

    Raise it if the service you call lacks a dependency. Retried after 5 s, doubling up to 5 min.
    """

    code = "dependency_failed"
    error_class = "DEPENDENCY_FAILED"


class CompensationRequiredError(StepError):
    """The call failed, and a person must decide before anything is undone.

    Raise it if a person must decide first. The execution waits for a review: `engine.reviews()`.
    """

    code = "compensation_required"
    error_class = "COMPENSATION_REQUIRED"


class IndeterminateError(StepError):
    """The outcome of the call is unknown: it may have taken effect.

    Raise it if you cannot tell. The call is repeated if that is safe, else reconciled or left to a review.
    """

    code = "indeterminate"
    error_class = "INDETERMINATE"


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault and its place: `path` points into the definition or the input."""

    path: str
    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def own_words(message: str) -> str:
    """Returns the message of a validator without the prefix that pydantic adds."""
    return message.removeprefix("Value error, ")


class ValidationError(TenutoError):
    """The input is not valid.

    Read `problems`: it lists every fault with its place.
    """

    code = "invalid"
    http_status = 422

    def __init__(
        self,
        message: str = "",
        *,
        problems: Iterable[Problem] = (),
        code: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.problems = tuple(problems)
        first_line = message or _default_message(type(self))
        super().__init__("\n".join([first_line, *(f"  {problem}" for problem in self.problems)]), code=code, hint=hint)

    @classmethod
    def at(cls, path: str, code: str, message: str) -> Self:
        """Creates the error for a single problem."""
        return cls(problems=[Problem(path, code, message)])


class DefinitionError(ValidationError):
    """The definition is not valid.

    Fix the saga; nothing was registered. If a stored plan changed, give it a new `version`.
    """

    code = "definition_invalid"


class InvalidInput(ValidationError):
    """The input of an execution, or an option, is not valid.

    Fix the named values; nothing was started or changed.
    """

    code = "input_invalid"


class BadCursor(InvalidInput):
    """The cursor was not issued by this list for the same filters and order.

    Pass `next_cursor` of the previous page with the same filters and order, or start without a cursor.
    """

    code = "bad_cursor"
    http_status = 400


class SettingsError(ValidationError):
    """The settings are not valid.

    Fix the variable or the line of `tenuto.toml` that the message names; nothing was started.
    """

    code = "settings_invalid"


class ExpressionError(TenutoError):
    """The expression cannot be compiled or evaluated.

    Fix the expression.
    """

    code = "expression_error"
    http_status = 422


class PayloadError(TenutoError):
    """The value cannot be stored: it does not serialise, or it is too large.

    Pass and return data: JSON, dataclasses, models, dates, decimals, UUIDs. Store large values elsewhere. Keys of
    one dict must differ as text: `1` and `'1'` are the same JSON key.
    """

    code = "payload_invalid"
    http_status = 422
    path: tuple[str | int, ...] = ()  # the path into the value to the part that does not fit, as far as it is known


class UnknownHandler(TenutoError):
    """No handler is registered under that name.

    Register the function under that name: `@handler(name)` and `register`, or `engine.handler`.
    """

    code = "handler_unknown"


class NotAuthenticated(TenutoError):
    """The request has no valid credential.

    Send `Authorization: Bearer` with an API key that is neither expired nor revoked, or with a valid JWT.
    """

    code = "unauthenticated"
    http_status = 401
    exit_code = 8


class NotPermitted(TenutoError):
    """The credential does not permit this operation.

    Use a credential with the role that the message names.
    """

    code = "forbidden"
    http_status = 403
    exit_code = 8


class NotFound(TenutoError):
    """The object does not exist, or it belongs to another tenant.

    Check the id or the name, and the tenant of your credential.
    """

    code = "not_found"
    http_status = 404
    exit_code = 3


class InvalidTransition(TenutoError):
    """The command is not allowed in the current state. Nothing was changed.

    Read `handle.status()`: it has the current state and the commands allowed in it.
    """

    code = "invalid_transition"
    http_status = 409
    exit_code = 4


class DefinitionConflict(TenutoError):
    """The definition cannot be changed in its current state.

    Give the definition a new version: a published version never changes.
    """

    code = "definition_conflict"
    http_status = 409
    exit_code = 4


class IdempotencyConflict(TenutoError):
    """The idempotency key was already used for a different request.

    `execution_id` is the execution that the key started, if it started one. The message says what differs.

    Use a new key for a new request, and the same key only to repeat a request.
    """

    code = "idempotency_conflict"
    http_status = 422
    exit_code = 4

    def __init__(
        self, message: str = "", *, execution_id: str = "", code: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.execution_id = execution_id


class RequestInFlight(TenutoError):
    """A request with this idempotency key is in progress.

    Send the same request again after `Retry-After`.
    """

    code = "request_in_flight"
    http_status = 409
    exit_code = 6


class ConcurrencyConflict(TenutoError):
    """Another execution holds the concurrency key.

    Try again later, or queue the execution: `on_conflict="queue"`.
    """

    code = "concurrency_conflict"
    http_status = 409
    exit_code = 4


class InsufficientCredits(TenutoError):
    """The organisation has fewer credits available than the command needs.

    Nothing was written. `needed` and `available` are amounts as decimal text.

    Top up the account, or wait until runs in progress have ended.
    """

    code = "insufficient_credits"
    http_status = 402
    exit_code = 6

    def __init__(
        self,
        message: str = "",
        *,
        code: str | None = None,
        hint: str | None = None,
        needed: str = "0",
        available: str = "0",
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.needed = needed
        self.available = available


class AttemptsSpent(TenutoError):
    """The run has had all of its attempts.

    Nothing was changed. Create a new run.
    """

    code = "attempts_spent"
    http_status = 409
    exit_code = 6


class TenantLimit(TenutoError):
    """The tenant has reached its limit of executions in flight.

    Nothing was started. `retry_after` is the number of seconds to wait before the next try.

    Try again later, or have the limit raised.
    """

    code = "tenant_limit"
    http_status = 429
    exit_code = 6
    retry_after: float = 1.0


class RateExceeded(TenutoError):
    """Too many requests.

    Wait for `retry_after` seconds, then send fewer requests.
    """

    code = "rate_exceeded"
    http_status = 429
    exit_code = 6

    def __init__(
        self, message: str = "", *, retry_after: float = 1.0, code: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.retry_after = retry_after


class ExecutionFailed(TenutoError):
    """The execution did not succeed.

    Raised when a result is demanded. `status` is the status of the execution, `error_class` the class of the failure,
    and `blocked` says what the execution waits for.

    Read `status`, `error_class` and `blocked`; `result.report()` shows every step.
    """

    code = "execution_failed"
    http_status = 409

    def __init__(
        self,
        message: str = "",
        *,
        execution_id: str = "",
        status: str = "",
        error_class: str | None = None,
        blocked: Mapping[str, object] | None = None,
        code: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.execution_id = execution_id
        self.status = status
        self.error_class = error_class
        self.blocked = blocked


class ResultTimeout(TenutoError):
    """The execution did not settle within the timeout. It continues.

    Ask again: the execution or command continues.
    """

    code = "result_timeout"
    http_status = 504
    exit_code = 6


class StorageError(TenutoError):
    """The database cannot be used.

    Follow the hint: the database is unreachable, full, locked, or has another schema.
    """

    code = "storage_error"
    http_status = 503
    exit_code = 7


class ServiceError(TenutoError):
    """The service is unreachable, or its response is not valid.

    Raised by `Engine("https://…")`. `code` says which: `service_unreachable` (nothing was sent), `answer_lost` (the
    request may have been carried out), `service_failed` (the service reported a failure), `service_unknown` (the server
    is not a Tenuto service of this version).

    Follow the hint: the service is unreachable, its response was lost, or another server answers.
    """

    code = "service_error"
    exit_code = 7


class NotSupported(TenutoError):
    """This runtime does not support the operation.

    Follow the hint: use another runtime or a later version.
    """

    code = "not_supported"
    http_status = 501


class EngineClosed(TenutoError):
    """The engine is closed.

    Use the engine inside `async with Engine(…) as engine:`.
    """

    code = "engine_closed"
    http_status = 503


def _default_message(error: type[BaseException]) -> str:
    # The nearest docstring counts, so that a user's own subclass needs none. With none (python -OO), the name must do.
    doc = next((cls.__doc__ for cls in error.__mro__ if cls.__doc__ and issubclass(cls, TenutoError)), error.__name__)
    return " ".join(doc.split("\n\n", 1)[0].split())


def _rebuild(cls: type[TenutoError], args: tuple[object, ...], fields: dict[str, object]) -> TenutoError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(fields)
    return error
