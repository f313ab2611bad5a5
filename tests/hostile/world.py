"""One seed: processes with engines of their own on one database, clients, and everything that goes wrong around them.

A hostile phase, in which anything fails; then a quiet one, in which everything accepted must end, or be put before a
person. What was seen from outside is compared with what is stored when all is quiet.
"""

import asyncio
import random
import tempfile
import traceback
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw

from tenuto import Engine, Message
from tenuto.errors import TenutoError
from tenuto.kernel import events as e
from tenuto.kernel.codec import decode_entries
from tenuto.runtime.clock import Clock, Environment
from tenuto.runtime.durable import DatabaseClock
from tests.seams import runtime_of, session_of, set_smallest_tail, wakeups_of

from .clients import Client
from .faults import OFTEN, QUIET, draw_rates
from .late_task_reports import WATCH
from .laws import check_end
from .loop import MOST_TURNS, PROCESS, Endless, Process, VirtualLoop, pause
from .operators import Operator
from .order import WATCH_ORDER
from .outside import Outside
from .overdue import Overdue
from .patching import in_world
from .receivers import SENT, Receiver
from .sagas import FEW, MAILED, MOST, SAGAS, Alone, Ask, Bounded, Mailed, Queued
from .short_lived_clients import LATEST as LATEST_PASSER
from .short_lived_clients import Passer
from .simulated import SimulatedStore
from .situations import Situations
from .store import whatever_comes

SETTLE_SECONDS = 900
NEWER = 200  # seeds from here on have what was added to the world later; those before stay the runs that they were
LATEST = 10_000  # and those from here on what was added last: words about tasks that are heard late
CROWDED = 20_000  # here many want one key, and a worker who lets go is the only one who can take again
WIDE = 30_000  # and here there are callbacks, batches and tenants that are full; every other of these is crowded
SHM = Path("/dev/shm")  # noqa: S108  (a file that lives as long as a seed)


_LIVE = "SELECT id FROM sessions WHERE ended_at IS NULL AND expires_at > ?"


class Violation(Exception):
    def __init__(self, law: str, detail: str) -> None:
        super().__init__(f"{law}: {detail}")
        self.law = law
        self.detail = detail


class _Environment(Environment):
    """Ids without chance."""

    def __init__(self, world: "World") -> None:
        super().__init__(DatabaseClock(), worker=str(PROCESS.get()))
        self._world = world

    def new_id(self) -> str:
        return self._world.new_id()


class _Engine(Engine):
    def __init__(self, world: "World", **options: Any) -> None:
        self._world = world
        super().__init__(f"sqlite:///{world.path}", **options)

    def _make_environment(self, clock: Clock | None, build: str) -> Environment:
        return _Environment(self._world)


