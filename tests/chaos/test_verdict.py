"""What the verdict says of runs that are known to be right or wrong."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tenuto import Engine, SagaContext
from tenuto.errors import NonRetryableError
from tests.crash.verdict import Record, record_at, settled

from .outside import Outside
from .programs import SPREAD


class Handlers:
    """The effects of a fan-out whose last step is refused. From the second run on, its first step does not end."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self.begun_again = asyncio.Event()
        self.lists = 0

    async def act(self, ctx: SagaContext) -> Any:
        if ctx.step_id == "join":
            raise NonRetryableError("refused")
        if ctx.step_id == "list":
            self.lists += 1
            if self.lists > 1:
                self.begun_again.set()
                await asyncio.Event().wait()
        self._outside.note("made", ctx.execution_id, path=ctx.path, key=ctx.idempotency_key)
        return {"more": [1, 2]}

    async def undo(self, ctx: SagaContext) -> None:
        self._outside.note("undone", ctx.execution_id, path=ctx.path, key=ctx.idempotency_key, undoes=ctx.forward_key)


@pytest.fixture
async def retried(tmp_path: Path) -> tuple[Record, Outside]:
    """A run that was undone, and a retry that was canceled before its fan-out began again."""
    url, outside = f"sqlite:///{tmp_path}/x.db", Outside(tmp_path / "effects", seed=1)
    handlers = Handlers(outside)
    async with Engine(url) as engine:
        engine.handler("act", handlers.act)
        engine.handler("undo", handlers.undo)
        await engine.apply(SPREAD)
        handle = await engine.start("spread", {})
        assert (await handle.result()).status == "failed"
        await handle.retry(reason="mended")
        await handlers.begun_again.wait()
        await handle.cancel("terminate")
        await handle.result()
    return await record_at(url), outside


async def test_what_an_earlier_run_undid_is_no_contradiction(retried: tuple[Record, Outside]) -> None:
    record, outside = retried
    assert {row.path: (row.generation, row.undo) for row in record.steps if row.path.startswith("each")} == {
        "each#0": (2, ""),
        "each#1": (2, ""),
    }
    assert len(outside.lines("undone")) == 3
    assert settled(record, outside, lost=True) == []


async def test_an_undo_that_the_record_does_not_have_is_found(retried: tuple[Record, Outside]) -> None:
    record, outside = retried
    (last,) = [row for row in record.attempts.values() if row.path == "list" and row.phase == "forward"][1:]
    outside.note("made", last.execution, path="list", key=last.key)
    outside.note("undone", last.execution, path="list", key="any", undoes=last.key)
    assert settled(record, outside, lost=True) == ["list was undone, and is recorded as not undone"]
