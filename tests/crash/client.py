"""Who uses the engine in a scenario. It can be run again from its beginning: what it did before, it finds done."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tenuto import Engine, Handle
from tenuto.errors import InvalidTransition, NotFound, ResultTimeout

from .world import World

TERMINAL = ("succeeded", "failed", "canceled")


class Client:
    def __init__(self, engine: Engine, world: World, name: str) -> None:
        self.engine = engine
        self.world = world
        self.name = name

    async def start(self, key: str = "k", input: Any = None, **options: Any) -> Handle[Any]:
        handle = await self.engine.start(self.name, input, idempotency_key=key, **options)
        self.world.note("acknowledged", x=handle.id, key=key)
        return handle

    async def until(self, handle: Handle[Any], ready: Callable[[Any], object]) -> Any:
        """Its status, as soon as it is what is waited for, or it is over."""
        while True:
            document = await handle.status()
            if document["status"] in TERMINAL or ready(document):
                return document
            with suppress(ResultTimeout):
                await handle.result(timeout="10ms", return_when="terminal")

    async def blocked(self, handle: Handle[Any], reason: str) -> Any:
        return await self.until(handle, lambda found: found["blocked"] and found["blocked"]["reason"] == reason)

    async def until_began(self, path: str, times: int = 1) -> None:
        """Until a handler was called, by anybody."""
        handle = await self.start()
        await self.until(handle, lambda _: sum(line["path"] == path for line in self.world.lines("began")) >= times)

    async def finish(self, *handles: Handle[Any]) -> None:
        """Until all of them are over. Whatever waits for a person gets one, who looks at what really happened."""
        for handle in handles:
            while not await self.is_over(handle):
                async for review in self.engine.reviews():
                    if review["execution_id"] == handle.id and review["kind"] != "dead_letter":
                        await self.decide(review)

    async def is_over(self, handle: Handle[Any]) -> bool:
        """Over, or waiting for a person. What the letter of a caller who was killed pauses, late, is resumed."""
        while True:
            with suppress(ResultTimeout):
                return (await handle.result(timeout="1s")).status in TERMINAL
            if (await handle.status())["status"] == "paused":
                await self.command(handle.resume())

    async def decide(self, review: Any) -> None:
        word = self._word(review)
        with suppress(InvalidTransition, NotFound):  # decided before, by the one who was killed
            await self.engine.resolve(review["id"], word, reason="asked")

    def _word(self, review: Any) -> Any:
        match review["kind"]:
            case "approval":
                return "approved"
            case "indeterminate":
                return "completed" if self._was_made(review) else "not_completed"
            case "compensation" | "compensation_failed":
                return "compensate"
            case "escalation":
                return "retry"
            case _:
                return "dismiss"

    def _was_made(self, review: Any) -> bool:
        made = [line for line in self.world.lines("made") if line["x"] == review["execution_id"]]
        return any(line["path"] == review["step_id"] for line in made)

    async def pause(self) -> None:
        """Lets others have a turn."""
        await asyncio.to_thread(lambda: None)

    async def command(self, call: Any) -> None:
        """What may have been done already is not done again: the engine says so, and that is as good."""
        with suppress(InvalidTransition):
            await call
