"""Runs a scenario, kills it, has another process take over, and asks for the verdict. Many at a time."""

import asyncio
import math
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from uuid import uuid4

import msgspec
import psycopg

from tenuto.storage import make_store
from tests.servers import sqlite
from tests.servers.postgres import Server

from .child import Job, Told, work
from .points import Point

PATIENCE_SECONDS = 180
AT_A_TIME = 6
REACHED = 0.7  # of all points
KILLED = (-signal.SIGKILL, 255)  # the second is said of one that ended before it could be asked how
EXPIRE = (
    "UPDATE sessions SET expires_at = 0 WHERE ended_at IS NULL",
    "UPDATE answers SET created_at = 0 WHERE status IS NULL",
)

_processes = get_context("forkserver")
# The last two are loaded when something is asked over HTTP: once, and not by every process.
_processes.set_forkserver_preload(["tests.crash.child", "httpcore2", "anyio._backends._asyncio"])


@dataclass(frozen=True, order=True)
class Case:
    scenario: str
    points: tuple[Point, ...]
    plant: str = ""

    def __str__(self) -> str:
        return f"{self.scenario!r}, killed {', then '.join(map(str, self.points))}"


@dataclass(frozen=True)
class Outcome:
    """`killed`: how many of its points were reached; the later ones may have nothing left to interrupt.

    `recovery`: the points that whoever recovered from them passed.
    """

    case: Case
    killed: int
    wrong: tuple[str, ...]
    recovery: tuple[Point, ...] = ()


def unreached(outcomes: list[Outcome]) -> str:
    """Complains if too few processes died at their points.

    Runs differ a little: the last points may find nothing to interrupt. The rest must be reached, or prove nothing.
    """
    points = sum(len(outcome.case.points) for outcome in outcomes)
    killed = sum(outcome.killed for outcome in outcomes)
    return "" if killed >= REACHED * points else f"only {killed} of {points} crash points were reached"


class Harness:
    """On files, or on the databases of a server."""

    def __init__(self, server: Server | None = None, *, patience: int = PATIENCE_SECONDS) -> None:
        self._server = server
        self._patience = patience
        self._template = str(prepared_file()) if server is None else _prepared_database(server.port)

    def points(self, scenario: str) -> list[Point]:
        """Every point of a run that nobody interrupts, which has to be right, too."""
        with self._place() as (folder, url):
            told = self._run(Job(scenario, url, folder, None, judged=True))
            assert told is not None
            assert not told.wrong, f"{scenario!r} without a crash:\n" + "\n".join(told.wrong)
            return told.points

    def points_of(self, scenarios: Iterable[str]) -> dict[str, list[Point]]:
        names = list(scenarios)
        with ThreadPoolExecutor(AT_A_TIME) as threads:
            return dict(zip(names, threads.map(self.points, names), strict=True))

    def crash(self, case: Case) -> Outcome:
        with self._place() as (folder, url):
            killed = 0
            for point in case.points:
                if self._run(Job(case.scenario, url, folder, point, judged=False, plant=case.plant)) is None:
                    killed += 1
                    self._expire(url)
            told = self._run(Job(case.scenario, url, folder, None, judged=True, plant=case.plant))
            assert told is not None
            return Outcome(case, killed, tuple(told.wrong), tuple(told.points))

    def crash_all(self, cases: Iterable[Case], until: float = math.inf) -> Iterator[Outcome]:
        """Those that were begun by then, by `time.monotonic`."""

        def crash(case: Case) -> Outcome | None:
            return self._safely(case) if time.monotonic() < until else None

        threads = ThreadPoolExecutor(AT_A_TIME)
        try:
            yield from (outcome for outcome in threads.map(crash, cases) if outcome is not None)
        finally:  # a caller who has seen enough does not wait for the rest
            threads.shutdown(cancel_futures=True)

    def _safely(self, case: Case) -> Outcome:
        try:
            return self.crash(case)
        except (AssertionError, RuntimeError) as error:
            return Outcome(case, 0, (str(error),))

    # -- Processes -----------------------------------------------------------------------------------------------------

    def _run(self, job: Job) -> Told | None:
        """What the process told, or None if it was killed at its point."""
        for name in ("told", "failed"):
            (job.folder / name).unlink(missing_ok=True)
        process = _processes.Process(target=work, args=(job,))
        process.start()
        process.join(self._patience)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise RuntimeError(f"not over after {self._patience} s; the log:\n{_text(job.folder / 'log')}")
        code = process.exitcode
        process.close()
        return _left_behind(job, code)

    # -- Databases -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _place(self) -> Iterator[tuple[Path, str]]:
        folder = Path(tempfile.mkdtemp(prefix="tenuto-crash-"))
        try:
            if self._server is None:
                shutil.copyfile(self._template, folder / "x.db")
                yield folder, f"sqlite:///{folder}/x.db"
            else:
                with self._database(self._server) as url:
                    yield folder, url
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def _database(self, server: Server) -> Iterator[str]:
        name = f"crash_{uuid4().hex}"
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{self._template}" STRATEGY FILE_COPY')
            try:
                yield server.dsn(name)
            finally:
                connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def _expire(self, url: str) -> None:
        """The process is dead for certain: its lease, and its word that it is answering, are over now, not later."""
        if url.startswith("sqlite"):
            connection = sqlite.connect(url)
            for each in EXPIRE:
                connection.execute(each)
            connection.close()
        else:
            with psycopg.connect(url, autocommit=True) as session:
                for each in EXPIRE:
                    session.execute(each)


async def _migrate(url: str) -> None:
    store = make_store(url)
    await store.open(migrate=True)
    await store.close()


@cache
def prepared_file() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tenuto-crash-"))
    asyncio.run(_migrate(f"sqlite:///{folder}/empty.db"))
    return folder / "empty.db"


@cache
def _prepared_database(port: int) -> str:
    server = f"postgresql://postgres@127.0.0.1:{port}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute("CREATE DATABASE crash_template")
    asyncio.run(_migrate(f"{server}/crash_template"))
    return "crash_template"


def _left_behind(job: Job, code: int) -> Told | None:
    """Whoever ends by himself says so, one way or the other. Whoever is killed says nothing."""
    told, failed = job.folder / "told", job.folder / "failed"
    if told.exists():
        return msgspec.json.decode(told.read_bytes(), type=Told)
    if failed.exists() or job.point is None or code not in KILLED:
        raise RuntimeError(f"the process failed, with {code}:\n{_text(failed)}")
    return None


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else "(nothing)"
