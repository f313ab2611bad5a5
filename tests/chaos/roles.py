"""The processes: workers, submitters, people. Each can be killed at any time, and begins again where it was."""

import asyncio
import logging
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tenuto import Engine
from tenuto.api.stop_signals import stopping
from tenuto.errors import InvalidTransition, NotFound, StorageError
from tenuto.kernel.definition import CancelMode

from .outside import Outside
from .programs import DOCUMENTS, QUEUE, program_of

PASSING = ("unreachable", "busy", "outcome_unknown")  # what a caller asks again after
AT_ONCE = 8
LOOK_AGAIN_S = 0.1

Play = Callable[["Role"], Coroutine[Any, Any, None]]


class Role(NamedTuple):
    """What a process is told."""

    play: str
    name: str
    url: str
    folder: Path
    seed: int
    lease: str
    rate: float = 0.0  # executions a second

    @property
    def outside(self) -> Outside:
        return Outside(self.folder / "effects", self.seed)


def perform(role: Role) -> None:
    """Ends with 0 when it was asked to, with 1 and a note when it could not go on."""
    logging.getLogger().addHandler(logging.NullHandler())  # outages are told of, at length
    try:
        asyncio.run(PLAYS[role.play](role))
    except BaseException:
        (role.folder / f"failed-{role.name}").write_text(traceback.format_exc())
        raise SystemExit(1) from None


async def opened(role: Role, *, worker: bool) -> Engine:
    while True:
        engine = Engine(role.url, worker=worker, lease=role.lease, queues=("default", QUEUE), shutdown_grace="5s")
        try:
            await engine.__aenter__()
            role.outside.provide(engine)
            for document in DOCUMENTS:
                await engine.apply(document)
            return engine
        except StorageError as error:
            await engine.close()
            if error.code not in PASSING:
                raise
        await asyncio.sleep(LOOK_AGAIN_S)


async def work(role: Role) -> None:
    engine = await opened(role, worker=True)
    await engine.serve_forever()


# -- Submitters --------------------------------------------------------------------------------------------------------


async def submit(role: Role) -> None:
    """Starts executions with keys. What it was not told, it asks again: the same key is the same execution."""
    outside = role.outside
    engine = await opened(role, worker=False)
    number = sum(line["key"].startswith(f"{role.name}-") for line in outside.lines("acknowledged"))
    with stopping() as stop:
        while not stop.is_set():
            some = range(max(0, number - AT_ONCE), number + AT_ONCE)  # some of which it may have started before
            await asyncio.gather(*(_start(engine, outside, role.name, n) for n in some))
            number = some.stop
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), AT_ONCE / role.rate)
    await engine.close()


async def _start(engine: Engine, outside: Outside, who: str, number: int) -> None:
    key = f"{who}-{number}"
    while True:
        try:
            handle = await engine.start(program_of(number), {"n": number}, idempotency_key=key)
        except StorageError as error:
            if error.code not in PASSING:
                raise
            await asyncio.sleep(LOOK_AGAIN_S)
        else:
            outside.note("acknowledged", handle.id, key=key)
            return


# -- People ------------------------------------------------------------------------------------------------------------


async def decide(role: Role) -> None:
    engine = await opened(role, worker=False)
    with stopping() as stop:
        people = People(engine, role.outside, role.seed, stop)
        while not stop.is_set():
            await people.look_round(whims=0.3 if role.rate else 0.0)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_AGAIN_S)
    await engine.close()


class People:
    """They answer everything that waits for them, looking at what really happened; and have whims."""

    def __init__(self, engine: Engine, outside: Outside, seed: int, stop: asyncio.Event | None = None) -> None:
        self._engine = engine
        self._stop = stop or asyncio.Event()
        self._outside = outside
        self._random = Random(f"{seed} people")

    async def look_round(self, *, whims: float = 0.0) -> None:
        try:
            await self._resume()
            await self._answer()
            await self._signal()
            if self._random.random() < whims:
                await self._have_a_whim()
        except StorageError as error:
            if error.code not in PASSING:
                raise

    async def _resume(self) -> None:
        async for found in self._engine.summaries(status="paused"):
            await self._tell(self._engine.get(found["execution_id"]).resume())

    async def _answer(self) -> None:
        async for review in self._engine.reviews():
            if review["kind"] == "dead_letter":
                continue
            await self._tell(self._engine.resolve(review["id"], self._word(review), reason="looked at"))
        async for letter in self._engine.dlq():
            word: Any = "retry" if self._random.random() < 0.3 else "dismiss"
            await self._tell(self._engine.resolve(letter["id"], word, reason="looked at"))

    def _word(self, review: Any) -> Any:
        match review["kind"]:
            case "approval":
                return "approved" if self._random.random() < 0.9 else "rejected"
            case "indeterminate":
                made = self._made_by(review["execution_id"], review["step_id"])
                return "completed" if made else "not_completed"
            case "compensation" | "compensation_failed":
                return "compensate"
            case _:
                return "dismiss"

    def _made_by(self, x: str, step: str) -> bool:
        made = [line for line in self._outside.lines_of(x) if line["what"] == "made" and line["path"] == step]
        return any(self._outside.is_made(x, line["key"]) for line in made)

    async def _signal(self) -> None:
        async for found in self._engine.summaries(status="running", definition="signalled"):
            await self._tell(self._engine.get(found["execution_id"]).signal("answered", id="only"))

    async def _have_a_whim(self) -> None:
        running = [found async for found in self._engine.summaries(status="running")]
        if not running:
            return
        found = self._random.choice(running)
        handle = self._engine.get(found["execution_id"])
        if self._random.random() < 0.5:
            await self._tell(handle.pause(reason="a whim"))
            return
        modes: tuple[CancelMode, ...] = ("drain", "compensate")
        if found["definition_id"] == "signalled":  # it has nothing to undo that a hard end would leave half undone
            modes = (*modes, "terminate")
        await self._tell(handle.cancel(self._random.choice(modes), reason="a whim"))

    async def _tell(self, command: Coroutine[Any, Any, None]) -> None:
        if self._stop.is_set():
            command.close()
            return
        with suppress(InvalidTransition, NotFound):  # it went on meanwhile, or was told before
            await command


PLAYS: dict[str, Play] = {"work": work, "submit": submit, "decide": decide}
