"""HTTP requests to the service, with a connection pool and safe retries.

A read is retried when its response is lost, and so is a request with an idempotency key. A command is not retried: if
the response to `cancel` is lost, the caller gets an error that says so. A request that provably did not arrive (no
connection, or a 429 response) is always retried.
"""

import asyncio
import ipaddress
import logging
import os
import ssl
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from tenuto.errors import (
    EngineClosed,
    InvalidInput,
    NotAuthenticated,
    NotFound,
    RateExceeded,
    RequestInFlight,
    ServiceError,
)
from tenuto.values.http_responses import ACCEPTED, Unreadable, is_encoded, read_body
from tenuto.values.jitter import spread
from tenuto.values.redaction import quiet_http_loggers

from .problems import error_of, retry_after, unknown_answer

logger = logging.getLogger("tenuto.client")

T = TypeVar("T")

CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 60.0
SILENCE_SECONDS: Final = 45.0  # of a stream: the service sends a keep-alive every 15 s
RETRY_SECONDS: Final = 30.0  # total time for retries that the service asks for, waits included
OUTAGE_SECONDS: Final = 10.0  # total time for retries without any response: enough for a restart of the service
FIRST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 2.0
IDLE_SECONDS: Final = 2.0  # shorter than the server's keep-alive, so that no closing connection is reused
CONNECTIONS: Final = 100
PAGE: Final = 100
MAX_BYTES: Final = 64 * 1024 * 1024  # of one response, or of one event of a stream

_BEHIND_A_PROXY: Final = (502, 503, 504)
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def document(self, has: str) -> Any:
        """Returns the JSON object. Anything without the field `has` is not from a Tenuto service."""
        try:
            found = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError):
            raise unknown_answer(self.status) from None
        if not isinstance(found, dict) or has not in found:
            raise unknown_answer(self.status)
        return found

    def nothing(self) -> None:
        """Checks that the body is empty."""
        if self.body:
            raise unknown_answer(self.status)


