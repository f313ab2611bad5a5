"""The HTTP client of the built-in handlers: guarded connections, no proxies, no redirects."""

from collections.abc import AsyncIterator
from typing import Final

import httpcore2
import httpx2

from tenuto.values.redaction import quiet_http_loggers

from .egress import Egress, GuardedBackend
from .http import tls

CONNECT_S: Final = 10.0


def make_client(egress: Egress) -> httpx2.AsyncClient:
    """Creates the HTTP client. Only connecting has a timeout, because the runtime limits the duration of an attempt."""
    quiet_http_loggers()
    return httpx2.AsyncClient(
        transport=_Transport(egress),
        timeout=httpx2.Timeout(None, connect=CONNECT_S),
        headers={"User-Agent": "tenuto"},
        trust_env=False,
        follow_redirects=False,
    )


class _Transport(httpx2.AsyncBaseTransport):
    def __init__(self, egress: Egress) -> None:
        # Connections are not reused. If the server closes an idle connection while a request is sent, the outcome is
        # unknown; avoiding that is worth a handshake.
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls(), max_connections=None, max_keepalive_connections=0, network_backend=GuardedBackend(egress)
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        assert isinstance(request.stream, httpx2.AsyncByteStream)
        asked = httpcore2.Request(
            method=request.method,
            url=httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            answer = await self._pool.handle_async_request(asked)
        except Exception as error:
            raise _translated(error) from error
        return httpx2.Response(
            status_code=answer.status, headers=answer.headers, stream=_Stream(answer), extensions=answer.extensions
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Stream(httpx2.AsyncByteStream):
    """The bytes of a response. Errors are translated to those of httpx."""

    def __init__(self, answer: httpcore2.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._answer.aiter_stream():
                yield part
        except Exception as error:
            raise _translated(error) from error

    async def aclose(self) -> None:
        await self._answer.aclose()


def _translated(error: Exception) -> Exception:
    """Translates an error of httpcore to that of httpx with the same name. Tenuto's own errors stay unchanged."""
    if type(error).__module__.partition(".")[0] != "httpcore2":
        return error
    known = getattr(httpx2, type(error).__name__, httpx2.NetworkError)
    return known(str(error)) if issubclass(known, httpx2.TransportError) else error
