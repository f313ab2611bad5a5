"""Images of the disk, taken while it is written to, and what becomes of each."""

import asyncio
import json
import time
from pathlib import Path
from random import Random
from typing import NamedTuple

from tenuto import Engine
from tests.chaos.outside import Outside
from tests.chaos.places import OPEN, UNDECIDED, File, ask
from tests.chaos.programs import DOCUMENTS, QUEUE
from tests.chaos.roles import LOOK_AGAIN_S, People
from tests.chaos.verdict import judge
from tests.crash.verdict import Record, findings_at

from .disk import MODES, Disk, Mode, What

FILE = "x.db"
LEASE = "2s"
PATIENCE_S = 300.0
LONG_AGO_MS = 24 * 3_600_000  # nobody was there since the cut: it is not late for that
# How likely a cut is right before. What happens seldom is cut more often.
CHANCES: dict[What, float] = {"write": 0.02, "sync": 0.2, "shorten": 0.5, "make": 0.5, "delete": 0.5}


class Image(NamedTuple):
    folder: Path
    taken_at: float
    mode: Mode
    before: What


class Camera:
    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._random = Random(f"power {seed}")
        self.images: list[Image] = []

    def look(self, disk: Disk, what: What) -> None:
        rng = self._random
        if rng.random() < CHANCES[what]:
            mode = rng.choice(MODES)
            folder = self._folder / f"image{len(self.images)}"
            folder.mkdir()
            self.images.append(Image(folder, time.monotonic(), mode, what))
            for name, content in disk.after_a_cut(mode, rng).items():
                (folder / name).write_bytes(content)


async def finish(image: Image, original: Outside, seed: int) -> list[str]:
    """Somebody goes on after the cut, to the end of everything that is on the disk. Gives what is wrong."""
    url = f"sqlite:///{image.folder / FILE}"
    outside = _until_the_cut(image, original, seed)
    known = outside.lines()
    wrong = []
    if known:  # else the power was gone before there was a schema, perhaps
        wrong = [f"before it was opened: {line}" for line in await findings_at(url, slack_ms=LONG_AGO_MS)]
    wrong += await _to_the_end(image, outside, seed)
    found, record = await judge(url, outside)
    wrong += found + _told(record, outside)
    return [f"{image.folder.name}, of what was not synced {image.mode}, before {image.before}: {w}" for w in wrong]


def _until_the_cut(image: Image, original: Outside, seed: int) -> Outside:
    """What happened outside before it; what came later belongs to another future."""
    folder = image.folder / "effects"
    folder.mkdir()
    for file in original.folder.iterdir():
        lines = [line for line in file.read_text().splitlines() if json.loads(line)["t"] < image.taken_at]
        (folder / file.name).write_text("".join(f"{line}\n" for line in lines))
    return Outside(folder, seed)


async def _to_the_end(image: Image, outside: Outside, seed: int) -> list[str]:
    give_up_at = time.monotonic() + PATIENCE_S
    file = File(image.folder / FILE)
    async with Engine(file.url, lease=LEASE, queues=("default", QUEUE)) as engine:
        outside.provide(engine)
        for document in DOCUMENTS:
            await engine.apply(document)
        people = People(engine, outside, seed)
        while left := ask(file, OPEN) + ask(file, UNDECIDED):
            await people.look_round()
            if time.monotonic() > give_up_at:
                return [f"{left} have not ended after {PATIENCE_S:.0f} s"]
            await asyncio.sleep(LOOK_AGAIN_S)
    return []


def _told(record: Record, outside: Outside) -> list[str]:
    """A caller must find the end it was given: as the end of the execution, or of a run that was retried since."""
    ends = {(row.execution, row.status) for row in record.runs}
    return [
        f"{line['x']} was reported as {line['status']}, and no run of it ended so"
        for line in outside.lines("told")
        if (line["x"], line["status"]) not in ends
    ]
