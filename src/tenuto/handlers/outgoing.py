"""Common parts of the built-in handlers that use HTTP: the headers they send, and how they read `with`."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

import httpx2
import msgspec

from tenuto.errors import NonRetryableError
from tenuto.kernel.definition import ErrorClass

from .given import reserved_problem
from .http import HttpCall
from .settings import Target

T = TypeVar("T")

_TRACE = ("traceparent", "tracestate")


class Outgoing(HttpCall):
    """An HTTP call to a server that a definition names. Of the execution's headers only those for tracing are sent."""

    _accepts = "identity"

    def _carried(self, headers: Mapping[str, str]) -> dict[str, str]:
        ctx = self._ctx
        passed_on = {name.lower(): value for name, value in ctx.headers.items() if name.lower() in _TRACE}
        own = {"x-correlation-id": ctx.correlation_id, "idempotency-key": ctx.idempotency_key}
        return {**passed_on, **own, **{name.lower(): value for name, value in headers.items()}}


def read_with(given: object, kind: type[T], handler: str) -> T:
    """Converts the rendered `with` of a step, or raises an error that names the problem but not the value."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise bad_with(handler, str(error)) from None


def bad_with(handler: str, why: str) -> NonRetryableError:
    return NonRetryableError(f"`with` of the handler {handler!r}: {why}", code="bad_with")


def target_of(url: str, handler: str) -> Target:
    """Returns the target of a URL, or raises an error if it cannot be called."""
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        raise bad_with(handler, "`url` is not a URL") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise bad_with(handler, "`url` must begin with http:// or https:// and a host")
    return Target(parsed.scheme, parsed.host, parsed.port or (443 if parsed.scheme == "https" else 80))


def check_headers(names: Iterable[str], handler: str) -> None:
    for name in names:
        if (why := reserved_problem(name)) is not None:
            raise bad_with(handler, f"the header {name!r}: {why}")


def statuses(given: Mapping[str, ErrorClass], handler: str) -> dict[int | str, ErrorClass]:
    """Converts `classify`, the error classes by status."""
    if not all(status.isdecimal() for status in given):
        raise bad_with(handler, "`classify` maps statuses to classes, as in {'404': 'TRANSIENT'}")
    return {int(status): error_class for status, error_class in given.items()}
