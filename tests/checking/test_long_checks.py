"""A long check beside workers that go on: every row is judged by the time at which it was read."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from tenuto import Engine, SagaBuilder
from tenuto.checker import Checker
from tenuto.checker import records as stream_records
from tenuto.checker.records import End, Page, read_database
from tenuto.storage.shared.records import ExecutionRecord
from tenuto.storage.sqlite.reader import SqliteReader
from tests.kernel.build import step
from tests.kernel.driver import given as plan
from tests.servers import sqlite

from .plants.planting import row_with
from .streams import NOW, change, found_in

HOUR = 3_600_000


def _left_behind(*, due: int, read_at: int) -> list[Struct]:
    """A worker that died wrote the history and not the row, which is due since that was noticed."""
    run = plan(step("a"), step("b"))
    run.start()
    run.succeed("a")
    records = row_with(run, owner=None, wake_at=due, seq=1)
    return change(records, Page, lambda page: msgspec.structs.replace(page, at=read_at))


async def test_what_a_worker_left_while_others_were_read_is_sound() -> None:
    assert await found_in(_left_behind(due=NOW + HOUR, read_at=NOW + HOUR)) == []


async def test_what_is_due_in_an_hour_was_not_left_behind_now() -> None:
    assert await found_in(_left_behind(due=NOW + HOUR, read_at=NOW)) == ["G4"]


async def test_what_became_late_while_others_were_read_is_late() -> None:
    assert await found_in(_left_behind(due=NOW, read_at=NOW + HOUR)) == ["V5"]


async def test_the_last_of_a_page_is_judged_by_its_own_page() -> None:
    *records, end = _left_behind(due=NOW, read_at=NOW)
    assert isinstance(end, End)
    assert await found_in([*records, Page(at=NOW + HOUR), end]) == []


class Slow(SqliteReader):
    """Each page takes an hour."""

    async def now(self) -> int:
        self._hours = getattr(self, "_hours", -1) + 1
        return await super().now() + self._hours * HOUR


@asynccontextmanager
async def _slow(path: Path) -> AsyncIterator[Slow]:
    reader = Slow(str(path))
    await reader.open()
    try:
        yield reader
    finally:
        await reader.close()


async def test_the_clock_is_asked_for_every_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two executions, a page each: each is due when its own page is read, and neither is late or too early."""
    monkeypatch.setattr(stream_records, "PAGE", 1)
    path = tmp_path / "x.db"
    async with Engine(f"sqlite:///{path}", worker=False) as engine:
        engine.register(SagaBuilder("waits").approval("ok").build())
        ids = sorted([(await engine.start("waits")).id for _ in range(2)])
    async with _slow(path) as reader:
        now = await reader.now()
        connection = sqlite.connect(f"sqlite:///{path}")
        for hours, id in enumerate(ids, 2):
            connection.execute("UPDATE executions SET wake_at = ? WHERE id = ?", (now + hours * HOUR, id))
        connection.close()
        records = [record async for record in read_database(reader, "")]
    pages = [record.at for record in records if isinstance(record, Page)]
    assert [round((at - now) / HOUR) for at in pages] == [2, 3, 4]
    assert sum(isinstance(record, ExecutionRecord) for record in records) == 2

    async def read() -> AsyncIterator[Struct]:
        for record in records:
            yield record

    assert [found.invariant async for found in Checker().findings(read())] == []
