"""One run: executions on the disk that may lose power, an engine that is closed and opened again; then every image."""

import asyncio
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

from tenuto import Engine
from tenuto.errors import EngineClosed
from tests.chaos.outside import Outside
from tests.chaos.places import OPEN, UNDECIDED, File, ask
from tests.chaos.programs import DOCUMENTS, QUEUE, program_of
from tests.chaos.roles import LOOK_AGAIN_S, People
from tests.seams import sqlite_store_of

from .disk import Disk
from .images import FILE, LEASE, Camera, Image, finish
from .vfs import in_place

AT_ONCE = 4  # images that are finished side by side
ENGINES = 3  # one after the other
EACH_STARTS = 6
ROUNDS = 10  # of people, before an engine is closed with things under way


class Run:
    """`waits` is `PRAGMA synchronous`: with less than FULL the disk is waited for less often, which must be seen."""

    def __init__(self, seed: int, *, images: int, waits: str = "FULL") -> None:
        self.seed = seed
        self.most = images
        self.waits = waits
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()

    def play(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="tenuto-power-"))
        try:
            asyncio.run(self._play(folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _play(self, folder: Path) -> None:
        (folder / "disk").mkdir()
        outside = Outside(folder / "effects", self.seed)
        camera = Camera(folder, self.seed)
        with in_place(Disk(camera.look), folder / "disk"):
            for number in range(ENGINES):
                await self._work(File(folder / "disk" / FILE), outside, number)
        self._count(outside)
        images = camera.images
        chosen = Random(f"chosen {self.seed}").sample(images, min(self.most, len(images)))
        turns = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self._finish(image, outside, turns) for image in chosen))

    async def _work(self, file: File, outside: Outside, number: int) -> None:
        async with Engine(file.url, lease=LEASE, queues=("default", QUEUE), shutdown_grace="50ms") as engine:
            await self._tune(engine)
            outside.provide(engine)
            for document in DOCUMENTS:
                await engine.apply(document)
            starts = range(number * EACH_STARTS, (number + 1) * EACH_STARTS)
            listening = [asyncio.create_task(_start(engine, outside, start)) for start in starts]
            people = People(engine, outside, self.seed)
            rounds = 0
            while rounds < ROUNDS or (number == ENGINES - 1 and _is_left(file, listening)):
                await people.look_round()
                await asyncio.sleep(LOOK_AGAIN_S)
                rounds += 1
        for task in listening:
            task.cancel()
        for came in await asyncio.gather(*listening, return_exceptions=True):
            if isinstance(came, Exception) and not isinstance(came, EngineClosed):
                raise came

    async def _tune(self, engine: Engine) -> None:
        """Checkpoints come after thousands of pages; here they come all the time."""
        pages = Random(f"pages {self.seed}").choice((5, 40, 400))
        await sqlite_store_of(engine).database.run(f"PRAGMA wal_autocheckpoint = {pages}", ())
        await sqlite_store_of(engine).database.run(f"PRAGMA synchronous = {self.waits}", ())

    async def _finish(self, image: Image, outside: Outside, turns: asyncio.Semaphore) -> None:
        async with turns:
            self.wrong += await finish(image, outside, self.seed)
        self.counts["images"] += 1
        self.counts[f"of what was not synced, {image.mode}"] += 1
        self.counts[f"before {image.before}"] += 1

    def _count(self, outside: Outside) -> None:
        self.counts["executions"] += len(outside.lines("acknowledged"))
        self.counts["effects"] += len(outside.lines("made"))


def _is_left(file: File, listening: list["asyncio.Task[None]"]) -> bool:
    return not all(task.done() for task in listening) or ask(file, OPEN) + ask(file, UNDECIDED) > 0


async def _start(engine: Engine, outside: Outside, number: int) -> None:
    """What a caller was told before the power went is what it must find afterwards."""
    key = f"caller-{number}"
    handle = await engine.start(program_of(number), {"n": number}, idempotency_key=key)
    outside.note("acknowledged", handle.id, key=key)
    result = await handle.result(return_when="terminal")
    outside.note("told", handle.id, status=result.status)
