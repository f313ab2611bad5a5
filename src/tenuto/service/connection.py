"""Connections: limits on what a peer can occupy before its request is known to be worth anything.

Everything that depends on the head of a request is bounded further in (`http/guard`). RequestDeadline here:

- Time: a connection that does not send the head of a request is closed. A connection that does not read its answers is
  aborted, and no further request of it starts until it has read them: no request holds a slot for a slow reader.
- Size: the head of a request (431), and the number of requests that wait on one connection.
- Number: connections, in all and from one address.

The head and the body of a response are written together: one packet and one system call, where the server makes two.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from .http.client_address import UNKNOWN, TrustedProxies, counted_as
from .http.error_responses import RequestRejected, rejection_response
from .http.headers import service_headers

HEAD_SECONDS = 10.0
DRAIN_SECONDS = 5.0  # a peer that reads nothing for so long is gone
LINGER_SECONDS = 2.0  # for a refused peer to read why
MOST = 10_000
PER_ADDRESS = 1_000
RESERVED = 128  # files that are not connections: the database, logs, and calls that handlers make
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
MAX_PIPELINED = 16  # requests that wait for the one before them

_AROUND_HEADER = len(": \r\n")


def most_connections() -> int:
    """The number of files that the process may open, without those that it needs itself."""
    if sys.platform == "win32":
        return MOST
    import resource

    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if allowed == resource.RLIM_INFINITY else max(1, min(MOST, allowed - RESERVED))


class Peers:
    """Counts the connections of one server, in all and by address. Trusted proxies bring those of many clients."""

    def __init__(self, per_address: int = PER_ADDRESS, proxies: TrustedProxies | None = None) -> None:
        """A `per_address` of 0 is no limit."""
        self.most = most_connections()
        self._per_address = min(per_address, max(1, self.most - self.most // 4))
        self._proxies = proxies or TrustedProxies()
        self._by_address: Counter[str] = Counter()
        self._count = 0

    def add(self, address: str) -> bool:
        """Whether the connection is within the limits. It counts either way, until it is removed."""
        key = counted_as(address)
        self._count += 1
        self._by_address[key] += 1
        is_exempt = not self._per_address or address == UNKNOWN or self._proxies.trusts(address)
        return self._count <= self.most and (is_exempt or self._by_address[key] <= self._per_address)

    def remove(self, address: str) -> None:
        key = counted_as(address)
        self._count -= 1
        self._by_address[key] -= 1
        if not self._by_address[key]:
            del self._by_address[key]


class _Joined(asyncio.Transport):
    """A transport that holds a write back for the next one, but not beyond the current turn of the loop."""

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, on_close: Callable[[], None]
    ) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._on_close = on_close
        self._kept = b""

    def write(self, data: bytes) -> None:  # type: ignore[override]  # the server writes nothing else
        if self._kept:
            kept, self._kept = self._kept, b""
            self._transport.write(kept + data)
        else:
            self._kept = data
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._kept:
            kept, self._kept = self._kept, b""
            self._transport.write(kept)

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        self._flush()
        self._transport.close()
        self._on_close()

    def abort(self) -> None:
        self._kept = b""
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + len(self._kept)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)


class _Refused(Exception):
    """Raised in a callback of the parser, which then stops at once."""


class Connection(HttpToolsProtocol):
    """The server's own protocol, with limits."""

    head_seconds = HEAD_SECONDS
    drain_seconds = DRAIN_SECONDS
    linger_seconds = LINGER_SECONDS

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        peers: Peers,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._peers = peers
        self._address = UNKNOWN
        self._due: asyncio.TimerHandle | None = None
        self._draining: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None
        self._is_over = False  # the request that was answered before all of it was here
        self._is_unread = False  # an answer is complete, and its bytes are still here
        self._refusal: RequestRejected | None = None
        self._head_bytes = 0  # of the request that is being parsed, its trailers included
        self._unreported_bytes = 0  # fed to the parser since it last reported anything: it buffers them

    # -- The connection --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the server has it
        transport = _Joined(transport, self.loop, self._drain)
        super().connection_made(transport)
        self._address = UNKNOWN if self.client is None else self.client[0]
        if self._peers.add(self._address):
            self._await_head()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._peers.remove(self._address)
        self._forget()
        self.pipeline.clear()
        self._disconnect()  # the server looks at the request that was parsed last, which may wait behind this one
        super().connection_lost(exc)
        self._stop_draining()

    def _disconnect(self) -> None:
        """Tells the running request that its client has disconnected."""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    # -- Reading ---------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._unreported_bytes += len(data)
        super().data_received(data)
        if self._unreported_bytes > MAX_HEAD_BYTES:
            self._refuse(RequestRejected(431))
        if not self._is_idle:
            self._forget()
        elif self._is_over:
            self._rest()
        else:
            self._await_head()
        self._is_over = False

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._unreported_bytes = 0
        self._head_bytes += len(url)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._stop(RequestRejected(431))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._unreported_bytes = 0
        self._head_bytes += len(name) + len(value) + _AROUND_HEADER
        if self._head_bytes > MAX_HEAD_BYTES or len(self.headers) >= MAX_HEADERS:
            self._stop(RequestRejected(431))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop(RequestRejected(400))
        super().on_headers_complete()
        # Trailers follow. They are counted and discarded: the application already has its headers.
        self.headers = list(self.headers)

    def on_body(self, body: bytes) -> None:
        self._unreported_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unreported_bytes = 0
        super().on_message_complete()
        self._is_over = self._is_idle

    def _stop(self, refusal: RequestRejected) -> None:
        """Stops the parser in its tracks: the server then calls `send_400_response`."""
        self._refusal = refusal
        raise _Refused

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or RequestRejected(400))

    def _refuse(self, refusal: RequestRejected) -> None:
        """Reads nothing more. Requests that came before are answered; without any, this is the answer."""
        self._refusal = refusal
        self._forget()
        last = self.pipeline[0][0] if self.pipeline else self._running
        if last is not None and not last.response_complete:
            if not last.more_body:
                last.keep_alive = False
                return
            if last.response_started:
                self.transport.close()
                return
            self._disconnect()
        if self.transport.is_closing():
            return
        response = rejection_response(refusal)
        headers = [*response.raw_headers, *service_headers(), (b"connection", b"close")]
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        self.transport.write(STATUS_LINE[refusal.status] + lines + b"\r\n" + bytes(response.body))
        # Closing a socket with unread bytes resets the connection, and the peer may never see the answer.
        self.transport.write_eof()
        self.loop.call_later(self.linger_seconds, self.transport.abort)

    # -- Writing ---------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._drain()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_draining()
        if self.transport.is_closing():
            self._drain()
        elif self._is_unread:
            self._is_unread = False
            super().on_response_complete()

    def on_response_complete(self) -> None:
        """The next request starts once the peer has read this answer, or enough of it."""
        self._is_unread = self.flow.write_paused
        if not self._is_unread:
            super().on_response_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._is_unread:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, app))
        else:
            self._running = cycle
            super()._start_asgi_task(cycle, app)

    def _drain(self, before: int | None = None) -> None:
        """Aborts the connection unless its peer reads something from look to look. `before`: bytes at the last one."""
        self._stop_draining()
        left = self.transport.get_write_buffer_size()
        if before is not None and left >= before:
            self.transport.abort()
        elif left or self.flow.write_paused:
            self._draining = self.loop.call_later(self.drain_seconds, self._drain, left)

    def _stop_draining(self) -> None:
        if self._draining is not None:
            self._draining.cancel()
            self._draining = None

    # -- Idle connections ------------------------------------------------------------------------------------------

    @property
    def _is_idle(self) -> bool:
        """Whether there is no request whose head has come and that is not answered."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete  # type: ignore[redundant-expr]  # None before the first one

    def _rest(self) -> None:
        """The rest of an unread body has arrived. Until the next request, the connection is idle."""
        self._forget()
        if self.timeout_keep_alive_task is None and not self.transport.is_closing():
            wait = self.timeout_keep_alive
            self.timeout_keep_alive_task = self.loop.call_later(wait, self.timeout_keep_alive_handler)

    def _await_head(self) -> None:
        """From the first byte on, of a head or of the rest of a body: those that follow do not put it off."""
        if self._due is None and self._refusal is None and not self.transport.is_closing():
            self._due = self.loop.call_later(self.head_seconds, self._give_up)

    def _give_up(self) -> None:
        self._due = None
        if self._is_idle:
            self.transport.close()

    def _forget(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
