"""Plays a program on a runtime. All that happens outside is decided by the seed, one thing at a time.

A handler that is called waits until it is told to go on. Whenever the execution can do nothing more by itself, the seed
says what happens next: which handler comes to its end and how, which message arrives, what a person says. Time stands
still meanwhile: it goes on, to the next timer, when all that was granted is called. So the order of facts is the same
everywhere, and whatever differs then, the runtimes made of it.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from time import monotonic, time
from typing import Any

from tenuto import Done, Engine, Handle, NotDone, Outcome, Pending, SagaContext
from tenuto.errors import IndeterminateError, InvalidTransition, NonRetryableError, RetryableError, TransientError
from tenuto.kernel.address import Phase, Ref
from tenuto.kernel.decide.people import RESOLUTIONS
from tenuto.kernel.effects import DispatchAttempt, RunAttempt
from tenuto.kernel.events import Entry, Resolution
from tenuto.kernel.state import Execution, Review
from tenuto.testing import VirtualClock

from .programs import Program

SOON_MS = 60_000
MAX_MOVES = 250
PATIENCE_SECONDS = 240
Move = Callable[[], Awaitable[None]]


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
        self.engine = Engine(url, clock=self.clock, lease="60s", queues=("default", "side"))
        self.rng = Random(f"outside {program.seed}")
        self.calm = self.rng.choice((0.6, 0.9, 1.0))  # how many attempts succeed
        self.meddling = self.rng.choice((0.0, 0.0, 0.1, 0.3))
        self.called: dict[Ref, asyncio.Future[str]] = {}
        self.moves: list[str] = []
        self.signals = 0
        self.retries = 0
        self.handle: Handle[Any]

    async def play(self) -> Played:
        async with self.engine:
            return await self._play()

    async def _play(self) -> Played:
        for name, phase in (("work", "forward"), ("undo", "compensate"), ("guard", "guard"), ("find", "reconcile")):
            self.engine.handler(name, self._handler(phase))  # type: ignore[arg-type]  # phases
        await self.engine.apply(self.program.document)
        self.handle = await self.engine.start("differential", self.program.input)
        while (state := await self._at_rest()).finished is None or self._retries(state):
            assert len(self.moves) < MAX_MOVES, f"no end after {self.moves}"
            await self._move(state)
        reading = await self.engine._runtime.read(None, self.handle.id)
        return Played(self.handle.id, list(reading.history), self.moves, state.status)

    # -- Handlers ------------------------------------------------------------------------------------------------------

    def _handler(self, phase: Phase) -> Callable[[SagaContext], Awaitable[object]]:
        async def called(ctx: SagaContext) -> object:
            ref = Ref(ctx.path, phase, ctx.attempt)
            told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            self.called[ref] = told
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
            state = (await self.engine._runtime.read(None, self.handle.id)).state
            if state.finished is not None or (self._has_called(state) and not self._is_due_soon(state)):
                return state
            assert monotonic() < deadline, f"neither goes on nor rests after {self.moves}: {dict(state.agenda)}"
            await asyncio.to_thread(os.sched_yield)

    def _has_called(self, state: Execution) -> bool:
        granted = {effect.ref for effect in state.agenda.values() if isinstance(effect, RunAttempt | DispatchAttempt)}
        return granted == set(self.called)

    def _is_due_soon(self, state: Execution) -> bool:
        """Then it is due now. What a pause holds back is not due, and waits for the time after it."""
        if state.wake_at is None or state.wake_at - self.clock.now_ms() >= SOON_MS:
            return False
        self.clock.go_to(state.wake_at)
        return True

    async def _move(self, state: Execution) -> None:
        moves = self._moves(state)
        meddled = self._meddling(state)
        if meddled and (not moves or self.rng.random() < self.meddling):
            moves = meddled
        assert moves, f"nothing can happen any more after {self.moves}"
        name, move = moves[self.rng.randrange(len(moves))]
        self.moves.append(name)
        try:
            await move()
        except InvalidTransition as error:
            self.moves.append(f"refused: {error.code}")

    def _moves(self, state: Execution) -> list[tuple[str, Move]]:
        moves = [(f"end {ref.path} {ref.phase} {ref.number}", self._end(ref)) for ref in sorted(self.called)]
        moves += [(f"signal {name}", self._signal(name)) for name in sorted(state.waits)]
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
        if len(self.moves) > 4:
            moves.append(("cancel", lambda: self.handle.cancel(self.rng.choice(("drain", "terminate", "compensate")))))
        return moves

    def _retries(self, state: Execution) -> bool:
        return state.status == "failed" and self.retries < 1 and self.meddling > 0

    async def _retry(self) -> None:
        self.retries += 1
        await self.handle.retry(reason="again")

    def _end(self, ref: Ref) -> Move:
        async def end() -> None:
            words = ["indeterminate", "transient", "transient", "retryable", "non_retryable", "done", "pending"]
            word = "ok" if self.rng.random() < self.calm else self.rng.choice(words)
            self.moves[-1] += f" {word}"
            told = self.called.pop(ref)
            told.set_result(word)

        return end

    def _signal(self, name: str) -> Move:
        async def signal() -> None:
            self.signals += self.rng.random() < 0.8  # else the same message comes again
            await self.handle.signal(name, {"n": self.signals}, id=f"m{self.signals}")

        return signal

    def _decisions(self, number: int, review: Review) -> list[tuple[str, Move]]:
        words: list[Resolution] = list(RESOLUTIONS[review.kind])
        return [(f"{word} review {number} {review.kind} {review.path}", self._decide(review, word)) for word in words]

    def _decide(self, review: Review, word: Resolution) -> Move:
        return lambda: self.engine.resolve(review.id, word, reason="asked")