class Transport:
    """Sends requests between `open` and `close`. The API key appears in a header only, never in messages."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self.address = _checked(url)
        self._api_key = _checked_key(api_key)
        self._requests: httpx2.AsyncClient | None = None
        self._streams: httpx2.AsyncClient | None = None
        self._under_way: set[asyncio.Future[Any]] = set()

    async def open(self) -> None:
        quiet_http_loggers()
        if self._api_key is not None and self.address.startswith("http:") and not _is_loopback(self.address):
            logger.warning(
                "The API key is sent to %s unencrypted, and others on the network can read it. Use https://.",
                httpx2.URL(self.address).host,
                extra={"action": "key_unencrypted"},
            )
        self._requests = self._client(ANSWER_SECONDS, CONNECTIONS)
        self._streams = self._client(SILENCE_SECONDS, None)

    async def close(self) -> None:
        clients = [client for client in (self._requests, self._streams) if client is not None]
        self._requests = self._streams = None
        for task in tuple(self._under_way):
            task.cancel()
        for client in clients:
            await client.aclose()

    @property
    def is_open(self) -> bool:
        return self._requests is not None

    def _client(self, read: float, connections: int | None) -> httpx2.AsyncClient:
        headers = {"User-Agent": "tenuto", "Accept": "application/json", "Accept-Encoding": ACCEPTED}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        return httpx2.AsyncClient(
            base_url=self.address,
            headers=headers,
            verify=_tls(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")),
            timeout=httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS, read=read, pool=None),
            limits=httpx2.Limits(
                max_connections=connections, max_keepalive_connections=20, keepalive_expiry=IDLE_SECONDS
            ),
            follow_redirects=False,
            trust_env=not _is_loopback(self.address),
        )

    # Requests

    async def get(self, path: str, params: Mapping[str, Any] | None = None, *, has: str) -> Any:
        given = {name: value for name, value in (params or {}).items() if value is not None}
        return (await self.send("GET", path, params=given, repeats=True)).document(has)

    async def send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        repeats: bool = False,
    ) -> Answer:
        """Returns the response, or raises its error. `repeats` marks a request that is safe to send twice."""
        content = None if body is None else msgspec.json.encode(body)
        given = dict(headers or {}) | ({} if content is None else {"Content-Type": "application/json"})
        retries = _Retries()
        while True:
            try:
                answer = await self._once(method, path, params, content, given)
            except httpx2.TransportError as error:
                again = (repeats or isinstance(error, _NEVER_SENT)) and _tls_error(error) is None
                if again and await retries.waits(None, OUTAGE_SECONDS):
                    continue
                raise lost(error, self.address) from None
            if answer.status < 300:
                return answer
            if not await self._may_repeat(answer, repeats, retries):
                raise error_of(*answer)

    async def _may_repeat(self, answer: Answer, repeats: bool, retries: "_Retries") -> bool:
        error = error_of(*answer)
        refused = isinstance(error, RateExceeded) and error.code == RateExceeded.code
        passing = repeats and (isinstance(error, RequestInFlight) or answer.status in _BEHIND_A_PROXY)
        return (refused or passing) and await retries.waits(retry_after(answer.headers), RETRY_SECONDS)

    async def _once(
        self, method: str, path: str, params: Mapping[str, Any] | None, content: bytes | None, headers: dict[str, str]
    ) -> Answer:
        client = self._open_client(self._requests)
        request = client.build_request(method, path, params=params, content=content, headers=headers)
        return await self.unless_closed(_exchange(client, request))

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, Any], headers: dict[str, str]
    ) -> AsyncIterator[AsyncIterator[httpx2.ServerSentEvent]]:
        """Opens a stream of server-sent events. Raises errors of the service; a broken stream is a `TransportError`."""
        client = self._open_client(self._streams)
        given = {**headers, "Accept": "text/event-stream", "Accept-Encoding": "identity"}
        request = client.build_request("GET", path, params=params, headers=given)
        response = await self.unless_closed(client.send(request, stream=True))
        try:
            if response.status_code >= 300:
                raise error_of(*await _answer(response))
            if _is_encoded(response):
                raise unknown_answer(response.status_code)
            yield self._each(httpx2.EventSource(response, max_event_size=MAX_BYTES))
        finally:
            await response.aclose()

    async def _each(self, source: httpx2.EventSource) -> AsyncIterator[httpx2.ServerSentEvent]:
        events = aiter(source)
        while (event := await self.unless_closed(_next(events))) is not None:
            yield event

    async def unless_closed(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a request that `close` cancels."""
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if self.is_open:
                raise
            raise EngineClosed("The engine was closed during a request.") from None
        finally:
            self._under_way.discard(task)

    def _open_client(self, client: httpx2.AsyncClient | None) -> httpx2.AsyncClient:
        if client is None:
            raise EngineClosed("The engine is closed or not open yet.")
        return client


async def _exchange(client: httpx2.AsyncClient, request: httpx2.Request) -> Answer:
    response = await client.send(request, stream=True)
    try:
        return await _answer(response)
    finally:
        await response.aclose()


async def _answer(response: httpx2.Response) -> Answer:
    try:
        content, is_cut = await read_body(response, MAX_BYTES)
    except Unreadable:
        raise unknown_answer(response.status_code) from None
    if is_cut:
        raise unknown_answer(response.status_code)
    return Answer(response.status_code, response.headers, content)


def _is_encoded(response: httpx2.Response) -> bool:
    try:
        return is_encoded(response)
    except Unreadable:
        return True


async def _next(events: AsyncIterator[T]) -> T | None:
    return await anext(events, None)


async def paged(transport: Transport, path: str, params: Mapping[str, Any]) -> AsyncIterator[Any]:
    """Yields all items of a paged list."""
    cursor: str | None = None
    while True:
        found = await transport.get(path, {**params, "cursor": cursor, "limit": PAGE}, has="next_cursor")
        for item in found["items"]:
            yield item
        cursor = found["next_cursor"]
        if cursor is None:
            return


