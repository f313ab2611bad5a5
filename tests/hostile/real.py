"""The same sagas and the same outside on a real database in real time: for PostgreSQL, and for a disk that is full."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import apsw
import psycopg

from tenuto import Engine, Handle
from tenuto.errors import TenutoError
from tenuto.kernel import events as e
from tenuto.kernel.codec import decode_entries
from tenuto.views.shapes import ExecutionDocument

from .faults import QUIET, Rates
from .loop import Process, pause
from .outside import Outside
from .sagas import SAGAS
from .store import whatever_comes

SETTLE_SECONDS = 240

Shown = tuple[Handle[Any], ExecutionDocument]


class RealWorld:
    """What stores and handlers ask of a world, without its processes and its time."""

    def __init__(self, url: str, seed: int, rates: Rates) -> None:
        self.url = url
        self.rng = random.Random(seed)
        self.rates = rates
        self.outage: str | None = None
        self.mail_at_once = 1_000
        self.hostile = True
        self.pace: tuple[float, float] = (1, 30)
        self.trouble = 0.05
        self.jumps = 0
        self.knows_words = False
        self.counts: Counter[str] = Counter()
        self.broken: list[str] = []
        self.outside = Outside(self)
        self._late: set[asyncio.Task[None]] = set()
        self._reader: Any = None

    def time(self) -> float:
        return time.monotonic()

    def happens(self, share: float) -> bool:
        return self.hostile and share > 0 and self.rng.random() < share

    def happens_outside(self, share: float) -> bool:
        return share > 0 and self.rng.random() < share

    def between(self, least_ms: float, most_ms: float) -> float:
        return self.rng.uniform(least_ms, most_ms) / 10

    def shuffle(self, items: list[Any]) -> None:
        self.rng.shuffle(items)

    def sometimes(self, name: str, happened: object = True) -> None:
        self.counts[name] += bool(happened)

    def later(self, seconds: float, call: Callable[[], Awaitable[object]]) -> None:
        async def on_the_server() -> None:
            await pause(seconds)
            await whatever_comes(call)

        task = asyncio.get_running_loop().create_task(on_the_server())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    def frozen_times(self, process: Process | None) -> int:
        return 0

    def note(self, line: str) -> None:
        """Nobody reads along."""

    def fail(self, law: str, detail: str) -> None:
        self.broken.append(f"{law}: {detail}")

    @contextmanager
    def alone(self, key: str, execution: str) -> Iterator[None]:
        yield

    @contextmanager
    def among_few(self) -> Iterator[None]:
        yield

    def entries_of(self, execution: str) -> list[e.Entry]:
        query = "SELECT body FROM events WHERE execution = {} ORDER BY seq"
        if self.url.startswith("sqlite"):
            self._reader = self._reader or apsw.Connection(self.url.removeprefix("sqlite:///"))
            rows = self._reader.execute(query.format("?"), (execution,))
        else:
            self._reader = self._reader or psycopg.connect(self.url, autocommit=True)
            rows = self._reader.execute(query.format("%s"), (execution,))
        return [entry for (body,) in rows for entry in decode_entries(bytes(body))]

    # -- A run ---------------------------------------------------------------------------------------------------------

    def engine(self, url: str | None = None) -> Engine:
        engine = Engine(url or self.url, lease="30s", queues=("default", "mail"), shutdown_grace="1s")
        for saga in SAGAS:
            engine.register(saga(self.outside))
        return engine

    async def start(self, engine: Engine, number: int) -> Handle[Any]:
        """As callers do: with its key, until it is acknowledged."""
        saga = self.rng.choice(SAGAS)
        while True:
            try:
                return await engine.start(saga, number % 2, idempotency_key=f"key-{number}", tenant="t")
            except TenutoError:
                await pause(0.02)

    async def until(self, engine: Engine, handles: list[Handle[Any]], met: Callable[[], bool]) -> None:
        """More is started until everything was met that there is to meet."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while not met():
            assert time.monotonic() < deadline, "not everything was met"
            handles.append(await self.start(engine, len(handles)))
            await self._go_on(handles[-1])
            await pause(0.05)

    async def calm(self, engine: Engine, handles: list[Handle[Any]]) -> None:
        """Faults end: everything must end, or wait for a person."""
        self.hostile, self.rates, self.outage = False, QUIET, None
        deadline = time.monotonic() + SETTLE_SECONDS
        while moving := _moving([(handle, await handle.status()) for handle in handles]):
            assert time.monotonic() < deadline, f"neither end nor wait for a person: {moving}"
            for handle, _ in moving:
                await self._go_on(handle)
            await pause(0.05)
        if self._late:
            await asyncio.wait(self._late)
        if self._reader is not None:
            self._reader.close()

    async def _go_on(self, handle: Handle[Any]) -> None:
        with suppress(TenutoError):
            await handle.signal("word", "go on", id=f"{handle.id}-word")

    def check(self) -> None:
        assert self.broken == []
        outside = self.outside
        twice = [key for key, times in outside.applied.items() if outside.begun[key] and times > 1]
        assert twice == []


def _moving(found: list[Shown]) -> list[Shown]:
    """Those that have to go on by themselves: not ended, not waiting for a person, nor in line behind one that is."""
    held = {_key(document) for _, document in found if document["status"] == "waiting_approval"}
    running = [(handle, document) for handle, document in found if document["status"] in ("pending", "running")]
    return [
        (handle, document) for handle, document in running if not (_is_in_line(document) and _key(document) in held)
    ]


def _is_in_line(document: ExecutionDocument) -> bool:
    blocked = document["blocked"]
    return blocked is not None and blocked["reason"] == "concurrency_key"


def _key(document: ExecutionDocument) -> tuple[str, Any]:
    return document["definition_id"], document["input"]
