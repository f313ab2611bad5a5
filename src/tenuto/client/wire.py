"""Requests to the service: one pool of connections, requests that are sent again only where that does no harm.

A request that only looks is sent again when its answer is lost; so is one that the service knows by its key. A command
is not: whoever lost the answer to `cancel` does not know whether it was heard, and is told so. What provably never
arrived (no connection came about, or the service said 429) is sent again, whatever it is.
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
from tenuto.values.redaction import hush

from .problems import error_of, retry_after, unknown_answer

logger = logging.getLogger("tenuto.client")

T = TypeVar("T")

CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 60.0
SILENCE_SECONDS: Final = 45.0  # of a stream: the service says something every 15 s
PATIENCE_SECONDS: Final = 30.0  # for how long a request is sent again where the service asks for that, waits included
OUTAGE_SECONDS: Final = 10.0  # and where there is no answer at all: the time in which a service is started anew
FIRST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 2.0
IDLE_SECONDS: Final = 2.0  # shorter than servers keep a connection: none is used as it is being closed
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
        """An object with that field: whoever answers something else is no Tenuto service."""
        try:
            found = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError):
            raise unknown_answer(self.status) from None
        if not isinstance(found, dict) or has not in found:
            raise unknown_answer(self.status)
        return found

    def nothing(self) -> None:
        """All that is to be said is that it was done."""
        if self.body:
            raise unknown_answer(self.status)


class Wire:
    """Open from `open` to `close`. The key is in a header of its own, and in no text that this makes."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self.address = _checked(url)
        self._api_key = _checked_key(api_key)
        self._asking: httpx2.AsyncClient | None = None
        self._listening: httpx2.AsyncClient | None = None
        self._under_way: set[asyncio.Future[Any]] = set()

    async def open(self) -> None:
        hush()
        if self._api_key is not None and self.address.startswith("http:") and not _is_loopback(self.address):
            logger.warning(
                "The API key goes to %s unencrypted: whoever is on the way can read it. Use https://.",
                httpx2.URL(self.address).host,
                extra={"action": "key_unencrypted"},
            )
        self._asking = self._client(ANSWER_SECONDS, CONNECTIONS)
        self._listening = self._client(SILENCE_SECONDS, None)

    async def close(self) -> None:
        clients = [client for client in (self._asking, self._listening) if client is not None]
        self._asking = self._listening = None
        for task in tuple(self._under_way):
            task.cancel()
        for client in clients:
            await client.aclose()

    @property
    def is_open(self) -> bool:
        return self._asking is not None

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

    # Asking

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
        """The answer, if it is a good one. `repeats`: sending it twice is the same as sending it once."""
        content = None if body is None else msgspec.json.encode(body)
        given = dict(headers or {}) | ({} if content is None else {"Content-Type": "application/json"})
        patience = _Patience()
        while True:
            try:
                answer = await self._once(method, path, params, content, given)
            except httpx2.TransportError as error:
                again = (repeats or isinstance(error, _NEVER_SENT)) and _tls_error(error) is None
                if again and await patience.waits(None, OUTAGE_SECONDS):
                    continue
                raise lost(error, self.address) from None
            if answer.status < 300:
                return answer
            if not await self._may_repeat(answer, repeats, patience):
                raise error_of(*answer)

    async def _may_repeat(self, answer: Answer, repeats: bool, patience: "_Patience") -> bool:
        error = error_of(*answer)
        refused = isinstance(error, RateExceeded) and error.code == RateExceeded.code
        passing = repeats and (isinstance(error, RequestInFlight) or answer.status in _BEHIND_A_PROXY)
        return (refused or passing) and await patience.waits(retry_after(answer.headers), PATIENCE_SECONDS)

    async def _once(
        self, method: str, path: str, params: Mapping[str, Any] | None, content: bytes | None, headers: dict[str, str]
    ) -> Answer:
        client = self._open_client(self._asking)
        request = client.build_request(method, path, params=params, content=content, headers=headers)
        return await self.unless_closed(_exchange(client, request))

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, Any], headers: dict[str, str]
    ) -> AsyncIterator[AsyncIterator[httpx2.ServerSentEvent]]:
        """Server-sent events. What the service refuses is raised; a stream that breaks is a `TransportError`."""
        client = self._open_client(self._listening)
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
        """What waits for an answer ends with the engine, and not when the answer comes."""
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if self.is_open:
                raise
            raise EngineClosed("The engine was closed while a request was under way.") from None
        finally:
            self._under_way.discard(task)

    def _open_client(self, client: httpx2.AsyncClient | None) -> httpx2.AsyncClient:
        if client is None:
            raise EngineClosed("The engine is closed, or not open yet.")
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


