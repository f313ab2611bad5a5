"""The HTTP server: binds a socket and serves until it is stopped."""

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import uvicorn

from tenuto.errors import SettingsError
from tenuto.settings import Settings

from .connection import Connection, Peers
from .http.client_address import TrustedProxies
from .http.shutdown import with_shutdown_event

BACKLOG = 2_048
# Longer than clients and proxies keep an idle connection, so that they close it. A request that is sent while the
# server closes the connection is lost, and its outcome is unknown.
IDLE_SECONDS = 75


def bind(host: str, port: int, named: str = "--host and --port, or TENUTO_HOST and TENUTO_PORT") -> socket.socket:
    """Binds a socket to the address before anything is printed. Port 0 is any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, or asyncio does not switch off that small packets wait for one another: 40 ms for every answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        why = error.strerror if isinstance(error, OSError) else "a port is a number up to 65535"
        raise SettingsError(
            f"Nothing can listen on {host}:{port}: {why}.",
            code="address_unusable",
            hint=f"choose another with {named}",
        ) from None
    listener.listen(BACKLOG)
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL of a socket, for those on this machine."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  (read, not bound)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


async def serve(
    app: Any,
    listener: socket.socket,
    stop: asyncio.Event,
    *,
    grace_seconds: float,
    settings: Settings | None = None,
) -> None:
    """Answers requests until `stop` is set. Then those under way may finish for `grace_seconds`, and streams end."""
    settings = settings or Settings()
    shutdown = asyncio.Event()
    peers = Peers(settings.max_connections_per_address, TrustedProxies(settings.trusted_proxies))
    config = uvicorn.Config(
        with_shutdown_event(app, shutdown),
        log_config=None,
        access_log=False,
        server_header=False,
        http=cast(type[asyncio.Protocol], partial(Connection, peers=peers)),
        proxy_headers=False,  # it would trust whatever runs on this machine; `TrustedProxies` asks the settings
        ws="none",
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=max(1, round(grace_seconds)),
    )
    server = _Server(config, shutdown)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="tenuto-serve")
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    server.should_exit = True
    await serving


class _Server(uvicorn.Server):
    """Leaves signals to the caller: a worker in the same process needs them too."""

    def __init__(self, config: uvicorn.Config, shutdown: asyncio.Event) -> None:
        super().__init__(config)
        self._shutdown = shutdown

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Only after the socket is closed: a client that is disconnected and reconnects must not reach this server.
        self._shutdown.set()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
