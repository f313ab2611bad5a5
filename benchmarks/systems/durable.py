"""Us on the databases: `synchronous=FULL` on SQLite, and a PostgreSQL server of our own with `fsync` on."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from benchmarks.program import Program
from benchmarks.system import Stage, System
from benchmarks.targets import POSTGRES, SQLITE
from tests.servers import postgres

OURS = partial(Program, "benchmarks.programs.ours")
IN_FLIGHT = 2_000


@contextmanager
def sqlite(*, remote: bool = False, clients: int = 1) -> Iterator[Stage]:
    with TemporaryDirectory(prefix="tenuto-bench-") as directory:
        url = f"sqlite:///{directory}/bench.db"
        with _stage(url, remote, clients, disk_bytes=lambda: files_bytes(Path(directory))) as stage:
            yield stage


@contextmanager
def on_postgres(*, remote: bool = False, clients: int = 1) -> Iterator[Stage]:
    with postgres.running(durable=True) as server:
        pid = server.process.pid
        with _stage(server.dsn(), remote, clients, server=pid, disk_bytes=lambda: database_bytes(server.dsn())) as stage:
            yield stage


def _stage(url: str, remote: bool, clients: int, **rest: object) -> Stage:
    worker = partial(OURS, url, "--join")
    if remote:
        return Stage(partial(OURS, url, "--join", "--no-worker"), start_worker=worker, clients=clients, **rest)
    return Stage(worker, clients=clients, **rest)


def files_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def database_bytes(dsn: str) -> int:
    """Tables and indexes; the write-ahead log, which is used again and again, is not in it."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert row is not None
    return int(row[0])


SYSTEMS = [
    System(
        name=name,
        ours=name,
        in_flight=IN_FLIGHT,
        stages={
            "W1": stage,
            "W1-other-process": partial(stage, remote=True),
            "W1-two-workers": partial(stage, clients=2),
            "W2": stage,
            "W3": stage,
            "W4": stage,
            "growth": stage,
        },
    )
    for name, stage in ((SQLITE, sqlite), (POSTGRES, on_postgres))
]
