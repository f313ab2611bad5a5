"""SQLite stores of simulated processes: inline, on one file, with the world's clock, and renewals without threads."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tenuto.storage.port import EVERYTHING, Batch, Committed, Hints, Renewal
from tenuto.storage.sqlite.store import SqliteStore

from .late_task_reports import Words
from .loop import PROCESS, pause
from .store import HostileMailbox, HostileStore, Part

if TYPE_CHECKING:
    from .world import World

HEARD_SECONDS = 0.005
LOOKS = 200  # for the worst moment, one after the other
LOOK_SECONDS = 0.05
_RENEW = "UPDATE sessions SET expires_at = ? WHERE id = ? AND ended_at IS NULL"


class SimulatedStore(HostileStore):
    world: "World"

    def __init__(self, world: "World") -> None:
        self.inner = SqliteStore(world.path, synchronous="OFF", clock=world.database_now)
        super().__init__(self.inner, world)
        self.world = world
        self.renewing: dict[str, tuple[Callable[[Renewal], None], threading.Event]] = {}
        self.registered: dict[str, threading.Event] = {}
        self._hear: Callable[[Hints], None] | None = None

    @property
    def tasks(self) -> Part:
        return (Words if self.world.knows_words else Part)(self.inner.tasks, self)

    @property
    def sessions(self) -> "SimulatedSessions":
        return SimulatedSessions(self.inner.sessions, self)

    @property
    def mailbox(self) -> "SimulatedMailbox":
        return SimulatedMailbox(self.inner.mailbox, self)

    async def commit(self, batch: Batch) -> Committed:
        committed = await super().commit(batch)
        if not committed.fenced:
            self._compare_verdicts(batch, committed)
        return committed

    def _compare_verdicts(self, batch: Batch, committed: Committed) -> None:
        """The first verdict is the one that is kept. Whoever read the letter once has no other."""
        for said in batch.mail:
            query = "SELECT verdict FROM mailbox WHERE id = ?"
            kept = self.world.reader().execute(query, (said.id,)).get
            if said.execution not in committed.refused and kept != said.verdict:
                self.world.fail("a letter has one verdict", f"{said.id}: {kept!r} and {said.verdict!r}")

    async def _let_go_late(self, batch: Batch) -> Committed:
        """At the worst moment, if it comes soon: when what is let go of is in the same hands again."""
        for _ in range(LOOKS if self.world.knows_the_worst else 0):
            if self._has_again(batch):
                self.world.sometimes("let go, late, of what it has again")
                break
            await pause(LOOK_SECONDS)
        return await super()._let_go_late(batch)

    def _has_again(self, batch: Batch) -> bool:
        query = "SELECT 1 FROM executions WHERE id = ? AND owner = ? AND epoch > ? AND ended_at IS NULL"
        asked = [(standing.id, batch.session, standing.epoch) for standing in batch.standings.values()]
        return any(self.world.reader().execute(query, each).fetchone() for each in asked)

    def renew(self, id: str, lease_ms: int) -> None:
        self.registered[id].wait()
        tell, stop = self.renewing[id]
        if stop.is_set():
            return
        world = self.world
        if world.outage is not None or world.happens(world.rates.renewal_lost):
            world.sometimes("renewal lost")
        else:
            now = world.database_now()
            self.inner.database.write_connection.execute(_RENEW, (now + lease_ms, id))
            tell(Renewal(now, bool(self.inner.database.write_connection.changes()), world.loop.time()))
        asyncio.get_running_loop().call_later(lease_ms / 3_000, self.renew, id, lease_ms)

    def listen(self, hear: Callable[[Hints], None]) -> None:
        """Hears of all that others ring, now and then; SQLite's own watch looks at the file in real time."""
        loop = asyncio.get_running_loop()
        world = self.world

        def heard() -> None:
            if world.happens(world.rates.hint_lost):
                world.sometimes("hint lost")
            else:
                hear(EVERYTHING)
                if world.happens(world.rates.hint_doubled):
                    world.sometimes("hint doubled")
                    loop.call_later(world.between(0, 50) / 1_000, hear, EVERYTHING)

        world.listeners.append(lambda: void(loop.call_later(HEARD_SECONDS, heard)))

    def notify(self, hint: str) -> None:
        for listener in self.world.listeners:
            listener()


def void(_: object) -> None:
    """A call whose value nobody wants."""


class SimulatedSessions(Part):
    def __init__(self, part: Any, store: SimulatedStore) -> None:
        super().__init__(part, store)
        self.store = store

    async def open(self, id: str, worker: str, build: str, lease_ms: int, queues: Sequence[str]) -> int:
        self.store.world.sometimes("session taken for dead", self.store.renewing)
        self.store.registered[id] = threading.Event()
        now: int = await self.store.call("open", lambda: self._part.open(id, worker, build, lease_ms, queues))
        asyncio.get_running_loop().call_later(lease_ms / 3_000, self.store.renew, id, lease_ms)
        return now

    def keep_alive(self, id: str, lease_ms: int, tell: Callable[[Renewal], None], stop: threading.Event) -> None:
        """The thread only leaves word whom to tell: renewals happen in the loop, at their time."""
        self.store.renewing[id] = (tell, stop)
        self.store.registered[id].set()


class SimulatedMailbox(HostileMailbox):
    def __init__(self, part: Any, store: SimulatedStore) -> None:
        super().__init__(part, store)
        self.store = store

    async def post(self, id: str, execution: str, body: bytes) -> tuple[int, str | None] | None:
        posted = await super().post(id, execution, body)
        process = PROCESS.get()
        left = self.store.world.letters_left
        if process in left:
            left[process] -= 1
            if not left[process]:
                self.store.world.sometimes("caller killed, and its letters are there")
                process.killed = True
                await pause(0)  # from which it does not return
        return posted
