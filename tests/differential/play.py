"""Plays a program on a runtime. All that happens outside is decided by the seed, one thing at a time.

A handler that is called waits until it is told to go on. Whenever the execution can do nothing more by itself, the seed
says what happens next: which handler comes to its end and how, which message arrives, what is answered to a directive,
what a person says, or that time passes. It stands still meanwhile: it goes on to what is due soon when all that was
granted is called, and to what is due later when the seed says so. So the order of facts is the same everywhere, and
whatever differs then, the runtimes made of it.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random
from time import monotonic, time
from typing import Any

from tenuto import Done, Engine, Handle, NotDone, Outcome, Pending, SagaContext
from tenuto.errors import (
    IndeterminateError,
    InvalidTransition,
    NonRetryableError,
    NotFound,
    RetryableError,
    StepError,
    TransientError,
)
from tenuto.kernel.address import Phase, Ref, lease_id
from tenuto.kernel.decide.people import RESOLUTIONS
from tenuto.kernel.effects import DispatchAttempt, RunAttempt
from tenuto.kernel.events import Entry, Resolution
from tenuto.kernel.evolve import holder_of
from tenuto.kernel.state import Execution, OpenAttempt, Review
from tenuto.runtime.clock import Clock, Environment
from tenuto.testing import VirtualClock
from tests.seams import environment_of, runtime_of

from .line import Line
from .programs import ATTEMPT_MS, Program

SOON_MS = 20_000  # less than any time-out
MAX_MOVES = 250
PATIENCE_SECONDS = 240
MAX_WAITS = 12  # so that whatever has no deadline is not waited for in vain
PLANNING_MS = 30_000
FORGED = 0.1
AN_ID = "{:022x}"
FIRST, PLAYED, LAST = 1_000, 2_000, 3_000  # ids are counted from here on for each that is started
HANDLERS: dict[str, Phase] = {
    "work": "forward", "send": "forward", "undo": "compensate", "guard": "guard", "find": "reconcile", "plan": "plan",
}  # fmt: skip
Move = Callable[[], Awaitable[None]]


class AlikeEnvironment(Environment):
    """Ids are the same in every runtime, and with them the jitter of delays that nobody can set."""

    def __init__(self, clock: Clock | None, first: int) -> None:
        super().__init__(clock, worker="differential")
        self._count = count(first)

    def begin(self, at: int) -> None:
        """Sessions and letters have ids, too, where there are any."""
        self._count = count(at)

    def new_id(self) -> str:
        return AN_ID.format(next(self._count))


class AlikeEngine(Engine):
    first_id = 1

    def _make_environment(self, clock: Clock | None, build: str) -> AlikeEnvironment:
        return AlikeEnvironment(clock, self.first_id)


class Starter(AlikeEngine):
    """Runs nothing."""

    first_id = 500_000


@dataclass(frozen=True)
class Played:
    id: str
    entries: list[Entry]
    moves: list[str]
    status: str


class Player:
    def __init__(self, program: Program, url: str) -> None:
        self.program = program
        # It begins with the database's, so that what it calls due is due there, too.
        self.clock = VirtualClock(int(time() * 1_000))
        # Nobody is taken for dead, however busy the machine is.
        self.engine = AlikeEngine(url, clock=self.clock, lease="60s", queues=("default", "side"))
        # In memory there is one who does all of it.
        self.starter = self.engine
        if program.is_unowned and not url.startswith("memory"):
            self.starter = Starter(url, clock=self.clock, lease="60s", worker=False)
        self.line = Line(self.starter, self.engine)
        self.rng = Random(f"outside {program.seed}")
        self.calm = self.rng.choice((0.6, 0.9, 1.0))  # how many attempts succeed
        self.meddling = self.rng.choice((0.0, 0.0, 0.1, 0.3))
        self.haste = self.rng.choice((0.0, 0.1, 0.3))  # how often time passes, rather than something happens
        self.drafts = program.drafts()
        self.called: dict[Ref, asyncio.Future[str]] = {}
        self.since: dict[Ref, int] = {}
        self.sending: set[Ref] = set()
        self.answered: list[Ref] = []
        self.moves: list[str] = []
        self.waits = 0
        self.signals = 0
        self.retries = 0
        self.handle: Handle[Any]

    async def play(self) -> Played:
        async with AsyncExitStack() as stack:
            for engine in dict.fromkeys((self.engine, self.starter)):
                for name, phase in HANDLERS.items():
                    engine.handler(name, self._handler(phase, sends=name == "send"))
                await stack.enter_async_context(engine)
            return await self._play()

    async def _start(self, at: int, key: str | None) -> Handle[Any]:
        environment = environment_of(self.starter)
        assert isinstance(environment, AlikeEnvironment)
        environment.begin(at)
        return await self.starter.start("differential", self.program.given(), concurrency_key=key)

    async def _play(self) -> Played:
        await self.engine.apply(self.program.document)
        key = "key" if self.program.is_keyed else None
        if key is not None and not await self.line.stands(await self._start(FIRST, key)):
            key = None
        self.handle = await self._start(PLAYED, key)
        if key is not None and self.meddling:
            await self.line.is_followed_by(await self._start(LAST, key))
        await self._nudge()
        while (state := await self._at_rest()).finished is None or self._retries(state):
            assert len(self.moves) < MAX_MOVES, f"no end after {self.moves}"
            await self._move(state)
        reading = await runtime_of(self.engine).executions.read(None, self.handle.id)
        return Played(self.handle.id, list(reading.history), self.moves, state.status)

    # -- Handlers ------------------------------------------------------------------------------------------------------

    def _handler(self, phase: Phase, *, sends: bool) -> Callable[[SagaContext], Awaitable[object]]:
        async def called(ctx: SagaContext) -> object:
            if ctx.execution_id != AN_ID.format(PLAYED):
                return await asyncio.get_running_loop().create_future()  # one before it, which does nothing
            ref = Ref(ctx.path, phase, ctx.attempt)
            told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            self.called[ref] = told
            self.since[ref] = self.clock.now_ms()
            if sends:
                self.sending.add(ref)
            try:
                return self._ending(await told, phase)
            finally:
                if self.called.get(ref) is told:
                    del self.called[ref]

        return called

    def _ending(self, word: str, phase: Phase) -> object:
        if phase in ("guard", "reconcile"):
            answers: dict[str, Outcome[Any]] = {"ok": NotDone(), "done": Done({"n": 1, "ok": True, "items": []})}
            return answers.get(word) or Pending(retry_after="2ms")
        match word:
            case "ok" | "done" | "pending" if phase == "plan":
                return list(self.drafts.propose())
            case "ok" | "done" | "pending":
                return {"n": len(self.moves) % 4, "ok": True, "items": [{"name": "a"}, {"name": "b"}]}
            case "transient":
                raise TransientError("trouble")
            case "retryable":
                raise RetryableError("trouble")
            case "indeterminate":
                raise IndeterminateError("no answer")
        raise NonRetryableError("trouble")

    # -- Moves ---------------------------------------------------------------------------------------------------------

    async def _at_rest(self) -> Execution:
        """Until it can do nothing by itself: all that was granted is called, and no time is near."""
        deadline = monotonic() + PATIENCE_SECONDS
        while True:
            state = (await runtime_of(self.engine).executions.read(None, self.handle.id)).state
            has_called = self._has_called(state)
            if self.line.is_next and not state.admitted and state.finished is None:
                has_called = False  # it is told, by and by
            elif state.finished is not None or (has_called and not self._is_due_soon(state)):
                return state
            elif has_called:
                await self._nudge()
            elif self.starter is not self.engine:  # who works may not know that it has become time to
                await self._nudge(self.engine.get(self.handle.id))
            assert monotonic() < deadline, f"neither goes on nor rests after {self.moves}: {dict(state.agenda)}"
            await asyncio.to_thread(os.sched_yield)

    def _has_called(self, state: Execution) -> bool:
        granted = {effect.ref for effect in state.agenda.values() if isinstance(effect, RunAttempt | DispatchAttempt)}
        for ref in [ref for ref in self.sending & self.called.keys() if ref not in granted]:
            self.called.pop(ref).set_result(
                "ok"
            )  # nobody waits for it any more; it is not stopped, and changes nothing
        return granted - _sent(state) == set(self.called)

    def _is_due_soon(self, state: Execution) -> bool:
        """Then it is due now. What a pause holds back is not due, and waits for the time after it.

        No handler is stopped on the way: the seed says when that happens.
        """
        if state.wake_at is None or state.wake_at - self.clock.now_ms() >= SOON_MS:
            return False
        if any(self._due(ref) <= state.wake_at for ref in self.called):
            return False
        self.clock.go_to(state.wake_at)
        return True

    def _due(self, ref: Ref) -> int:
        return self.since[ref] + (PLANNING_MS if ref.phase == "plan" else ATTEMPT_MS)

    def _next_moment(self, state: Execution) -> int | None:
        """When a timer or a time-out is due next. Of handlers that are stopped together nobody says which is first."""
        moments = [self._due(ref) for ref in self.called]
        moment = min(moments if state.wake_at is None else [*moments, state.wake_at], default=None)
        return None if moment is None or moments.count(moment) > 1 else moment

    async def _pass_time(self, moment: int) -> None:
        """Until then. Handlers that had so much time and no more are stopped."""
        self.waits += 1
        self.clock.go_to(moment)
        await self._nudge()
        deadline = monotonic() + PATIENCE_SECONDS
        while late := [ref for ref in self.called if self._due(ref) <= moment]:
            assert monotonic() < deadline, f"{late} are not stopped after {self.moves}"
            await asyncio.to_thread(os.sched_yield)

    async def _nudge(self, handle: Handle[Any] | None = None) -> None:
        """The same message each time, so that it is recorded once. A database has a clock of its own: an execution that
        waits there does not know what time it is here until somebody says something."""
        with suppress(InvalidTransition):
            await (handle or self.handle).signal("nudge", id="nudge")

    async def _move(self, state: Execution) -> None:
        moves = self._moves(state)
        meddled = self._meddling(state)
        moment = self._next_moment(state) if self.waits < MAX_WAITS and state.finished is None else None
        if moment is not None and (not moves or self.rng.random() < self.haste):
            moves = [("time passes", partial(self._pass_time, moment))]
        elif meddled and (not moves or self.rng.random() < self.meddling):
            moves = meddled
        assert moves, f"nothing can happen any more after {self.moves}"
        name, move = moves[self.rng.randrange(len(moves))]
        self.moves.append(name)
        try:
            await move()
        except (InvalidTransition, NotFound) as error:
            self.moves.append(f"refused: {error.code}")

    def _moves(self, state: Execution) -> list[tuple[str, Move]]:
        moves = [(f"end {ref.path} {ref.phase} {ref.number}", self._end(ref)) for ref in sorted(self.called)]
        moves += [(f"signal {name}", self._signal(name)) for name in sorted(state.waits)]
        if not state.admitted and state.finished is None:
            moves.append(("the one before it ends", self.line.moves_on))
        for ref in sorted(_sent(state)):
            moves.append((f"answer {ref.path} {ref.number}", self._answer(ref)))
            if not _opened(state, ref).acked:
                moves.append((f"acknowledge {ref.path} {ref.number}", self._acknowledge(ref)))
        if state.pause is not None and not moves:
            moves.append(("resume", self.handle.resume))
        for number, review in enumerate(state.reviews.values()):
            if state.finished is None:
                moves += self._decisions(number, review)
        return moves

    def _meddling(self, state: Execution) -> list[tuple[str, Move]]:
        if state.finished is not None:
            return [("retry", self._retry)] if self._retries(state) else []
        moves: list[tuple[str, Move]] = [("signal noise", self._signal("noise"))]
        moves.append(("resume", self.handle.resume) if state.pause is not None else ("pause", self.handle.pause))
        moves += [(f"answer again {ref.path} {ref.number}", self._answer(ref)) for ref in self.answered[-1:]]
        if len(self.moves) > 4:
            moves.append(("cancel", lambda: self.handle.cancel(self.rng.choice(("drain", "terminate", "compensate")))))
        return moves

    def _retries(self, state: Execution) -> bool:
        return state.status == "failed" and self.retries < 1 and self.meddling > 0

    async def _retry(self) -> None:
        self.retries += 1
        self.line.goes_again()
        await self.handle.retry(reason="again")

    def _word(self) -> str:
        words = ["indeterminate", "transient", "transient", "retryable", "non_retryable", "done", "pending"]
        word = "ok" if self.rng.random() < self.calm else self.rng.choice(words)
        self.moves[-1] += f" {word}"
        return word

    def _end(self, ref: Ref) -> Move:
        async def end() -> None:
            word = self._word()
            self.called.pop(ref).set_result(word)

        return end

    def _lease(self, ref: Ref) -> str:
        return "forged" if self.rng.random() < FORGED else lease_id(self.handle.id, ref)

    def _acknowledge(self, ref: Ref) -> Move:
        async def acknowledge() -> None:
            given = await self.handle.acknowledge(ref.path, attempt=ref.number, lease=self._lease(ref))
            self.moves[-1] += f": {given}"

        return acknowledge

    def _answer(self, ref: Ref) -> Move:
        async def answer() -> None:
            self.answered.append(ref)
            told: dict[str, Any] = {"attempt": ref.number, "lease": self._lease(ref)}
            try:
                result = self._ending(self._word(), "forward")
            except StepError as error:
                given = await self.handle.answer(ref.path, **told, error=error)
            else:
                given = await self.handle.answer(ref.path, **told, result=result)
            self.moves[-1] += f": {given}"

        return answer

    def _signal(self, name: str) -> Move:
        async def signal() -> None:
            self.signals += self.rng.random() < 0.8  # else the same message comes again
            await self.handle.signal(name, {"n": self.signals}, id=f"m{self.signals}")

        return signal

    def _decisions(self, number: int, review: Review) -> list[tuple[str, Move]]:
        words: list[Resolution] = list(RESOLUTIONS[review.kind])
        return [(f"{word} review {number} {review.kind} {review.path}", self._decide(review, word)) for word in words]

    def _decide(self, review: Review, word: Resolution) -> Move:
        return lambda: self.starter.resolve(review.id, word, reason="asked")


def _sent(state: Execution) -> set[Ref]:
    """Directives that are out there: whoever has them is not called, but answers when he likes."""
    refs = {effect.ref for effect in state.agenda.values() if isinstance(effect, DispatchAttempt)}
    return {ref for ref in refs if _opened(state, ref).dispatched_at}


def _opened(state: Execution, ref: Ref) -> OpenAttempt:
    holder = holder_of(state, ref)
    assert holder is not None
    assert holder.open is not None
    return holder.open
