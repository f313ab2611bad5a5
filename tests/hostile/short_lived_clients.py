"""Passers-by: they send a few commands at once, and most do not live to hear the answers.

A caller who waits for a verdict goes and reads the mail itself, if nobody else does. What a dead one left has to be
found by whoever is there.
"""

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from tenuto import Handle
from tenuto.errors import TenutoError

from .loop import Process, pause

if TYPE_CHECKING:
    from .world import World

LATEST = 1.5  # times as long as the hostile phase
WORDS = ("signal", "signal", "pause", "resume", "pause", "resume", "read")


class Passer:
    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.rng = Random(f"passer {world.seed} {number}")
        self.process = Process(f"p{number}")

    async def run(self) -> None:
        """Comes by at some time, also when everything else is quiet: that people go away is no fault."""
        world = self.world
        await pause(self.rng.uniform(1, world.hostile_seconds * LATEST))
        known = [id for client in world.clients for id in client.started.values()]
        engine = await world.opened(worker=False)
        if known:
            await self._speak(engine.get(self.rng.choice(known)))
        with suppress(TenutoError):
            await engine.close()

    async def _speak(self, handle: Handle[Any]) -> None:
        words = [self.rng.choice(WORDS) for _ in range(self.rng.choice((1, 3, 6)))]
        if self.rng.random() < 0.7:
            self.world.letters_left[self.process] = self.rng.randint(1, len(words))
        await asyncio.gather(*(self._say(handle, number, word) for number, word in enumerate(words)))

    async def _say(self, handle: Handle[Any], number: int, word: str) -> None:
        await pause(self.rng.uniform(0, self.rng.choice((0.05, 1.0))))
        with suppress(TenutoError):
            match word:
                case "signal":
                    await handle.signal("word", number, id=f"{handle.id}-{self.process}-{number}")
                case "pause":
                    await handle.pause()
                case "resume":
                    await handle.resume()
                case _:
                    await handle.status()
