"""The outside: handlers that leave a line for everything they do, in a file that outlives their process.

One write appends one line, so what was done can be told when the process is gone. A handler behaves by a script: a word
for each time that it is called under one key, whichever process calls it.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from tenuto import Done, Engine, NotDone, Outcome, SagaContext
from tenuto.errors import (
    CompensationRequiredError,
    IndeterminateError,
    NonRetryableError,
    StepError,
    TransientError,
)
from tenuto.handlers.sent import send_once
from tenuto.views.messages import Message
from tests.seams import runtime_of

ERRORS: dict[str, type[StepError]] = {
    "transient": TransientError,
    "refused": NonRetryableError,
    "review": CompensationRequiredError,
    "unknown": IndeterminateError,
}

TURNS = 20


class World:
    def __init__(self, log: Path) -> None:
        self.log = log

    def note(self, what: str, **fields: Any) -> None:
        line = json.dumps({"what": what, "pid": os.getpid(), **fields}) + "\n"
        handle = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, line.encode())
        os.close(handle)

    def lines(self, *what: str) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if not what or line["what"] in what]

    def count(self, what: str, key: str) -> int:
        return sum(line["key"] == key for line in self.lines(what))

    def is_made(self, forward_key: str) -> bool:
        return self.count("made", forward_key) > self._undone(forward_key)

    def _undone(self, forward_key: str) -> int:
        return sum(line["undoes"] == forward_key for line in self.lines("undone"))

    # -- Handlers ------------------------------------------------------------------------------------------------------

    def provide(self, engine: Engine) -> None:
        for name in ("act", "undo", "guard", "find", "send", "plan", "notify"):
            engine.handler(name, getattr(self, name))
        self._notices = runtime_of(engine).notices

    def _call(self, ctx: SagaContext, what: str, script: Any) -> str:
        nth = self.count(what, ctx.idempotency_key)
        self.note(what, x=ctx.execution_id, path=ctx.path, number=ctx.attempt, key=ctx.idempotency_key)
        words = script if isinstance(script, list) else ["ok"]
        word: str = words[min(nth, len(words) - 1)]
        return word

    async def _dwell(self) -> None:
        """Long enough for another to begin, if nothing keeps it."""
        for _ in range(TURNS):
            await asyncio.to_thread(lambda: None)

    async def act(self, given: Any, ctx: SagaContext) -> Any:
        script = given.get("script") if isinstance(given, dict) else None
        word = self._call(ctx, "began", script)
        before, _, error = word.partition(" ")
        if before == "dwells":
            await self._dwell()
            before = "ok"
        if before in ("ok", "made"):
            self.note("made", x=ctx.execution_id, path=ctx.path, key=ctx.idempotency_key)
        if before == "ok":
            return {"path": ctx.path, "more": given.get("gives") if isinstance(given, dict) else None}
        if (error or before) == "hangs":
            await asyncio.Event().wait()
        raise ERRORS[error or before](word)

    async def undo(self, given: Any, ctx: SagaContext) -> None:
        script = given.get("script") if isinstance(given, dict) else None
        word = self._call(ctx, "undoing", script)
        if word == "dwells":
            await self._dwell()
        elif word != "ok":
            raise ERRORS[word](word)
        self.note("undone", x=ctx.execution_id, path=ctx.path, key=ctx.idempotency_key, undoes=ctx.forward_key)

    async def guard(self, ctx: SagaContext) -> Outcome[Any]:
        self._call(ctx, "asked", None)
        return Done({"path": ctx.path, "more": None}) if self.is_made(ctx.forward_key) else NotDone()

    async def find(self, ctx: SagaContext) -> Outcome[Any]:
        return await self.guard(ctx)

    async def send(self, given: Any, ctx: SagaContext) -> None:
        """A directive for somebody outside, who answers it by its lease."""
        lease = ctx.lease_id
        self.note("sent", x=ctx.execution_id, path=ctx.path, number=ctx.attempt, key=ctx.idempotency_key, lease=lease)

    async def notify(self, ctx: SagaContext) -> Any:
        """A notification, sent once: what was taken is noted between the two rows about it."""
        self._call(ctx, "began", None)

        async def send() -> str:
            self.note("made", x=ctx.execution_id, path=ctx.path, key=ctx.idempotency_key)
            return "taken"

        return await send_once(self._notices, ctx, "test", send)

    async def publish(self, message: Message) -> None:
        self.note("published", x=message.execution_id, id=message.id, kind=message.kind, seq=message.seq)

    async def plan(self, ctx: SagaContext) -> Any:
        """Two steps, of which the first has to be tried again. Asked a second time, it says the same."""
        with_undo = {"compensation_handler": "undo", "compensation_with": {"script": ["ok"]}}
        step = {"type": "task", "handler": "act", "idempotency_strategy": "SAFE_TO_RETRY", **with_undo}
        retry = {"max_attempts": 5, "initial_delay_ms": 5, "jitter": 0}
        scripts = {"m": ["transient", "ok"], "n": ["ok"]}
        return [
            {**step, "step_id": id, "with": {"script": script}, "retry_policy": retry} for id, script in scripts.items()
        ]
