"""Copies of a SQLite file and its log, taken while they are written: what a crash of the machine may leave on the disk.

While a copy is taken, a reader holds its place. So nobody begins the log anew under it, and whatever a checkpoint moves
into the file meanwhile is in the log as well. What is torn in the copy is torn as a crash tears it.
"""

import asyncio
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import apsw

from tenuto import Engine
from tests.crash.verdict import Record, begun_once, findings_at, made_once, record_at

from .outside import Outside
from .places import BUSY_MS, OPEN, UNDECIDED, File, ask
from .programs import DOCUMENTS, QUEUE
from .roles import LOOK_AGAIN_S, People

LEASE = "2s"
PATIENCE_S = 300.0
LONG_AGO_MS = 24 * 3_600_000  # nobody was there since it was taken: it is not late for that


class Image(NamedTuple):
    folder: Path
    taken_at: float
    taken_by: float

    @property
    def file(self) -> File:
        return File(self.folder / "x.db")


def take(file: Path, folder: Path) -> Image:
    folder.mkdir()
    taken_at = time.monotonic()
    connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(BUSY_MS)
    try:
        connection.execute("BEGIN; SELECT count(*) FROM sessions").fetchall()
        for name in (file.name, f"{file.name}-wal"):
            source = file.with_name(name)
            if source.exists():
                shutil.copyfile(source, folder / name)
    finally:
        connection.close()
    return Image(folder, taken_at, time.monotonic())


async def finish(image: Image, effects: Path, seed: int) -> list[str]:
    """Somebody else goes on from the copy, to the end of everything in it. Gives what is wrong."""
    url = image.file.url
    wrong = [f"before it was opened: {line}" for line in await findings_at(url, slack_ms=LONG_AGO_MS)]
    outside = Outside(image.folder / "effects", seed, before=effects, cut=image.taken_by)
    wrong += await _to_the_end(image, outside, seed)
    record = await record_at(url)
    wrong += await findings_at(url)
    wrong += _lost(record, image, Outside(effects, seed))
    wrong += made_once(record, outside.lines("made")) + begun_once(record, outside.lines("began"))
    return wrong


async def _to_the_end(image: Image, outside: Outside, seed: int) -> list[str]:
    give_up_at = time.monotonic() + PATIENCE_S
    async with Engine(image.file.url, lease=LEASE, queues=("default", QUEUE)) as engine:
        outside.provide(engine)
        for document in DOCUMENTS:
            await engine.apply(document)
        people = People(engine, outside, seed)
        while left := ask(image.file, OPEN) + ask(image.file, UNDECIDED):
            await people.look_round()
            if time.monotonic() > give_up_at:
                return [f"{left} have not ended after {PATIENCE_S:.0f} s"]
            await asyncio.sleep(LOOK_AGAIN_S)
    return []


def _lost(record: Record, image: Image, original: Outside) -> list[str]:
    known = [line["x"] for line in original.lines("acknowledged") if line["t"] < image.taken_at]
    lost = [x for x in known if x not in record.executions]
    return [f"execution {x} was acknowledged before the copy, and is not in it" for x in lost]
