"""Over HTTP: `tenuto serve` on either database, and the floor under it: the same server with a route that inserts."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.filling import fill
from benchmarks.program import ROOT, Process, Program
from benchmarks.servers import accepts, free_ports, wait_until
from benchmarks.system import Stage, System
from benchmarks.targets import FLOOR_POSTGRES, FLOOR_SQLITE, POSTGRES, SQLITE
from tests.servers import postgres

CLIENT = "benchmarks.programs.http_client"
HOST = "127.0.0.1"
IN_FLIGHT = 500
TENUTO = [sys.executable, "-c", "from tenuto.cli import main; main()"]
LIFTED = {"TENUTO_RATE_PER_SECOND": "0", "TENUTO_TENANT_RATE_PER_SECOND": "0", "TENUTO_LOG_LEVEL": "WARNING"}


class HttpStage(Stage):
    """A stage whose worker is the service; `fill` puts finished executions into its database."""

    def __init__(self, url: str, start_service: Callable[[], Process], port: int, key: str, server: int | None) -> None:
        self.url = url
        self.fill = partial(fill, url)
        self.beside: dict[str, int] = {}
        self.key = key
        client = partial(Program, CLIENT, HOST, str(port), *([key] if key else []))
        super().__init__(client, start_worker=start_service, server=server)

    @property
    def roles(self) -> dict[str, int]:
        return {**super().roles, **self.beside}


@contextmanager
def on_sqlite(*, plain: bool = False) -> Iterator[Stage]:
    with TemporaryDirectory(prefix="tenuto-bench-") as directory:
        url = f"sqlite:///{Path(directory) / 'bench.db'}"
        with (plainly if plain else ours)(url) as stage:
            yield stage


@contextmanager
def on_postgres(*, plain: bool = False) -> Iterator[Stage]:
    stand = plainly if plain else ours
    with postgres.running(durable=True) as server, stand(server.dsn(), server.process.pid) as stage:
        yield stage


def ours(url: str, server: int | None = None) -> HttpStage:
    key = _key(url)
    (port,) = free_ports(1)
    service = partial(_service, [*TENUTO, "serve", "--port", str(port)], port, TENUTO_URL=url, **LIFTED)
    return HttpStage(url, service, port, key, server)


@contextmanager
def worked_on(stand: Callable[..., AbstractContextManager[Stage]]) -> Iterator[Stage]:
    """With a worker, in a process of its own, for what is created."""
    with stand() as stage:
        assert isinstance(stage, HttpStage)
        with Process([*TENUTO, "worker"], piped=False, TENUTO_URL=stage.url, **LIFTED) as worker:
            stage.beside["worker beside it"] = worker.pid
            yield stage


def plainly(url: str, server: int | None = None) -> HttpStage:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "benchmarks.programs.plain_service", url, str(port)]
    return HttpStage(url, partial(_service, command, port), port, "", server)


def _key(url: str) -> str:
    """Makes the schema, too."""
    command = [*TENUTO, "keys", "create", "--tenant", "default", "--role", "admin", "--json"]
    environment = {**os.environ, "TENUTO_URL": url}
    made = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env=environment)
    key: str = json.loads(made.stdout)["key"]
    return key


def _service(command: list[str], port: int, **environment: str) -> Process:
    process = Process(command, piped=False, **environment)
    try:
        wait_until(lambda: accepts(port), process, "the service")
    except BaseException:
        process.kill()
        raise
    return process


_OURS = ("http-create", "http-read", "http-list")

SYSTEMS = [
    *(
        System(
            name=name,
            ours=name,
            in_flight=IN_FLIGHT,
            stages={**dict.fromkeys(_OURS, stand), "http-overload": partial(worked_on, stand)},
        )
        for name, stand in ((SQLITE, on_sqlite), (POSTGRES, on_postgres))
    ),
    System(name=FLOOR_SQLITE, ours=SQLITE, stages={"http-create": partial(on_sqlite, plain=True)}),
    System(name=FLOOR_POSTGRES, ours=POSTGRES, stages={"http-create": partial(on_postgres, plain=True)}),
]
