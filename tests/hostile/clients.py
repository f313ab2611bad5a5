"""Those who start executions and send them commands, and remember what they were told."""

from itertools import count
from typing import TYPE_CHECKING, Any

from tenuto import Engine, Handle
from tenuto.errors import EngineClosed, InvalidTransition, NotFound, ResultTimeout, StorageError, TenantLimit

from .loop import Process, pause
from .sagas import Ask, Bounded, Mailed, Spread

if TYPE_CHECKING:
    from .world import World

BATCHES, BATCH = 0.2, 3  # how often some are started together, and how many


class Client:
    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.process = Process(f"c{number}")
        self.number = number
        self.engine: Engine | None = None
        self.started: dict[str, str] = {}  # keys, and the executions that were acknowledged for them
        self.signals: dict[str, bool] = {}  # ids, and whether they were acknowledged
        self.paused: set[str] = set()  # executions whose pause was acknowledged
        self.canceled: set[str] = set()
        self.sagas: dict[str, type] = {}
        self.results: dict[str, str] = {}  # executions, and the status that was reported
        self.again: set[str] = set()  # executions that failed and were tried again

    async def run(self) -> None:
        world = self.world
        engine = await self._open()
        if world.knows_words:  # then there is an audit, too
            engine = engine.scoped(tenant="t", actor=f"user:{self.number}")
        for number in range(world.executions):
            await pause(world.between(0, world.hostile_seconds * 1_500 / world.executions) / 1_000)
            key = f"key-{self.number}-{number}"
            saga = world.rng.choice(world.sagas)
            if world.is_bounded and saga is Spread:
                saga = Bounded
            if world.is_wide and world.rng.random() < BATCHES:
                await self._start_many(engine, saga, key)
                continue
            handle = await self._start(engine, saga, key)
            self.sagas[handle.id] = saga
            world.loop.spawn(self.process, self._listen(handle))
            for _ in range(world.rng.choice((0, 1, 2))):
                await pause(world.between(0, 2_000) / 1_000)
                await self._command(handle)

    async def _open(self) -> Engine:
        while True:
            self.engine = self.world.engine(worker=False)
            try:
                return await self.engine.__aenter__()
            except StorageError:
                await pause(0.3)

    async def close(self) -> None:
        if self.engine is not None:
            await self.engine.close()

    async def _start(self, engine: Engine, saga: Any, key: str) -> Handle[Any]:
        """As callers do: with its key, until it is acknowledged. Who is told nothing asks again."""
        world = self.world
        number = world.rng.randrange(world.keys)
        while True:
            try:
                handle = await engine.start(saga, number, idempotency_key=key, tenant="t")
            except (StorageError, EngineClosed):
                world.sometimes("start with an unknown outcome")
                await pause(0.2)
                continue
            except TenantLimit:
                world.sometimes("start refused: the tenant is full")
                await pause(0.5)
                continue
            if self.started.setdefault(key, handle.id) != handle.id:
                world.fail("one execution for one key", f"{key}: {self.started[key]} and {handle.id}")
            if world.happens(0.2):
                world.sometimes("start repeated with its key")
                continue
            return handle

    async def _start_many(self, engine: Engine, saga: Any, key: str) -> None:
        """With a key for each, until all are acknowledged: whoever was told nothing starts the same batch again."""
        world = self.world
        for times in count():
            world.sometimes("batch started again", times)
            try:
                batch = await engine.start_many(saga, range(BATCH), key=lambda item: f"{key}-{item}", tenant="t")
            except (StorageError, EngineClosed):
                await pause(0.2)
                continue
            world.sometimes("batch started")
            for item, id in enumerate(batch.execution_ids):
                if self.started.setdefault(f"{key}-{item}", id) != id:
                    world.fail("one execution for one key", f"{key}-{item}: {self.started[f'{key}-{item}']} and {id}")
                self.sagas[id] = saga
                world.loop.spawn(self.process, self._listen(engine.get(id)))
            return

    async def _command(self, handle: Handle[Any]) -> None:
        world = self.world
        kind = world.rng.choice(("signal", "signal", "signal", "pause", "cancel", "resume", "read"))
        if kind == "signal" and self.sagas[handle.id] not in (Ask, Mailed):
            kind = "read"
        try:
            match kind:
                case "signal":
                    await self._signal(handle)
                case "pause":
                    await handle.pause()
                    self.paused.add(handle.id)
                    world.sometimes("paused")
                case "resume":
                    await handle.resume()
                case "cancel":
                    await handle.cancel(world.rng.choice(("drain", "compensate", "terminate")))
                    self.canceled.add(handle.id)
                    world.sometimes("canceled")
                case _:
                    await handle.status()
        except NotFound:
            world.fail("what was acknowledged is there", handle.id)
        except InvalidTransition:
            return
        except (StorageError, ResultTimeout):
            world.sometimes("command with an unknown outcome")

    async def _signal(self, handle: Handle[Any]) -> None:
        world = self.world
        id = f"{handle.id}-{len(self.signals)}"
        self.signals[id] = False
        for _ in range(world.rng.choice((1, 1, 2))):
            await handle.signal("word", id, id=id)
            world.sometimes("signal repeated with its id", self.signals[id])
            self.signals[id] = True

    async def _listen(self, handle: Handle[Any]) -> None:
        """Somebody waits for the end, for as long as it takes."""
        while True:
            try:
                result = await handle.result(return_when="terminal")
            except (StorageError, EngineClosed):
                await pause(0.5)
                continue
            if result.status == "failed" and self.world.knows_words and handle.id not in self.again:
                self.again.add(handle.id)
                await self._try_again(handle)
                continue
            if handle.id not in self.again:  # a second word of his, heard late, may open one more run
                self.results[handle.id] = result.status
            return

    async def _try_again(self, handle: Handle[Any]) -> None:
        world = self.world
        world.outside.may_repeat[handle.id] += 1
        while True:
            try:
                await handle.retry(reason="once more")
            except InvalidTransition:
                return
            except (StorageError, ResultTimeout, EngineClosed, TenantLimit):
                await pause(0.5)
            else:
                world.sometimes("failed, and tried again")
                return
