"""DBOS, as a library in the client's process, on SQLite as shipped and on PostgreSQL."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.disk import database_bytes, files_bytes
from benchmarks.program import Program
from benchmarks.system import Stage, System
from benchmarks.targets import POSTGRES, SQLITE
from tests.servers import postgres

from .install import python_environment

DATABASE = "dbos"

prepare = partial(python_environment, "dbos")


def start(url: str) -> Program:
    return Program("benchmarks.peers.dbos_program", url, python=str(prepare() / "python"))


@contextmanager
def on_sqlite() -> Iterator[Stage]:
    with TemporaryDirectory(prefix="tenuto-bench-") as directory:
        url = f"sqlite:///{directory}/dbos.sqlite"
        with Stage(partial(start, url), disk_bytes=lambda: files_bytes(Path(directory))) as stage:
            yield stage


@contextmanager
def on_postgres() -> Iterator[Stage]:
    with postgres.running(durable=True) as server:
        url = server.dsn(DATABASE)  # which it makes itself
        pid = server.process.pid
        with Stage(partial(start, url), server=pid, disk_bytes=lambda: database_bytes(url)) as stage:
            yield stage


SYSTEMS = [
    System(
        name="DBOS, SQLite",
        ours=SQLITE,
        stages=dict.fromkeys(("W1", "W2", "W3", "W4"), on_sqlite),
        prepare=prepare,
        in_flight=100,
    ),
    System(
        name="DBOS, PostgreSQL",
        ours=POSTGRES,
        stages=dict.fromkeys(("W1", "W2", "W3", "W4"), on_postgres),
        prepare=prepare,
        in_flight=200,
    ),
]
