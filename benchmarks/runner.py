"""What runs inside a measured process: a `Runner` drives one system, and `serve` obeys the commands of `program.py`.

The standard library and uvloop alone, because peers run this in environments of their own. Commands and answers are
lines of JSON.
"""

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TextIO, TypeAlias, TypeVar

import uvloop

STEPS = 5  # of a chain, and of a slow one
TURN_S = 0.002
KEPT = 100_000  # times of refusals, and of what was accepted
WELL = 20  # chains in a row that take no longer than is normal
SLOW_STEP_S = 1.0

gc.set_threshold(20_000, 10, 10)  # every Python program here has it, as `tenuto worker` has

Arguments: TypeAlias = dict[str, Any]
Answer: TypeAlias = dict[str, Any]

T = TypeVar("T")


class NotBuilt(Exception):
    """The system cannot do this yet."""


class Refused(Exception):
    """The system has as much to do as it was told to take on, and says so."""


class Runner(Protocol):
    """One system under measurement. What it cannot do it leaves out; `NotBuilt` is raised in its place."""

    async def chain(self, key: str) -> None:
        """One execution of 5 sequential no-op steps, from its submission to its result."""

    async def fan_out(self, key: str, width: int) -> None:
        """One execution of so many parallel no-op steps, until all are joined."""

    async def submit_slow(self, key: str, log: str) -> None:
        """Starts an execution of 5 steps of 1 s, each of which calls `note_step`; returns once it is durable."""

    async def finish_slow(self, key: str, log: str) -> None:
        """Waits until that execution, perhaps started by another process, has succeeded."""


class Unable:
    """The parts of a runner that its system does not take part in."""

    async def chain(self, key: str) -> None:
        raise NotBuilt

    async def fan_out(self, key: str, width: int) -> None:
        raise NotBuilt

    async def submit_slow(self, key: str, log: str) -> None:
        raise NotBuilt

    async def finish_slow(self, key: str, log: str) -> None:
        raise NotBuilt


