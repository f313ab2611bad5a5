"""`HttpCall`: an HTTP client for handlers that sends the headers of the attempt and raises classified errors."""

import socket
import ssl
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, Self

import httpx2

from tenuto import errors
from tenuto.authoring.context import SagaContext
from tenuto.errors import IndeterminateError, NonRetryableError, PayloadError, StepError, TransientError
from tenuto.kernel.definition import ErrorClass
from tenuto.values.http_responses import ACCEPTED, Body, Unreadable, read_body, with_body

from .given import header_problem

TIMEOUT_S: Final = 30.0
KEPT_BODY: Final = 64 * 1024
MAX_BYTES: Final = 16 * 1024 * 1024

# Error classes by status. Other 3xx and 4xx are not retryable, other 5xx are transient.
CLASSES: Final[dict[int, ErrorClass]] = {
    408: "TRANSIENT",
    409: "RETRYABLE",
    412: "RETRYABLE",
    423: "RETRYABLE",
    425: "TRANSIENT",
    429: "RATE_LIMITED",
    500: "TRANSIENT",
    501: "NON_RETRYABLE",
    502: "DEPENDENCY_FAILED",
    503: "TRANSIENT",
    504: "DEPENDENCY_FAILED",
}

# These headers belong to one connection, or describe the body of another request.
_NOT_PASSED_ON = frozenset(
    {
        "connection",
        "content-length",
        "content-type",
        "host",
        "idempotency-key",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_WITHOUT_EFFECT = frozenset({"GET", "HEAD", "OPTIONS"})


class HttpStatusError(StepError):
    """The server answered with a status that is not 2xx.

    Every such error is also an instance of the class that its status means (`TransientError`, `RateLimitedError` and so
    on).
    """

    status: int
    body: str
    response_headers: dict[str, str]


_CLASSES: Final[dict[str, type[StepError]]] = {
    cls.error_class: cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, StepError) and cls is not StepError
}


@lru_cache
def _error_type(error_class: str) -> type[StepError]:
    base = _CLASSES[error_class]
    return type(f"Http{base.__name__}", (HttpStatusError, base), {"__doc__": base.__doc__, "error_class": error_class})


class HttpCall:
    """`await HttpCall(ctx).post(url, json=…)`. A response that is not 2xx raises an error with its status and body.

    `classify` overrides the class of single statuses: `{404: "TRANSIENT"}`. Each call opens a connection of its own; to
    reuse connections, pass a `client` or use `HttpCall` as a context manager. Redirects are not followed.

    At most `max_bytes` of a body are read, counted after decoding; gzip is the only supported encoding. If the body of
    a 2xx response is longer or cannot be decoded, `PayloadError` with the code `invalid_result` is raised. The request
    was carried out, so for a step that is not safe to retry the outcome is unknown.
    """

    _accepts = ACCEPTED

    def __init__(
        self,
        ctx: SagaContext,
        *,
        base_url: str = "",
        headers: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT_S,
        classify: Mapping[int | str, ErrorClass] | None = None,
        client: httpx2.AsyncClient | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._ctx = ctx
        self._max_bytes = max_bytes
        self._base_url = base_url
        self._headers = dict(headers or {})
        self._timeout = timeout
        self._classify = {int(status): found for status, found in (classify or {}).items()}
        self._client = client
        self._own: httpx2.AsyncClient | None = None

    @staticmethod
    def propagate(ctx: SagaContext, headers: Mapping[str, str] | None = None) -> dict[str, str]:
        """Returns the headers of the execution, its correlation id, the step's key, and `headers`, which win."""
        passed_on = {name: value for name, value in ctx.headers.items() if name.lower() not in _NOT_PASSED_ON}
        carried = {"X-Correlation-ID": ctx.correlation_id, "Idempotency-Key": ctx.idempotency_key}
        found: dict[str, tuple[str, str]] = {}
        for part in (passed_on, carried, headers or {}):
            found.update((name.lower(), (name, value)) for name, value in part.items())
        return dict(found.values())

    async def get(self, url: str, **options: Any) -> httpx2.Response:
        return await self.request("GET", url, **options)

    async def post(self, url: str, **options: Any) -> httpx2.Response:
        return await self.request("POST", url, **options)

    async def put(self, url: str, **options: Any) -> httpx2.Response:
        return await self.request("PUT", url, **options)

    async def patch(self, url: str, **options: Any) -> httpx2.Response:
        return await self.request("PATCH", url, **options)

    async def delete(self, url: str, **options: Any) -> httpx2.Response:
        return await self.request("DELETE", url, **options)

    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> httpx2.Response:
        """Sends a request. Options are those of httpx2: `json`, `data`, `content`, `params`, `timeout`, and so on."""
        where = f"{method.upper()} {self._place(f'{self._base_url}{url}')}"
        sent = _headers(self._carried({**self._headers, **(headers or {})}), where)
        sent.setdefault("accept-encoding", self._accepts)
        options.setdefault("timeout", self._timeout)
        try:
            response = await self._send(method, f"{self._base_url}{url}", headers=sent, **options)
        except httpx2.TransportError as error:
            raise _unanswered(error, where, method.upper()) from error
        except (httpx2.InvalidURL, httpx2.RequestError) as error:
            raise NonRetryableError(f"{where}: {type(error).__name__}", code="http_request_invalid") from error
        except Unreadable as error:
            raise _unusable(f"{where}: the response cannot be read: {error}") from None
        if response.is_success:
            return response
        raise self._refused(response, where)

    def _carried(self, headers: Mapping[str, str]) -> dict[str, str]:
        return self.propagate(self._ctx, headers)

    def _place(self, url: str) -> str:
        """Returns a URL for errors, without credentials and query, which may be secret."""
        bare = url.partition("?")[0].partition("#")[0]
        scheme, separator, rest = bare.partition("://")
        authority, slash, path = rest.partition("/")
        return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}" if separator else bare

    async def _send(self, method: str, url: str, **options: Any) -> httpx2.Response:
        client = self._client or self._own
        if client is not None:
            return await self._exchange(client, method, url, options)
        async with httpx2.AsyncClient(verify=tls()) as single:
            return await self._exchange(single, method, url, options)

    async def _exchange(
        self, client: httpx2.AsyncClient, method: str, url: str, options: dict[str, Any]
    ) -> httpx2.Response:
        async with client.stream(method, url, **options) as response:
            if response.is_success:
                return with_body(response, await self._received(response))
            return with_body(response, (await _beginning(response)).content)

    async def _received(self, response: httpx2.Response) -> bytes:
        """Returns the body of a 2xx response."""
        content, is_cut = await read_body(response, self._max_bytes)
        if is_cut:
            raise Unreadable(f"it is longer than {self._max_bytes:,} bytes")
        return content

    def _refused(self, response: httpx2.Response, where: str) -> StepError:
        status = response.status_code
        error_class = self._classify.get(status) or CLASSES.get(status) or _class_of(status)
        error = _error_type(error_class)(
            f"{where} answered {status} {response.reason_phrase}".rstrip(),
            code=f"http_{status}",
            retry_after=_retry_after(response.headers.get("Retry-After"), response.headers.get("Date")),
        )
        assert isinstance(error, HttpStatusError)
        error.status = status
        error.body = response.text[:KEPT_BODY]
        error.response_headers = dict(response.headers)
        return error

    async def __aenter__(self) -> Self:
        if self._client is None:
            self._own = httpx2.AsyncClient(verify=tls())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._own is not None:
            await self._own.aclose()
            self._own = None


def _headers(given: Mapping[str, str], where: str) -> httpx2.Headers:
    """Returns the headers to send.

    Invalid ones are rejected before the request, so that the outcome is never unknown.
    """
    for name, value in given.items():
        if (why := header_problem(name, value)) is not None:
            raise NonRetryableError(f"{where}: the header {name!r}: {why}", code="http_request_invalid")
    return httpx2.Headers([(name.encode(), value.strip(" \t").encode()) for name, value in given.items()])


async def _beginning(response: httpx2.Response) -> Body:
    """Returns the beginning of an error response's body.

    If it cannot be decoded, the status still decides the class.
    """
    try:
        return await read_body(response, KEPT_BODY)
    except Unreadable:
        return Body(b"", is_cut=False)


def _unusable(text: str) -> PayloadError:
    return PayloadError(text, code="invalid_result")


def _class_of(status: int) -> ErrorClass:
    return "TRANSIENT" if status >= 500 else "NON_RETRYABLE"


def _unanswered(error: httpx2.TransportError, where: str, method: str) -> StepError:
    """Classifies a request without a response.

    If it may have reached the server and had an effect, it is indeterminate.
    """
    text = f"{where}: {type(error).__name__}{_why(error)}"
    if isinstance(error, httpx2.UnsupportedProtocol):
        return NonRetryableError(text, code="http_request_invalid")
    if isinstance(error, httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return TransientError(text, code="http_timeout")
    if isinstance(error, httpx2.TimeoutException):
        return IndeterminateError(text, code="http_timeout")
    if isinstance(error, httpx2.ConnectError | httpx2.ProxyError) or method in _WITHOUT_EFFECT:
        return TransientError(text, code="http_connection")
    return IndeterminateError(text, code="http_connection")


_WHY: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (ConnectionRefusedError, ", the connection was refused"),
    (socket.gaierror, ", the name could not be resolved"),
    (ssl.SSLCertVerificationError, ", the certificate is not trusted"),
)


def _why(error: BaseException) -> str:
    """Describes the cause if a user can act on it. The original text is left out, because it may contain secrets."""
    causes = list(_causes(error))
    return next((text for kind, text in _WHY if any(isinstance(cause, kind) for cause in causes)), "")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and its causes. httpcore passes the cause as an argument instead of `__cause__`."""
    yield error
    beneath = error.exceptions if isinstance(error, BaseExceptionGroup) else error.args
    for cause in (error.__cause__, *beneath):
        if isinstance(cause, BaseException):
            yield from _causes(cause)


def _retry_after(value: str | None, answered_at: str | None) -> float | None:
    """Parses Retry-After: seconds, or a date relative to the server's own Date header."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        due = parsedate_to_datetime(value)
        start = parsedate_to_datetime(answered_at or "")
        return max(0.0, (due - start).total_seconds())
    except (TypeError, ValueError):
        return None


@lru_cache(maxsize=1)
def tls() -> ssl.SSLContext:
    """Loads the trusted certificates once per process, because that takes far longer than a call."""
    return httpx2.create_ssl_context()
