"""The world that handlers act upon. What is written down here is what happened, whatever the engine believes."""

from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, NoReturn, Protocol

from tenuto import Done, NotDone, Outcome, Pending, SagaContext
from tenuto.errors import IndeterminateError, NonRetryableError, RetryableError, TransientError
from tenuto.kernel import events as e
from tenuto.kernel.address import Phase, clone_path

from .loop import PROCESS, Process, pause

if TYPE_CHECKING:
    from .receivers import Directive


Attempt = tuple[str, str, Phase, int]


class Stage(Protocol):
    """What a handler's world must be able to say."""

    rng: Random
    pace: tuple[float, float]
    trouble: float
    jumps: int
    knows_words: bool

    def time(self) -> float: ...

    def between(self, least_ms: float, most_ms: float) -> float: ...

    def happens_outside(self, share: float) -> bool: ...

    def sometimes(self, name: str, happened: object = True) -> None: ...

    def frozen_times(self, process: Process | None) -> int: ...

    def note(self, line: str) -> None: ...

    def fail(self, law: str, detail: str) -> None: ...

    def alone(self, key: str, execution: str) -> AbstractContextManager[None]: ...

    def among_few(self) -> AbstractContextManager[None]: ...

    def entries_of(self, execution: str) -> list[e.Entry]: ...


@dataclass(frozen=True)
class Effect:
    at: float
    what: str  # begun, asked, applied
    execution: str
    path: str
    phase: Phase
    number: int
    key: str
    process: Process | None


class Outside:
    def __init__(self, world: Stage) -> None:
        self.world = world
        self.effects: list[Effect] = []
        self.applied: Counter[str] = Counter()
        self.begun: Counter[str] = Counter()
        self.attempts: set[Attempt] = set()  # that began
        self.not_done: Counter[str] = Counter()
        self.under_way: Counter[Process | None] = Counter()
        self.may_repeat: Counter[str] = Counter()  # executions, and how often a person said so
        self.doubtful: set[str] = set()  # keys whose first attempt nobody could have stopped

    async def act(self, ctx: SagaContext, phase: Phase = "forward", *, unsafe: bool = False) -> str:
        """One attempt: it begins, takes its time, makes its effect or does not, and may fail before or after that."""
        world = self.world
        self._begin(ctx, phase, unsafe=unsafe)
        process = PROCESS.get()
        began, jumps = world.frozen_times(process), world.jumps
        self.under_way[process] += 1
        if world.knows_words and phase == "forward":
            await ctx.heartbeat({"attempt": ctx.attempt})
        try:
            await pause(world.between(*world.pace) / 1_000)
            if world.happens_outside(world.trouble):
                self._fail(unsafe=unsafe)
            if began != world.frozen_times(process) or jumps != world.jumps:
                self.doubtful.add(ctx.idempotency_key)
            self._note("applied", ctx, phase)
            self.applied[ctx.idempotency_key] += 1
            await pause(world.between(*world.pace) / 1_000)
            if world.happens_outside(world.trouble / 3):
                raise IndeterminateError("no answer") if unsafe else TransientError("no answer")
        finally:
            self.under_way[process] -= 1
        return f"{ctx.path}/{ctx.attempt}"

    def _fail(self, *, unsafe: bool) -> NoReturn:
        kinds = (
            (NonRetryableError, IndeterminateError) if unsafe else (NonRetryableError, TransientError, RetryableError)
        )
        raise self.world.rng.choice(kinds)("trouble")

    async def look(self, ctx: SagaContext, phase: Phase) -> Outcome[str]:
        """A guard or a reconcile handler: it tells the truth, as far as it can be known."""
        world = self.world
        self._begin(ctx, phase, unsafe=False)
        await pause(world.between(*world.pace) / 1_000)
        world.sometimes("unsafe step looked for", phase == "reconcile")
        if world.happens_outside(world.trouble / 2):
            return Pending(retry_after="500ms")
        if self.applied[ctx.forward_key]:
            return Done("found")
        self.not_done[ctx.forward_key] += 1
        return NotDone()

    def asks(self, ctx: SagaContext) -> None:
        """A directive is on its way: again, under the same lease, if whoever sent it was gone before that was kept."""
        self._note("asked", ctx, "forward")
        self._check_granted(ctx, "forward", self.world.entries_of(ctx.execution_id))
        attempt: Attempt = (ctx.execution_id, ctx.path, "forward", ctx.attempt)
        self.world.sometimes("directive sent again", attempt in self.attempts)
        self.attempts.add(attempt)

    def made(self, asked: "Directive") -> None:
        """What was asked for, by whoever was asked."""
        execution, path, number, _, key = asked
        self.applied[key] += 1
        self.effects.append(
            Effect(self.world.time(), "applied", execution, path, "forward", number, key, PROCESS.get())
        )

    def _begin(self, ctx: SagaContext, phase: Phase, *, unsafe: bool) -> None:
        world = self.world
        self._note("begun", ctx, phase)
        entries = world.entries_of(ctx.execution_id)
        self._check_granted(ctx, phase, entries)
        attempt = (ctx.execution_id, ctx.path, phase, ctx.attempt)
        if attempt in self.attempts:
            world.fail("an attempt begins once: what is handed back had not begun", f"{attempt}")
        self.attempts.add(attempt)
        if unsafe:
            self._begin_unsafe(ctx, entries)

    def _check_granted(self, ctx: SagaContext, phase: Phase, entries: list[e.Entry]) -> None:
        if not any(_grants(entry, ctx.path, phase, ctx.attempt) for entry in entries):
            self.world.fail("granted before started", f"{ctx.execution_id} {ctx.path} {phase} {ctx.attempt}")

    def _begin_unsafe(self, ctx: SagaContext, entries: list[e.Entry]) -> None:
        world = self.world
        begun = any(
            isinstance(entry.event, e.AttemptBegun)
            and (entry.event.path, entry.event.number) == (ctx.path, ctx.attempt)
            for entry in entries
        )
        if not begun:
            world.fail("an unsafe attempt is on record before it begins", f"{ctx.execution_id} {ctx.path}")
        key = ctx.idempotency_key
        self.begun[key] += 1
        world.sometimes("unsafe step begun")
        world.sometimes("unsafe step begun again", self.begun[key] > 1)
        if self.begun[key] > 1 + self.not_done[key] + self.may_repeat[ctx.execution_id]:
            world.fail("an unsafe step is never repeated by itself", f"{ctx.execution_id} {ctx.path} {self.begun[key]}")

    def _note(self, what: str, ctx: SagaContext, phase: Phase) -> None:
        self.world.note(f"{what} {ctx.execution_id} {ctx.path} {phase} {ctx.attempt}")
        self.effects.append(
            Effect(
                self.world.time(),
                what,
                ctx.execution_id,
                ctx.path,
                phase,
                ctx.attempt,
                ctx.idempotency_key,
                PROCESS.get(),
            )
        )


def _grants(entry: e.Entry, path: str, phase: Phase, number: int) -> bool:
    for grant in entry.grants:
        if (grant.phase, grant.number) != (phase, number):
            continue
        if grant.path == path or any(
            clone_path(grant.path, index) == path for index in range(grant.first, grant.last + 1) if index >= 0
        ):
            return True
    return False