async def paged(wire: Wire, path: str, params: Mapping[str, Any]) -> AsyncIterator[Any]:
    """All items of a list."""
    cursor: str | None = None
    while True:
        found = await wire.get(path, {**params, "cursor": cursor, "limit": PAGE}, has="next_cursor")
        for item in found["items"]:
            yield item
        cursor = found["next_cursor"]
        if cursor is None:
            return


def _checked_key(key: str | None) -> str | None:
    """What cannot be in a header is no key. It is not shown: whatever it is, it was meant to be secret."""
    if key is not None and not (key and key.isascii() and key.isprintable() and " " not in key):
        why = "it has blanks, line breaks or letters that no key has" if key else "it is empty"
        raise NotAuthenticated(
            f"The API key cannot be one: {why}.",
            hint="give TENUTO_API_KEY as `tenuto keys create` printed it, and nothing else",
        )
    return key


def quoted(part: str) -> str:
    """Of a path, an id that the service gave. What cannot be one is not there either."""
    if "/" in part or ":" in part:
        raise NotFound(f"There is nothing called {part!r}.")
    return quoted_name(part)


def quoted_name(name: str) -> str:
    """At the end of a path, a name that somebody chose, whatever is in it. Of dots alone, none would arrive."""
    if name in ("", ".", ".."):
        raise NotFound(f"There is nothing called {name!r}.")
    return quote(name, safe="")


def lost(error: httpx2.TransportError, address: str) -> ServiceError:
    """The reason is told by its name: what libraries put into messages may hold anything."""
    if (refused := _tls_error(error)) is not None:
        return _insecure(refused, address)
    why = type(error).__name__
    if isinstance(error, _NEVER_SENT):
        return ServiceError(
            f"The service at {address} cannot be reached ({why}).",
            code="service_unreachable",
            hint="check the address, and that `tenuto serve` runs there",
        )
    return ServiceError(
        f"The connection to {address} was lost ({why}); whether the request was carried out is not known.",
        code="answer_lost",
        hint="see how things stand, then repeat it if need be",
    )


@lru_cache(maxsize=4)
def _tls(cert_file: str | None, cert_dir: str | None) -> ssl.SSLContext:
    """Returns a context with the certificates that the environment names, for loopback too, where no proxy counts.

    Clients share it, because reading the certificates takes longer than a request.
    """
    return httpx2.create_ssl_context()


def _tls_error(error: BaseException) -> ssl.SSLError | None:
    """Why no encrypted connection came about. Trying again does not help."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    return cause


def _insecure(error: ssl.SSLError, address: str) -> ServiceError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return ServiceError(
            f"The certificate of the service at {address} is not trusted: {error.verify_message}",
            code="service_unreachable",
            hint="use the name that it was made for; if it is of an authority of your own, name that in SSL_CERT_FILE",
        )
    return ServiceError(
        f"No encrypted connection to {address} came about ({error.reason}).",
        code="service_unreachable",
        hint="check that what listens there speaks TLS; if it does not, the address begins with http://",
    )


class _Patience:
    """How long one request has been sent again, and how long it still may be."""

    def __init__(self) -> None:
        self._began = asyncio.get_running_loop().time()
        self._delay = FIRST_DELAY

    async def waits(self, asked: float | None, at_most: float) -> bool:
        """Waits as long as was asked for, or a little longer each time; False if that would be too long."""
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
        raise InvalidInput.at("/url", "url", "it is no address") from None
    if found.userinfo:
        raise InvalidInput.at("/url", "url", "a key does not go into the address: give it as api_key")
    if not found.host:
        raise InvalidInput.at("/url", "url", "an address has a host: https://tenuto.example.org")
    return str(found.copy_with(query=None, fragment=None)).rstrip("/")


def _is_loopback(address: str) -> bool:
    host = httpx2.URL(address).host
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
