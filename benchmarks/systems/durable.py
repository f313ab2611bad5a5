"""Us on the databases: `synchronous=FULL` on SQLite, and a PostgreSQL server of our own with `fsync` on."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.disk import database_bytes, sqlite_bytes
from benchmarks.program import Program
from benchmarks.system import Stage, System
from benchmarks.targets import POSTGRES, SQLITE
from tests.servers import postgres

OURS = "benchmarks.programs.ours"
IN_FLIGHT = 1_000  # as many as slots: those beyond wait for one, and it costs something to keep them in turn
SLOTS = 1_000  # the 500 slow steps of W4 are to run at once


@contextmanager
def sqlite(*, remote: bool = False, clients: int = 1, options: Sequence[str] = ()) -> Iterator[Stage]:
    with TemporaryDirectory(prefix="tenuto-bench-") as directory:
        path = Path(directory) / "bench.db"
        url = f"sqlite:///{path}"
        size = partial(sqlite_bytes, path)
        with stage(url, remote=remote, clients=clients, options=options, disk_bytes=size) as ready:
            yield ready


@contextmanager
def on_postgres(*, remote: bool = False, clients: int = 1, options: Sequence[str] = ()) -> Iterator[Stage]:
    with postgres.running(durable=True) as server:
        url, pid = server.dsn(), server.process.pid
        size = partial(database_bytes, url)
        with stage(url, remote=remote, clients=clients, options=options, server=pid, disk_bytes=size) as ready:
            yield ready


def stage(
    url: str,
    *,
    remote: bool,
    clients: int,
    options: Sequence[str],
    disk_bytes: Callable[[], int],
    server: int | None = None,
) -> Stage:
    """In one process, or (`remote`) with a client that only submits and a worker that does the work."""
    works = partial(Program, OURS, url, "--join", "--slots", str(SLOTS), *options)
    return Stage(
        partial(works, "--no-worker") if remote else works,
        start_worker=works if remote else None,
        clients=clients,
        server=server,
        disk_bytes=disk_bytes,
    )


SYSTEMS = [
    System(
        name=name,
        ours=name,
        in_flight=IN_FLIGHT,
        stages={
            **dict.fromkeys(("W1", "W2", "W3", "W4", "growth"), stand),
            "W1-other-process": partial(stand, remote=True),
            "W1-two-workers": partial(stand, clients=2),
            "overload": partial(stand, options=("--at-most", str(IN_FLIGHT))),
            "overload-other-process": partial(stand, remote=True, options=("--at-most", str(IN_FLIGHT))),
        },
    )
    for name, stand in ((SQLITE, sqlite), (POSTGRES, on_postgres))
]
