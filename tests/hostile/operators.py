"""The person who looks after things when all is quiet: resumes, decides, answers; and sees what nobody looks after."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import apsw

from tenuto import Engine
from tenuto.errors import TenutoError
from tenuto.kernel.events import Resolution

from .loop import Process, pause
from .overdue import PATIENCE_SECONDS

if TYPE_CHECKING:
    from .world import World


_WORDS: tuple[Resolution, ...] = ("completed", "retry", "not_completed")


class Row(NamedTuple):
    id: str
    definition: str
    status: str
    owner: str | None
    wake_at: int | None
    parked: str
    ended_at: int | None
    reviews: int


class Operator:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.process = Process("operator")
        self.engine: Engine | None = None
        self.leaves = False
        self._reader = apsw.Connection(world.path, flags=apsw.SQLITE_OPEN_READONLY)

    def rows(self) -> list[Row]:
        query = (
            "SELECT id, definition, status, owner, wake_at, parked, ended_at, (SELECT count(*) FROM reviews r "
            "WHERE r.execution = e.id AND r.resolution IS NULL) FROM executions e ORDER BY id"
        )
        return [Row(*row) for row in self._reader.execute(query)]

    def is_over(self) -> bool:
        """Whether every execution has ended or waits for a person; every letter is read, and every message has left."""
        over = all(
            row.ended_at is not None or (row.status == "waiting_approval" and row.reviews) for row in self.rows()
        )
        waiting = self._reader.execute("SELECT count(*) FROM outbox WHERE published_at IS NULL").get
        unread = self._reader.execute("SELECT count(*) FROM mailbox WHERE verdict IS NULL").get
        return over and not waiting and not unread

    def what_is_left(self, driving: list["asyncio.Task[None]"]) -> str:
        left = [row for row in self.rows() if row.ended_at is None]
        messages = list(self._reader.execute("SELECT execution, seq FROM outbox WHERE published_at IS NULL"))
        clients = [task.done() for task in driving]
        return f"{left}; clients done {clients}; messages {messages}; now {self.world.database_now()}"

    async def run(self) -> None:
        world = self.world
        self.engine = world.engine(worker=False)
        await self.engine.__aenter__()
        if world.passers:  # whoever looks after everything at once hides what nobody else looks after
            await pause(PATIENCE_SECONDS + 15)
        while not (self.leaves and self.is_over()):
            await pause(1)
            for row in self.rows():
                if row.ended_at is None:
                    with suppress(TenutoError):
                        await self._look_after(self.engine, row)

    async def _look_after(self, engine: Engine, row: Row) -> None:
        world = self.world
        handle = engine.get(row.id)
        if row.status == "paused":
            await handle.resume()
        if row.definition.endswith("ask") and world.rng.random() < 0.5:
            await handle.signal("word", "from the operator", id=f"{row.id}-operator")
        if row.definition.endswith("mailed"):
            await handle.signal("word", "from the operator", id=f"{row.id}-operator-{world.rng.randrange(4)}")
        if row.reviews and world.rng.random() < 0.5:
            async for review in engine.reviews():
                if review["execution_id"] == row.id:
                    await self._decide(engine, row.id, review["id"], review["kind"])

    async def _decide(self, engine: Engine, execution: str, review: str, kind: str) -> None:
        world = self.world
        if kind == "approval":
            await engine.resolve(review, world.rng.choice(("approved", "approved", "rejected")))
        elif kind == "indeterminate":
            word = world.rng.choice(_WORDS)
            if word != "completed":
                world.outside.may_repeat[execution] += 1
            await engine.resolve(review, word, reason="asked")
        elif kind == "compensation":
            await engine.resolve(review, "compensate", reason="asked")
        elif kind == "compensation_failed":
            world.outside.may_repeat[execution] += 1
            await engine.resolve(review, "retry", reason="asked")

    async def close(self) -> None:
        if self.engine is not None:
            await self.engine.close()
        self._reader.close()