def _checked_key(key: str | None) -> str | None:
    """Rejects a key that cannot be a header value. The message does not show it, because it is secret."""
    if key is not None and not (key and key.isascii() and key.isprintable() and " " not in key):
        why = "it contains spaces, line breaks or characters that are not ASCII" if key else "it is empty"
        raise NotAuthenticated(
            f"The API key is not valid: {why}.",
            hint="set TENUTO_API_KEY to exactly what `tenuto keys create` printed",
        )
    return key


def quoted(part: str) -> str:
    """Quotes an id for a path. A value that cannot be an id does not exist."""
    if "/" in part or ":" in part:
        raise NotFound(f"{part!r} does not exist.")
    return quoted_name(part)


def quoted_name(name: str) -> str:
    """Quotes a user-chosen name for the end of a path. Dots alone would be resolved as a path, so they are refused."""
    if name in ("", ".", ".."):
        raise NotFound(f"{name!r} does not exist.")
    return quote(name, safe="")


def lost(error: httpx2.TransportError, address: str) -> ServiceError:
    """Returns the error for a failed request. It names only the exception class: messages may contain secrets."""
    if (refused := _tls_error(error)) is not None:
        return _insecure(refused, address)
    why = type(error).__name__
    if isinstance(error, _NEVER_SENT):
        return ServiceError(
            f"The service at {address} cannot be reached ({why}).",
            code="service_unreachable",
            hint="check the URL, and that `tenuto serve` is running there",
        )
    return ServiceError(
        f"The connection to {address} was lost ({why}); it is unknown whether the request was carried out.",
        code="answer_lost",
        hint="check the state of the execution, then repeat the request if needed",
    )


@lru_cache(maxsize=4)
def _tls(cert_file: str | None, cert_dir: str | None) -> ssl.SSLContext:
    """Returns a context with the certificates that the environment names, for loopback too, where no proxy counts.

    Clients share it, because reading the certificates takes longer than a request.
    """
    return httpx2.create_ssl_context()


def _tls_error(error: BaseException) -> ssl.SSLError | None:
    """Returns the TLS error that caused this one. Retrying does not help."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    return cause


def _insecure(error: ssl.SSLError, address: str) -> ServiceError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return ServiceError(
            f"The certificate of the service at {address} is not trusted: {error.verify_message}",
            code="service_unreachable",
            hint="use the host name of the certificate; for a private certificate authority, set SSL_CERT_FILE",
        )
    return ServiceError(
        f"The TLS connection to {address} failed ({error.reason}).",
        code="service_unreachable",
        hint="check that the server uses TLS; if it does not, use http://",
    )


class _Retries:
    """Limits how long one request is retried."""

    def __init__(self) -> None:
        self._began = asyncio.get_running_loop().time()
        self._delay = FIRST_DELAY

    async def waits(self, asked: float | None, at_most: float) -> bool:
        """Waits for the requested time, or with growing backoff. Returns False if the total would be too long."""
        delay = spread(self._delay, 0.5, 1) if asked is None else asked
        self._delay = min(2 * self._delay, LONGEST_DELAY)
        if asyncio.get_running_loop().time() + delay > self._began + at_most:
            return False
        await asyncio.sleep(delay)
        return True


def _checked(url: str) -> str:
    try:
        found = httpx2.URL(url)
    except httpx2.InvalidURL:
        raise InvalidInput.at("/url", "url", "is not a valid URL") from None
    if found.userinfo:
        raise InvalidInput.at("/url", "url", "must not contain credentials: use api_key")
    if not found.host:
        raise InvalidInput.at("/url", "url", "needs a host, as in https://tenuto.example.org")
    return str(found.copy_with(query=None, fragment=None)).rstrip("/")


def _is_loopback(address: str) -> bool:
    host = httpx2.URL(address).host
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
