"""Connections: one that does not ask anything is not kept, and there are so many at once and no more.

What a request may take once its head has come is bounded further in (`http/guard`). Before that there is nothing to
bound it by but the connection itself: a socket that sends nothing, or a byte now and then, would be held for ever, and
enough of them would use up the files that a process may open.

The head of an answer and its body go out together: one packet and one call of the system, where the server makes two.
"""

import asyncio
import sys
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 10.0
MOST = 10_000
RESERVED = 128  # files that are no connections: the database, logs, and calls that handlers make


def most_connections() -> int:
    """As many as the process has files for, less those that it needs itself."""
    if sys.platform == "win32":
        return MOST
    import resource

    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if allowed == resource.RLIM_INFINITY else max(1, min(MOST, allowed - RESERVED))


class _Joined(asyncio.Transport):
    """A transport that keeps what is written for what is written next, but not beyond the loop's turn."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
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

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._kept = b""
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)


class Connection(HttpToolsProtocol):
    """The server's own, with a time by which the head of a request is here."""

    head_seconds = HEAD_SECONDS
    most = most_connections()

    _due: asyncio.TimerHandle | None = None
    _is_over = False  # the request that was answered before all of it was here

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the server has it
        transport = _Joined(transport, self.loop)
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
        else:
            self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._is_idle:
            self._forget()
        elif self._is_over:
            self._rest()
        else:
            self._await_head()
        self._is_over = False

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_over = self._is_idle

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    @property
    def _is_idle(self) -> bool:
        """Whether there is no request whose head has come and that is not answered."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete  # type: ignore[redundant-expr]  # None before the first one

    def _rest(self) -> None:
        """The rest of a body came that nobody reads. Until the next request, the connection is as idle as any."""
        self._forget()
        if self.timeout_keep_alive_task is None and not self.transport.is_closing():
            wait = self.timeout_keep_alive
            self.timeout_keep_alive_task = self.loop.call_later(wait, self.timeout_keep_alive_handler)

    def _await_head(self) -> None:
        """From the first byte on, of a head or of the rest of a body: those that follow do not put it off."""
        if self._due is None and not self.transport.is_closing():
            self._due = self.loop.call_later(self.head_seconds, self._give_up)

    def _give_up(self) -> None:
        self._due = None
        if self._is_idle:
            self.transport.close()

    def _forget(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
