"""Decodes RFC 9457 problems to the errors that the service raised, with the same class and code."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tenuto import errors
from tenuto.errors import Problem, ServiceError, TenutoError, ValidationError

# Errors with a code of their own are found by their HTTP status.
_BY_STATUS: Final[dict[int, type[TenutoError]]] = {
    400: errors.InvalidInput,
    401: errors.NotAuthenticated,
    403: errors.NotPermitted,
    404: errors.NotFound,
    409: errors.InvalidTransition,
    413: errors.PayloadError,
    415: errors.InvalidInput,
    422: errors.InvalidInput,
    429: errors.RateExceeded,
    501: errors.NotSupported,
    503: errors.StorageError,
    504: errors.ResultTimeout,
}
_BY_CODE: Final = {
    kind.code: kind
    for kind in (
        errors.DefinitionError,
        errors.InvalidInput,
        errors.BadCursor,
        errors.ExpressionError,
        errors.PayloadError,
        errors.UnknownHandler,
        errors.DefinitionConflict,
        errors.IdempotencyConflict,
        errors.RequestInFlight,
        errors.ConcurrencyConflict,
        errors.TenantLimit,
        errors.ExecutionFailed,
        errors.EngineClosed,
    )
}
_CODES: Final = {
    "definition_changed": errors.DefinitionError,
    "payload_too_large": errors.PayloadError,
    "invalid_output": errors.PayloadError,
}


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> TenutoError:
    """Returns the error of a response, as an engine on the database would have raised it."""
    problem = _read(headers, body)
    if problem is None:
        return _foreign_error(status)
    code = str(problem["code"])
    if status >= 500 and status not in _BY_STATUS:
        return ServiceError(
            _message(problem), code="service_failed", hint="try again; the service has logged the cause"
        )
    found = _CODES.get(code) or _BY_CODE.get(code) or _by_status(status, code)
    error = _make(found, problem, code)
    after = retry_after(headers)
    if isinstance(error, errors.RateExceeded | errors.TenantLimit) and after is not None:
        error.retry_after = after
    return error


def _by_status(status: int, code: str) -> type[TenutoError]:
    if status == 409 and code.startswith("definition_"):
        return errors.DefinitionConflict
    return _BY_STATUS.get(status, ServiceError)


def _make(kind: type[TenutoError], problem: Mapping[str, Any], code: str) -> TenutoError:
    hint = problem.get("hint")
    if issubclass(kind, ValidationError):
        places = [Problem(str(p["pointer"]), str(p["code"]), str(p["message"])) for p in problem.get("errors", ())]
        return kind(_message(problem), problems=places, code=code, hint=hint)
    return kind(_message(problem), code=code, hint=hint)


def _message(problem: Mapping[str, Any]) -> str:
    return str(problem.get("detail") or problem.get("title") or "")


def _read(headers: Mapping[str, str], body: bytes) -> Mapping[str, Any] | None:
    if not headers.get("content-type", "").startswith("application/problem+json"):
        return None
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) and "code" in found else None


def _foreign_error(status: int) -> ServiceError:
    """Returns the error for a response of a proxy, another program, or an incompatible service."""
    if status in (502, 503, 504):
        return ServiceError(
            f"A proxy in front of the service responded with {status}.",
            code="service_unreachable",
            hint="try again; if it persists, check that the service is running",
        )
    return unknown_answer(status)


def unknown_answer(status: int) -> ServiceError:
    return ServiceError(
        f"The response (status {status}) is not from a Tenuto service.",
        code="service_unknown",
        hint="check the URL: use the address of `tenuto serve`, without /v1",
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Returns the Retry-After header in seconds. The service never sends dates."""
    text = headers.get("retry-after", "")
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None
