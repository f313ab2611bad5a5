"""Restate: its server with its defaults (write-ahead log synced), and a Python service on granian or hypercorn.

Telemetry is off. Its files are preallocated, so bytes on disk say nothing and are not reported.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from benchmarks.program import Process, Program, Unavailable
from benchmarks.servers import accepts, free_ports, wait_until
from benchmarks.system import Stage, System
from benchmarks.targets import SQLITE

from .install import node_packages, python_environment

SERVICE = "benchmarks.peers.restate_service:app"
ANSWER_WITHIN_S = 30.0
Host = Literal["granian", "hypercorn"]


def prepare() -> None:
    python_environment("restate")
    _binary()


def _binary() -> str:
    """The package for this machine's kind is an optional dependency of the one that was asked for."""
    found = sorted(node_packages("restate-server").glob("@restatedev/restate-server-*/bin/restate-server"))
    if not found:
        raise Unavailable("npm has no Restate server for this kind of machine")
    return str(found[0])


@contextmanager
def stage(host: Host) -> Iterator[Stage]:
    with TemporaryDirectory(prefix="tenuto-bench-") as directory, Server(Path(directory)) as server:
        wait_until(server.is_ready, server, "the Restate server")
        (port,) = free_ports(1)
        program = partial(Program, "benchmarks.peers.restate_program", python=_python())
        with Stage(
            partial(program, f"http://127.0.0.1:{server.ingress_port}"),
            start_worker=partial(start_service, host, port),
            server=server.pid,
        ) as stage:
            server.register(f"http://127.0.0.1:{port}")
            yield stage


class Server(Process):
    def __init__(self, directory: Path) -> None:
        self.ingress_port, self._admin_port, fabric_port = free_ports(3)
        where = ["--bind-ip", "127.0.0.1", "--bind-port", str(fabric_port), "--listen-mode", "tcp"]
        super().__init__(
            [_binary(), "--no-logo", "--node-name", "bench", "--base-dir", str(directory), *where],
            RESTATE_ADMIN__BIND_PORT=str(self._admin_port),
            RESTATE_INGRESS__BIND_PORT=str(self.ingress_port),
            RESTATE_DISABLE_TELEMETRY="true",
            RESTATE_LOG_FILTER="error",
        )

    def is_ready(self) -> bool:
        return _answers(self._admin_port, "/health") and _answers(self.ingress_port, "/restate/health")

    def register(self, service: str) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._admin_port}/deployments",
            data=json.dumps({"uri": service}).encode(),
            headers={"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=ANSWER_WITHIN_S).close()  # noqa: S310


class Service(Process):
    def close(self) -> None:
        """It keeps nothing, and granian waits long for connections that the server holds open."""
        self.kill()


def start_service(host: Host, port: int) -> Service:
    address = ["--host", "127.0.0.1", "--port", str(port)]
    if host == "granian":
        options = ["--interface", "asgi", "--http", "2", "--loop", "uvloop", "--no-access-log", "--log-level", "error"]
        command = [_python(), "-m", "granian", *options, *address, SERVICE]
    else:
        options = ["--worker-class", "uvloop", "--log-level", "ERROR", "--bind", f"127.0.0.1:{port}"]
        command = [_python(), "-m", "hypercorn", *options, SERVICE]
    service = Service(command)
    try:
        wait_until(partial(accepts, port), service, host)
    except BaseException:
        service.kill()
        raise
    return service


def _python() -> str:
    return str(python_environment("restate") / "python")


def _answers(port: int, path: str) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=ANSWER_WITHIN_S).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


SYSTEMS = [
    System(
        name=f"Restate, {host}",
        ours=SQLITE,
        stages=dict.fromkeys(("W1", "W2", "W3", "W4"), partial(stage, host)),
        prepare=prepare,
        is_remote=True,
    )
    for host in ("granian", "hypercorn")
]
