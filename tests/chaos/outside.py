"""The outside: one line for everything that handlers do, appended to files that outlive every process.

An execution's lines are in one of a few files, so that whoever looks something up reads little. Time is the machine's
monotonic clock, which all processes share.
"""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

from tenuto import Done, Engine, NotDone, Outcome, SagaContext
from tenuto.errors import IndeterminateError, NonRetryableError, TransientError

FILES = 64
LONGEST_S = 0.15  # of a handler
LATE_S = 0.5

Line = dict[str, Any]


class Outside:
    """`before` has what happened until `cut`, for those who go on from a copy that was taken then."""

    def __init__(self, folder: Path, seed: int, before: Path | None = None, cut: float = 0.0) -> None:
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self._seed = seed
        self._before = before
        self._cut = cut
        self._calls = count()

    def note(self, what: str, x: str, **fields: Any) -> None:
        line = json.dumps({"what": what, "t": time.monotonic(), "pid": os.getpid(), "x": x, **fields}) + "\n"
        handle = os.open(self._file(self.folder, x), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, line.encode())
        os.close(handle)

    def lines(self, *what: str) -> list[Line]:
        found = [line for file in sorted(self.folder.iterdir()) for line in _read(file)]
        return sorted((line for line in found if not what or line["what"] in what), key=lambda line: float(line["t"]))

    def is_made(self, x: str, key: str) -> bool:
        """Whether an effect was made under this key, and not undone since."""
        made = False
        for line in self.lines_of(x):
            if line["what"] == "made" and line["key"] == key:
                made = True
            elif line["what"] == "undone" and line["undoes"] == key:  # perhaps for the second time
                made = False
        return made

    def lines_of(self, x: str) -> list[Line]:
        before = _read(self._file(self._before, x)) if self._before is not None else ()
        lines = [*(line for line in before if line["t"] < self._cut), *_read(self._file(self.folder, x))]
        return [line for line in lines if line["x"] == x]

    def _file(self, folder: Path, x: str) -> Path:
        return folder / f"{crc32(x.encode()) % FILES:02}"

    # -- Handlers ------------------------------------------------------------------------------------------------------

    def provide(self, engine: Engine) -> None:
        for name in ("act", "undo", "guard", "find"):
            engine.handler(name, getattr(self, name))

    async def act(self, given: Any, ctx: SagaContext) -> Any:
        odds = self._rng(ctx)
        self._call("began", ctx)
        await asyncio.sleep(odds.uniform(0, LONGEST_S))
        if odds.random() < given["stumbles"]:
            raise TransientError("stumbled")
        if Random(f"{self._seed} {ctx.idempotency_key}").random() < given["refuses"]:
            raise NonRetryableError("refused")
        if ctx.deadline is not None and datetime.now(UTC) > ctx.deadline:  # a client that gave the request up
            raise TransientError("too late")
        self.note("made", ctx.execution_id, path=ctx.path, key=ctx.idempotency_key)
        if odds.random() < given["forgets"]:
            raise IndeterminateError("no answer")
        return {"more": given["gives"]}

    async def undo(self, ctx: SagaContext) -> None:
        odds = self._rng(ctx)
        self._call("undoing", ctx)
        await asyncio.sleep(odds.uniform(0, LONGEST_S))
        self.note("undone", ctx.execution_id, path=ctx.path, key=ctx.idempotency_key, undoes=ctx.forward_key)

    async def guard(self, ctx: SagaContext) -> Outcome[Any]:
        self._call("asked", ctx)
        return Done({"more": None}) if self.is_made(ctx.execution_id, ctx.forward_key) else NotDone()

    async def find(self, ctx: SagaContext) -> Outcome[Any]:
        return await self.guard(ctx)

    def _call(self, what: str, ctx: SagaContext) -> None:
        self.note(what, ctx.execution_id, path=ctx.path, number=ctx.attempt, key=ctx.idempotency_key)

    def _rng(self, ctx: SagaContext) -> Random:
        return Random(f"{self._seed} {ctx.idempotency_key} {ctx.attempt} {next(self._calls)}")


def _read(file: Path) -> Iterator[Line]:
    """In the order in which they were written. `late`: by a process that was frozen between thought and deed."""
    latest = 0.0
    for text in file.read_text().splitlines() if file.exists() else ():
        line: Line = json.loads(text)
        line["late"] = line["t"] < latest - LATE_S
        latest = max(latest, line["t"])
        yield line