def note_step(log: str, key: str, step: int) -> None:
    """Called where a slow step ends: one line, in one write, that survives the death of this process."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{key} {step} {time.time():.6f}\n".encode())
    finally:
        os.close(file)


async def slow_step(log: str, key: str, step: int) -> None:
    await asyncio.sleep(SLOW_STEP_S)
    note_step(log, key, step)


# -- Commands ----------------------------------------------------------------------------------------------------------


class Commands:
    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._run = f"{os.getpid():x}-{time.time_ns():x}"
        self._number = 0

    def _new_key(self) -> str:
        self._number += 1
        return f"{self._run}-{self._number}"

    async def throughput(self, *, seconds: float, in_flight: int) -> Answer:
        """So many chains at any time; after so many seconds no new ones, and the last are waited for."""
        done = 0
        began = time.perf_counter()

        async def lane() -> None:
            nonlocal done
            while time.perf_counter() - began < seconds:
                await self._runner.chain(self._new_key())
                done += 1

        await asyncio.gather(*(lane() for _ in range(in_flight)))
        return {"executions": done, "seconds": time.perf_counter() - began}

    async def overload(self, *, lead: float, seconds: float, rate: float, normal: float) -> Answer:
        """Chains come at this rate, whatever becomes of the earlier ones. Afterwards the last are waited for.

        What is done in the first seconds (`lead`) does not count: until there is no room, nothing is refused.
        `recovered`: how long after the last came one chain at a time takes no longer than is `normal`, again and again.
        """
        load = Load(lambda: self._runner.chain(self._new_key()))
        began = time.perf_counter()
        await load.come(began, lead, rate)
        filled, done, offered = time.perf_counter(), load.done, load.offered
        load.refusals.clear()
        load.accepted.clear()
        await load.come(began, lead + seconds, rate)
        ended = time.perf_counter()
        counted = {"executions": load.done - done, "offered": load.offered - offered, "seconds": ended - filled}
        refusals, accepted = list(load.refusals), list(load.accepted)
        _, recovered = await asyncio.gather(load.drain(), self._recover(ended, normal))
        lost = load.offered - load.done - load.refused
        answer = {
            "lost": lost,
            "refusals": refusals,
            "accepted": accepted,
            "drained": load.drained_at - ended,
        }
        return {**counted, **answer, "recovered": recovered}

    async def _recover(self, ended: float, normal: float) -> float:
        well_since, well = ended, 0
        while well < WELL:
            at = time.perf_counter()
            try:
                await self._runner.chain(self._new_key())
            except Refused:
                await asyncio.sleep(TURN_S)
                well = 0
            else:
                well = well + 1 if time.perf_counter() - at <= normal else 0
            well_since = at if well < 2 else well_since
        return well_since - ended

    async def latency(self, *, seconds: float, at_most: int) -> Answer:
        """One chain at a time, until either bound is reached."""
        return await self._one_by_one(lambda: self._runner.chain(self._new_key()), seconds, at_most)

    async def fan_out(self, *, width: int, seconds: float, at_most: int) -> Answer:
        return await self._one_by_one(lambda: self._runner.fan_out(self._new_key(), width), seconds, at_most)

    async def _one_by_one(self, run: Callable[[], Awaitable[None]], seconds: float, at_most: int) -> Answer:
        each: list[float] = []
        began = time.perf_counter()
        while not each or (len(each) < at_most and time.perf_counter() - began < seconds):
            at = time.perf_counter()
            await run()
            each.append(time.perf_counter() - at)
        return {"each": each, "seconds": time.perf_counter() - began}

    async def submit_slow(self, *, executions: int, log: str) -> Answer:
        await asyncio.gather(*(self._runner.submit_slow(f"slow-{n}", log) for n in range(executions)))
        return {}

    async def finish_slow(self, *, executions: int, log: str) -> Answer:
        await asyncio.gather(*(self._runner.finish_slow(f"slow-{n}", log) for n in range(executions)))
        return {}


class Load:
    """Whoever comes without asking whether there is room."""

    def __init__(self, run: Callable[[], Awaitable[None]]) -> None:
        self._run = run
        self._tasks: set[asyncio.Task[None]] = set()
        self.offered = 0
        self.done = 0
        self.refused = 0
        self.drained_at = 0.0
        self.refusals: list[float] = []  # how long each took, in seconds
        self.accepted: list[float] = []

    async def come(self, began: float, until: float, rate: float) -> None:
        """At this rate, from a moment until so many seconds after it."""
        while (now := time.perf_counter() - began) < until:
            self._offer(int(now * rate))
            await asyncio.sleep(TURN_S)

    def _offer(self, number: int) -> None:
        """So many in all, up to now."""
        while self.offered < number:
            self.offered += 1
            task = asyncio.create_task(self._one())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _one(self) -> None:
        came = time.perf_counter()
        try:
            await self._run()
            self.done += 1
            if len(self.accepted) < KEPT:
                self.accepted.append(time.perf_counter() - came)
        except Refused:
            self.refused += 1
            if len(self.refusals) < KEPT:
                self.refusals.append(time.perf_counter() - came)

    async def drain(self) -> None:
        await asyncio.gather(*self._tasks)
        self.drained_at = time.perf_counter()


def serve(opening: AbstractAsyncContextManager[Runner]) -> None:
    """Opens the system, says so, and obeys until the input ends."""
    obey(opening, Commands)


def obey(opening: AbstractAsyncContextManager[T], make: Callable[[T], object]) -> None:
    """The same with commands of one's own: each is a method of what `make` makes of what was opened."""
    uvloop.run(_serve(opening, make, _own_output()))


async def _serve(opening: AbstractAsyncContextManager[T], make: Callable[[T], object], answers: TextIO) -> None:
    try:
        async with opening as opened:
            commands = make(opened)
            _say(answers, {"ready": True})
            while line := await asyncio.to_thread(sys.stdin.readline):
                request = json.loads(line)
                _say(answers, await _obey(commands, request.pop("command"), request))
    except NotBuilt as error:
        _say(answers, {"not_built": str(error)})


async def _obey(commands: object, command: str, arguments: Arguments) -> Answer:
    cpu = time.process_time()
    try:
        answer: Answer = await getattr(commands, command)(**arguments)
    except NotBuilt as error:
        return {"not_built": str(error)}
    except Exception as error:  # whatever it is, the measuring process reports it
        return {"failed": f"{type(error).__name__}: {error}"}
    return {**answer, "cpu": time.process_time() - cpu}


def _say(answers: TextIO, answer: Answer) -> None:
    print(json.dumps(answer), file=answers, flush=True)


def _own_output() -> TextIO:
    """Answers keep standard output to themselves; whatever else is printed goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers
