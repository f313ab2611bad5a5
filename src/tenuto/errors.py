"""Every error that Tenuto raises, and those that handlers raise to say what kind of failure it was."""

# TenutoError
# ├── StepError                       raised by handlers; `error_class` decides what follows
# │   ├── TransientError              TRANSIENT
# │   ├── RetryableError              RETRYABLE
# │   ├── NonRetryableError           NON_RETRYABLE
# │   ├── RateLimitedError            RATE_LIMITED
# │   ├── DependencyFailedError       DEPENDENCY_FAILED
# │   ├── CompensationRequiredError   COMPENSATION_REQUIRED
# │   └── IndeterminateError          INDETERMINATE
# ├── ValidationError                 `problems` says what, and where
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
# ├── StorageError                    the database cannot be used as it is; nothing was lost
# ├── ServiceError                    of a client: the service cannot be reached, or its answer is not understood
# ├── NotSupported
# └── EngineClosed
#
# A docstring's first paragraph is the default message, so it is written for whoever meets the error. A `code` never
# changes once released: HTTP problems, logs and callers rely on it.

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self


class _Timedelta(Protocol):
    # Stands for datetime.timedelta: the kernel imports this module, and nothing below the kernel knows a calendar.
    def total_seconds(self) -> float: ...


class TenutoError(Exception):
    """Something went wrong in Tenuto."""

    code: str = "tenuto_error"

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

    Raise one of the subclasses from a handler. `retry_after` is how long to wait at least (seconds, a string such as
    "2s", or a timedelta); `partial_effect=True` says that the attempt may have left something to undo.
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
    """A passing fault: the same call is likely to succeed soon."""

    code = "transient"
    error_class = "TRANSIENT"


class RetryableError(StepError):
    """The call failed, and trying it again is reasonable."""

    code = "retryable"
    error_class = "RETRYABLE"


class NonRetryableError(StepError):
    """The call was refused for good: trying it again cannot help."""

    code = "non_retryable"
    error_class = "NON_RETRYABLE"


class RateLimitedError(StepError):
    """The other side asked for fewer calls."""

    code = "rate_limited"
    error_class = "RATE_LIMITED"


class DependencyFailedError(StepError):
    """A service that the call needs is down."""

    code = "dependency_failed"
    error_class = "DEPENDENCY_FAILED"


class CompensationRequiredError(StepError):
    """The call failed in a way that a person must judge before anything is undone."""

    code = "compensation_required"
    error_class = "COMPENSATION_REQUIRED"


class IndeterminateError(StepError):
    """Nobody knows whether the call took effect: find out before deciding."""

    code = "indeterminate"
    error_class = "INDETERMINATE"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and where: `path` points into the definition or the input."""

    path: str
    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def own_words(told: str) -> str:
    """What a check of ours says, without what the library that asked it puts before."""
    return told.removeprefix("Value error, ")


class ValidationError(TenutoError):
    """What was given is not valid."""

    code = "invalid"

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
        """The error for a single problem."""
        return cls(problems=[Problem(path, code, message)])


class DefinitionError(ValidationError):
    """The definition is not valid."""

    code = "definition_invalid"


class InvalidInput(ValidationError):
    """What was given does not fit: the input of an execution, or an option."""

    code = "input_invalid"


class BadCursor(InvalidInput):
    """The cursor is not one that this list gave for the same filters and order."""

    code = "bad_cursor"


class SettingsError(ValidationError):
    """The settings are not valid."""

    code = "settings_invalid"


class ExpressionError(TenutoError):
    """The expression cannot be compiled or evaluated."""

    code = "expression_error"


class PayloadError(TenutoError):
    """The value cannot be stored: it does not serialise, or it is too large."""

    code = "payload_invalid"
    path: tuple[str | int, ...] = ()  # the way into the value to what does not fit, as far as it is known


class UnknownHandler(TenutoError):
    """No handler is registered under that name."""

    code = "handler_unknown"


class NotAuthenticated(TenutoError):
    """The request has no credential that is accepted here."""

    code = "unauthenticated"


class NotPermitted(TenutoError):
    """The credential does not permit this."""

    code = "forbidden"


class NotFound(TenutoError):
    """There is no such thing, or it belongs to another tenant."""

    code = "not_found"


class InvalidTransition(TenutoError):
    """The command is not allowed in the present state, and changed nothing."""

    code = "invalid_transition"


class DefinitionConflict(TenutoError):
    """The definition cannot be changed in its present state."""

    code = "definition_conflict"


class IdempotencyConflict(TenutoError):
    """The idempotency key was used before with another request."""

    code = "idempotency_conflict"


class RequestInFlight(TenutoError):
    """A request with this idempotency key is under way; its answer can be had in a moment."""

    code = "request_in_flight"


class ConcurrencyConflict(TenutoError):
    """Another execution holds the concurrency key."""

    code = "concurrency_conflict"


class TenantLimit(TenutoError):
    """The tenant has as many executions in flight as it may.

    Nothing was started. `retry_after` is how many seconds to wait before asking again.
    """

    code = "tenant_limit"
    retry_after: float = 1.0


class RateExceeded(TenutoError):
    """There were too many requests in too short a time."""

    code = "rate_exceeded"

    def __init__(
        self, message: str = "", *, retry_after: float = 1.0, code: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.retry_after = retry_after


class ExecutionFailed(TenutoError):
    """The execution did not succeed.

    Raised where a result is demanded. `status` is where the execution stands, `error_class` the class of the failure
    if it failed, and `blocked` what it waits for if it waits for a person.
    """

    code = "execution_failed"

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
    """The execution had not settled when the time to wait for it was over; it goes on regardless."""

    code = "result_timeout"


class StorageError(TenutoError):
    """The database cannot be used."""

    code = "storage_error"


class ServiceError(TenutoError):
    """The service cannot be reached, or did not answer as it should.

    Raised by `Engine("https://…")`. `code` says which: `service_unreachable` (nothing was sent), `answer_lost` (the
    request may have been carried out), `service_failed` (the service said so itself), `service_unknown` (whatever
    answered, it is not a Tenuto service of this version).
    """

    code = "service_error"


class NotSupported(TenutoError):
    """This runtime cannot do that."""

    code = "not_supported"


class EngineClosed(TenutoError):
    """The engine is closed."""

    code = "engine_closed"


def _default_message(error: type[BaseException]) -> str:
    # The nearest docstring counts, so that a user's own subclass needs none. With none (python -OO), the name must do.
    doc = next((cls.__doc__ for cls in error.__mro__ if cls.__doc__ and issubclass(cls, TenutoError)), error.__name__)
    return " ".join(doc.split("\n\n", 1)[0].split())


def _rebuild(cls: type[TenutoError], args: tuple[object, ...], fields: dict[str, object]) -> TenutoError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(fields)
    return error
