"""Handlers and listeners for tests: they note what happens to them, and come to what a test wants."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg

from tenuto import EventContext, Handle, SagaEvents, SagaResult
from tenuto.errors import ResultTimeout
from tests.servers import sqlite

TERMINAL = ("succeeded", "failed", "canceled")

AsyncHandler = Callable[[], Awaitable[Any]]


class Stage:
    """Where handlers act. `log` is what they did, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def does(self, name: str, *outcomes: object) -> AsyncHandler:
        """Notes its name, and comes to the outcomes in turn: exceptions are raised. After the last, to its name."""
        left = deque(outcomes)

        async def act() -> Any:
            self.log.append(name)
            return _come_to(left.popleft() if left else name)

        return act

    def fails(self, name: str, error: Exception) -> AsyncHandler:
        """Notes its name, and fails every time."""

        async def fail() -> Any:
            self.log.append(name)
            raise error

        return fail

    def gate(self, name: str, *outcomes: object) -> "Gate":
        return Gate(self, name, *outcomes)

    def count(self, name: str) -> int:
        return self.log.count(name)


def _come_to(outcome: object) -> object:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class Gate:
    """A handler that a test holds up: `reached` is set when it was called, and it goes on when `opened` is set."""

    def __init__(self, stage: Stage, name: str, *outcomes: object) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        self._act = stage.does(name, *outcomes)

    async def pass_through(self) -> Any:
        self.reached.set()
        await self.opened.wait()
        return await self._act()

    def open(self) -> None:
        self.opened.set()


class ThreadGate:
    """The same for a plain `def` handler, which runs in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.reached = asyncio.Event()
        self.opened = threading.Event()
        self.calls = 0

    def pass_through(self) -> str:
        self.calls += 1
        self._loop.call_soon_threadsafe(self.reached.set)
        assert self.opened.wait(60), "nobody opened the gate"
        return "through"

    def open(self) -> None:
        self.opened.set()


class Heard(SagaEvents):
    """Notes what it is told: method, step and what matters of the rest."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.contexts: list[EventContext] = []
        self.result: SagaResult[Any] | None = None

    def _note(self, ctx: EventContext, *what: Any) -> None:
        self.contexts.append(ctx)
        self.log.append(what)

    def on_start(self, ctx: EventContext) -> None:
        self._note(ctx, "start")

    def on_step_started(self, ctx: EventContext, step_id: str, attempt: int) -> None:
        self._note(ctx, "started", step_id, attempt)

    def on_step_success(self, ctx: EventContext, step_id: str, result: Any, attempts: int, latency_ms: int) -> None:
        assert latency_ms >= 0
        self._note(ctx, "success", step_id, result, attempts)

    def on_step_retrying(
        self, ctx: EventContext, step_id: str, error: str, error_class: str, attempt: int, retry_at: Any
    ) -> None:
        self._note(ctx, "retrying", step_id, error, error_class, attempt)

    def on_step_failed(self, ctx: EventContext, step_id: str, error: str, error_class: str, attempts: int) -> None:
        self._note(ctx, "failed", step_id, error, error_class, attempts)

    def on_step_skipped_idempotent(self, ctx: EventContext, step_id: str) -> None:
        self._note(ctx, "skipped", step_id)

    def on_compensated(self, ctx: EventContext, step_id: str, result: Any) -> None:
        self._note(ctx, "compensated", step_id, result)

    def on_compensation_failed(self, ctx: EventContext, step_id: str, error: str) -> None:
        self._note(ctx, "compensation_failed", step_id, error)

    def on_circuit_open(self, ctx: EventContext, step_id: str, skipped: Any) -> None:
        self._note(ctx, "circuit_open", step_id, list(skipped))

    def on_completed(self, ctx: EventContext, result: SagaResult[Any]) -> None:
        self.result = result
        self._note(ctx, "completed", result.status)


@asynccontextmanager
async def transaction(url: str) -> AsyncIterator[Any]:
    """A connection of the caller's own to the engine's database, in a transaction. None where there is no database."""
    if url.startswith("sqlite"):
        database = sqlite.connect(url)
        try:
            with database:
                yield database
        finally:
            database.close()
    elif url.startswith("postgresql"):
        connection = await asyncpg.connect(url)
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()
    else:
        yield None


async def until(handle: Handle[Any], ready: Callable[[Any], object]) -> Any:
    """The execution's status, as soon as it is what the test waits for. It is asked in the engine's own time."""
    while True:
        document = await handle.status()
        if ready(document):
            return document
        assert document["status"] not in TERMINAL, document
        with suppress(ResultTimeout):
            await handle.result(timeout="2ms", return_when="terminal")


async def until_blocked(handle: Handle[Any], reason: str) -> Any:
    """What it says about being blocked, as soon as it is blocked for that reason."""
    document = await until(handle, lambda found: found["blocked"] and found["blocked"]["reason"] == reason)
    return document["blocked"]