class World:
    def __init__(self, seed: int, *, verbose: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.loop = VirtualLoop()
        self.began = self.loop.time()
        self.lines: deque[str] = deque(maxlen=None if verbose else 60)
        self.situations = Situations()
        self.rates = draw_rates(self.rng)
        self.outage: str | None = None
        self.hostile = True
        self.offset_ms = 1_700_000_000_000
        self.latest_offset_ms = self.offset_ms
        self.jumps = 0
        self.pace: tuple[float, float] = self.rng.choice(((1, 40), (1, 400), (50, 2_500)))
        self.trouble = self.rng.choice((0.0, 0.05, 0.2))
        self.lease_ms = self.rng.choice((1_000, 2_000, 5_000))
        self.poll_ms = self.rng.choice((200, 1_000, 2_000))
        self.mail_at_once = self.rng.choice((1, 2, 1_000))
        self.told_at_once = random.Random(f"told {seed}").choice((1, 2, 100))
        self.is_bounded = random.Random(f"bounded {seed}").random() < 0.4
        self.smallest_tail = self.rng.choice((100, 1_000, 100_000))
        self.hostile_seconds = self.rng.choice((5, 15, 30))
        self.executions = self.rng.choice((2, 4, 8))
        newer = random.Random(f"newer {seed}")
        self.passers = newer.choice((0, 3, 10)) if seed >= NEWER else 0
        self.grace = newer.choice(("0s", "300ms", "2s")) if seed >= NEWER else "2s"
        self.sagas: tuple[Any, ...] = (*SAGAS, *MAILED) if self.passers else SAGAS
        self.knows_the_worst = seed >= NEWER
        self.knows_words = seed >= LATEST
        self.sagas += (*(Queued,) * 4, Bounded, Bounded) if self.knows_words else ()
        self.keys, self.most_workers = 2, 3
        self.is_wide = seed >= WIDE
        if seed >= CROWDED and not (self.is_wide and seed % 2):
            self._crowd()
        if self.is_wide:
            self.sagas += (SENT["name"],) * 4
        self.most_in_flight = random.Random(f"tenant {seed}").choice((2, 4, None)) if self.is_wide else None
        self.letters_left: dict[Process, int] = {}  # of those who die when they have posted so many
        self.listeners: list[Callable[[], None]] = []
        self.outside = Outside(self)
        self.receiver = Receiver(self)
        self.workers: dict[Process, Engine] = {}
        self.frozen: Counter[Process | None] = Counter()
        self.clients: list[Client] = []
        self.published: list[tuple[str, int]] = []
        self.late: set[asyncio.Task[None]] = set()
        self.alone_in: dict[str, tuple[str, Process | None]] = {}
        self.few: list[tuple[Process | None, int, str | None]] = []
        self.violation: Violation | None = None
        self._ids = 0
        self._directory = tempfile.TemporaryDirectory(dir=SHM if SHM.is_dir() else None, prefix="tenuto-hostile-")
        self.path = f"{self._directory.name}/x.db"
        self._reader: apsw.Connection | None = None

    def _crowd(self) -> None:
        self.keys, self.most_workers = 1, 1
        self.sagas += (Alone, Ask) * 8
        self.executions *= 2
        self.rates = replace(self.rates, applied_late=OFTEN.applied_late)

    # -- What stores and handlers ask ----------------------------------------------------------------------------------

    def time(self) -> float:
        return self.loop.time()

    def happens(self, share: float) -> bool:
        return self.hostile and share > 0 and self.rng.random() < share

    def happens_outside(self, share: float) -> bool:
        """Handlers fail in the quiet phase, too: that is not a fault of ours."""
        return share > 0 and self.rng.random() < share

    def between(self, least_ms: float, most_ms: float) -> float:
        return self.rng.uniform(least_ms, most_ms)

    def shuffle(self, items: list[Any]) -> None:
        self.rng.shuffle(items)

    def sometimes(self, name: str, happened: object = True) -> None:
        self.situations.sometimes(name, happened)
        if happened:
            self.note(f"  ({name})")

    def later(self, seconds: float, call: Callable[[], Awaitable[object]]) -> None:
        async def on_the_server() -> None:
            await pause(seconds)
            await whatever_comes(call)

        task = self.loop.spawn(None, on_the_server())
        self.late.add(task)
        task.add_done_callback(self.late.discard)

    def database_now(self) -> int:
        return self.offset_ms + int(self.loop.time() * 1_000)

    def frozen_times(self, process: Process | None) -> int:
        return self.frozen[process]

    def new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:022x}"

    def note(self, line: str) -> None:
        process = PROCESS.get()
        self.lines.append(f"{self.loop.time() - 1_000:9.3f} {process or '-'} {line}")

    def fail(self, law: str, detail: str) -> None:
        """Noted at once, told when the loop next comes by: a handler's exception would be one of its outcomes."""
        if self.violation is None:
            self.violation = Violation(law, detail)

    @contextmanager
    def alone(self, key: str, execution: str) -> Iterator[None]:
        """No other execution with this key is under way, unless its process is gone and does not know it yet."""
        process = PROCESS.get()
        other = self.alone_in.get(key)
        if other is not None and other[0] != execution and self._is_well(other[1]):
            self.fail("one execution at a time for each key", f"{key}: {other[0]} and {execution}")
        self.alone_in[key] = (execution, process)
        try:
            yield
        finally:
            if self.alone_in.get(key) == (execution, process):
                del self.alone_in[key]

    @contextmanager
    def among_few(self) -> Iterator[None]:
        """Of those whose processes are well, no more are under way than the limit has.

        A word about a limit that is heard late gives back what runs by then: a world that has met that says nothing.
        """
        process = PROCESS.get()
        engine: Any = self.workers.get(process) if process is not None else None
        here = (
            process,
            self.frozen[process],
            session_of(engine).session.id if engine is not None else None,
        )
        self.few.append(here)
        live = {id for (id,) in self.reader().execute(_LIVE, (self.database_now(),))}
        well = [who for who, frozen, session in self.few if session in live and self._is_as_before(who, frozen)]
        if self.knows_words and len(well) > MOST and not self.situations.counts["limit: applied after the error"]:
            self.fail("no more are under way than a limit has", f"{well}")
        try:
            yield
        finally:
            self.few.remove(here)

    def _is_as_before(self, process: Process | None, frozen: int) -> bool:
        return process is not None and not process.killed and not process.frozen and self.frozen[process] == frozen

    def _is_well(self, process: Process | None) -> bool:
        return process is not None and not process.killed and not self.frozen[process] and not self.hostile

    def reader(self) -> apsw.Connection:
        if self._reader is None:
            self._reader = apsw.Connection(self.path, flags=apsw.SQLITE_OPEN_READONLY)
        return self._reader

    def entries_of(self, execution: str) -> list[e.Entry]:
        rows = self.reader().execute("SELECT body FROM events WHERE execution = ? ORDER BY seq", (execution,))
        return [entry for (body,) in rows for entry in decode_entries(body)]

    async def publish(self, message: Message) -> None:
        at = (message.execution_id, message.seq)
        self.sometimes("message published twice", at in self.published)
        if not any(entry.seq == message.seq for entry in self.entries_of(message.execution_id)):
            self.fail("nothing is published that is not recorded", f"{at}")
        self.published.append(at)
        await pause(self.between(0, 20) / 1_000)
        if self.happens(0.05):
            raise OSError("the broker is away")

    # -- Processes -----------------------------------------------------------------------------------------------------

    def engine(self, *, worker: bool) -> Engine:
        engine = _Engine(
            self,
            worker=worker,
            queues=("default", "mail") if not self.hostile or self.rng.random() < 0.7 else ("default",),
            lease=f"{self.lease_ms}ms",
            messages=["*"],
            publish=self.publish if worker else None,
            shutdown_grace=self.grace,
        )
        runtime: Any = runtime_of(engine)
        wakeups_of(runtime).poll_ms = self.poll_ms
        set_smallest_tail(runtime, self.smallest_tail)
        for saga in (*SAGAS, Bounded, *((Mailed,) if self.passers else ())):
            engine.register(saga(self.outside))
        if self.is_wide:
            self.receiver.register(engine)
        return engine

    async def opened(self, *, worker: bool) -> Engine:
        """Each try is an engine of its own, as that of a process which is started anew."""
        while True:
            engine = self.engine(worker=worker)
            try:
                return await engine.__aenter__()
            except TenutoError:
                await pause(0.3)

    def start_worker(self) -> None:
        process = Process(f"w{len(self.frozen) + len(self.workers)}.{self._ids}")
        self.frozen[process] = 0
        self.loop.spawn(process, self._live(process))

    async def _live(self, process: Process) -> None:
        engine = await self.opened(worker=True)
        self.workers[process] = engine
        self.note("up")

    def kill(self, process: Process) -> None:
        self.sometimes("worker killed")
        self.sometimes("worker killed with an effect under way", self.outside.under_way[process])
        process.killed = True
        self.workers.pop(process, None)

    def freeze(self, process: Process) -> None:
        seconds = self.between(0.2, 3 * self.lease_ms / 1_000)
        self.sometimes("worker frozen beyond its lease", seconds > self.lease_ms / 1_000)
        process.frozen = True
        self.frozen[process] += 1
        self.loop.call_later(seconds, self.loop.thaw, process)

    async def close_worker(self, process: Process) -> None:
        engine = self.workers.pop(process, None)
        if engine is None:
            return
        is_quiet = not self.hostile
        self.sometimes("worker closed with an effect under way", self.outside.under_way[process])
        with suppress(TenutoError):
            await engine.close()
        self.sometimes("worker closed in good order")
        runtime: Any = runtime_of(engine)
        if is_quiet and self._is_open(session_of(runtime).session.id):
            self.fail("whoever closes in quiet times ends its session", f"{process} {session_of(runtime).session.id}")

    def _is_open(self, session: str) -> bool:
        query = "SELECT count(*) FROM sessions WHERE id = ? AND ended_at IS NULL"
        return bool(self.reader().execute(query, (session,)).get)

    # -- The run -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        with in_world(self):
            asyncio.set_event_loop(self.loop)
            try:
                self.loop.run_until_complete(self._run())
            except Endless:
                seconds = self.loop.time() - self.began
                raise Violation("a world comes to its end", f"{MOST_TURNS} turns, {seconds:.0f} s") from None
            finally:
                self._end()

    def _end(self) -> None:
        asyncio.set_event_loop(None)
        if self._reader is not None:
            self._reader.close()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.close()
        self._directory.cleanup()

    async def _run(self) -> None:
        first = SimulatedStore(self)
        await first.open(migrate=True)
        await first.inner.limits.set(FEW, None, MOST)
        first.inner.database.write_connection.execute(WATCH_ORDER)
        if self.knows_words:
            first.inner.database.write_connection.execute(WATCH)
        await first.close()
        if self.is_wide:
            await self._widen()
        for _ in range(min(self.rng.choice((1, 2, 3)), self.most_workers)):
            self.start_worker()
        self.clients = [Client(self, number) for number in range(self.rng.choice((1, 2)))]
        driving = [self.loop.spawn(client.process, client.run()) for client in self.clients]
        passing = [Passer(self, number) for number in range(self.passers)]
        self.late.update(self.loop.spawn(passer.process, passer.run()) for passer in passing)
        await self._rage()
        await self._calm(driving)

    async def _widen(self) -> None:
        """Before anything goes wrong. The limit of the tenant is changed when much does."""
        self.hostile = False
        async with self.engine(worker=False) as engine:
            await engine.apply(SENT)
            if self.most_in_flight is not None:
                await engine.tenant_limit("t", max_in_flight=self.most_in_flight)
        self.hostile = True
        self.loop.spawn(self.receiver.process, self.receiver.run())
        if self.most_in_flight is not None:
            self.late.add(self.loop.spawn(None, self._change_limit(self.most_in_flight)))

    async def _change_limit(self, least: int) -> None:
        await pause(self.hostile_seconds * 0.6)
        while True:
            try:
                async with self.engine(worker=False) as engine:
                    await engine.tenant_limit("t", max_in_flight=least + 1)
            except TenutoError:
                await pause(0.3)
            else:
                self.sometimes("limit of a tenant changed")
                return

    def _check_in_flight(self) -> None:
        """What was tried again counts, too, and is let in whoever else is."""
        if self.most_in_flight is not None:
            most = self.most_in_flight + 1 + sum(len(client.again) for client in self.clients)
            found = self.reader().execute("SELECT count(*) FROM executions WHERE tenant = 't' AND ended_at IS NULL").get
            if found > most:
                self.fail("no more are in flight than a tenant may have", f"{found} of {most}")

    async def _rage(self) -> None:
        until = self.loop.time() + self.hostile_seconds
        while self.loop.time() < until:
            await pause(0.25)
            self._check_now()
            self._strike(0.25)

    def _strike(self, seconds: float) -> None:
        rates = self.rates
        if self.outage is not None:
            self.outage = None if self.happens(0.3) else self.outage
        elif self.happens(rates.read_only * seconds):
            self.outage = "read-only"
        elif self.happens(rates.full * seconds):
            self.outage = "full"
        elif self.happens(rates.out_of_reach * seconds):
            self.outage = "out of reach"
        if self.happens(rates.clock * seconds):
            jump = self.rng.choice((-3_600_000, -5_000, -200, 200, 5_000, 3_600_000))
            self.offset_ms += jump
            self.latest_offset_ms = max(self.latest_offset_ms, self.offset_ms)
            self.jumps += 1
            self.sometimes("clock went back" if jump < 0 else "clock jumped ahead")
        for process in list(self.workers):
            if process.frozen:
                continue
            if self.happens(rates.kill * seconds):
                self.kill(process)
            elif self.happens(rates.freeze * seconds):
                self.freeze(process)
            elif self.happens(rates.close * seconds):
                self.late.add(self.loop.spawn(process, self.close_worker(process)))
        if len(self.workers) < self.most_workers and self.happens(0.3 * seconds):
            self.sometimes("worker started again", self.situations.counts["worker killed"])
            self.start_worker()

    async def _calm(self, driving: list["asyncio.Task[None]"]) -> None:
        """Faults end. Within a bounded time everything is over, or waits for a person."""
        self.hostile, self.outage, self.rates = False, None, QUIET
        self.offset_ms = self.latest_offset_ms  # a clock that is an hour late makes everything an hour late
        for process in list(self.workers):
            if process.frozen:
                self.loop.thaw(process)
        for process in list(self.workers)[1:]:
            self.late.add(self.loop.spawn(process, self.close_worker(process)))
        self.start_worker()
        operator = Operator(self)
        looking_after = self.loop.spawn(operator.process, operator.run())
        until = self.loop.time() + SETTLE_SECONDS
        overdue = Overdue(self, self.reader())
        while not (all(task.done() for task in driving) and operator.is_over() and self._have_passed()):
            await pause(1)
            self._check_now()
            if late := overdue.look():
                raise Violation("what can be done is done within seconds", late)
            if self.loop.time() > until:
                raise Violation("everything ends, or is put before a person", operator.what_is_left(driving))
        for task in driving:
            task.result()
        operator.leaves = True
        while not (looking_after.done() and operator.is_over()):
            await pause(1)
            if self.loop.time() > until + SETTLE_SECONDS:
                raise Violation("what is over stays so", operator.what_is_left(driving))
        for process in [*self.workers]:
            await self.loop.spawn(process, self.close_worker(process))
        await self.loop.spawn(operator.process, operator.close())
        for client in self.clients:
            await self.loop.spawn(client.process, client.close())
        self._check_now()
        await check_end(self, operator)

    def _have_passed(self) -> bool:
        """Whether nobody comes by any more: whoever does may pause what was over, and somebody has to resume it."""
        return not self.passers or self.loop.time() > self.began + LATEST_PASSER * self.hostile_seconds + 5

    def _check_now(self) -> None:
        self._check_in_flight()
        if self.violation is not None:
            raise self.violation
        for context in self.loop.errors:
            error = context.get("exception")
            if error is not None and not isinstance(error, asyncio.CancelledError):
                where = "".join(traceback.format_exception(error, limit=-5))
                raise Violation("nothing fails where nobody listens", f"{context.get('message')}: {where}")
