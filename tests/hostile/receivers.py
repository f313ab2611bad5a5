"""Whoever gets the directives of callback steps: takes them up, does what they ask for, and says so; or does not.

Directives are lost, answers come twice, late and under leases that were never given. What is said, is said by mail,
from a process of its own, through a store that fails.
"""

from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from tenuto import Engine, SagaContext
from tenuto.errors import InvalidTransition, ResultTimeout, StorageError

from .loop import Process, pause

if TYPE_CHECKING:
    from .world import World

_RETRY = {"max_attempts": 5, "initial_delay_ms": 200, "jitter": 0.1, "timeout_ms": 3_000}
_SAFE = {"idempotency_strategy": "SAFE_TO_RETRY", "retry_policy": _RETRY, "compensation_handler": "take back"}
SENT: dict[str, Any] = {
    "name": "sent",
    "mode": "sequence",
    "steps": [
        {
            "step_id": "ask",
            "type": "external_call",
            "handler": "ask",
            "completion": "callback",
            "ack_timeout_ms": 6_000,
            "result_timeout_ms": 15_000,
            **_SAFE,
        },
        {"step_id": "use", "type": "task", "handler": "use", **_SAFE},
    ],
}
LOST, FORGED, TWICE, UNACKNOWLEDGED = 0.1, 0.15, 0.3, 0.2
SAID = 40  # times at most that one thing is said to somebody who does not hear


class Directive(NamedTuple):
    execution: str
    path: str
    attempt: int
    lease: str
    key: str


class Receiver:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.rng = Random(f"receiver {world.seed}")
        self.process = Process("receiver")
        self.directives: list[Directive] = []
        self.answered: set[tuple[str, str, int]] = set()  # that were told to have been applied

    def register(self, engine: Engine) -> None:
        out = self.world.outside

        async def ask(ctx: SagaContext) -> None:
            out.asks(ctx)
            await pause(self.world.between(*self.world.pace) / 1_000)
            self.directives.append(
                Directive(ctx.execution_id, ctx.path, ctx.attempt, ctx.lease_id, ctx.idempotency_key)
            )

        async def use(ctx: SagaContext) -> str:
            return await out.act(ctx)

        async def take_back(ctx: SagaContext) -> str:
            return await out.act(ctx, "compensate")

        for name, function in (("ask", ask), ("use", use), ("take back", take_back)):
            engine.handler(name, function)

    async def run(self) -> None:
        engine = await self.world.opened(worker=False)
        done = 0
        while True:
            await pause(0.1)
            while done < len(self.directives):
                directive, done = self.directives[done], done + 1
                self.world.loop.spawn(self.process, self._follow(engine, directive))

    async def _follow(self, engine: Engine, directive: Directive) -> None:
        world, rng = self.world, self.rng
        if rng.random() < LOST:
            world.sometimes("directive lost")
            return
        world.sometimes("directive received")
        if rng.random() > UNACKNOWLEDGED:
            await self._say(engine, directive, directive.lease, takes_up=True)
        await pause(rng.choice((0.1, 1, 4, 12)) * rng.random())
        world.outside.made(directive)
        if rng.random() < FORGED:
            told = await self._say(engine, directive, "forged")
            world.sometimes("answer under a forged lease")
            if told == "applied":
                world.fail("nobody answers without the lease", f"{directive}")
        for _ in range(2 if rng.random() < TWICE else 1):
            told = await self._say(engine, directive, directive.lease)
            world.sometimes("directive answered", told == "applied")
            world.sometimes("answer that changed nothing", told not in ("applied", ""))
            if told == "applied":
                self.answered.add((directive.execution, directive.path, directive.attempt))

    async def _say(self, engine: Engine, directive: Directive, lease: str, *, takes_up: bool = False) -> str:
        """What was told; nothing, if nobody was there to tell."""
        handle = engine.get(directive.execution)
        for _ in range(SAID):
            try:
                if takes_up:
                    return await handle.acknowledge(directive.path, attempt=directive.attempt, lease=lease)
                return await handle.answer(directive.path, attempt=directive.attempt, lease=lease, result="done")
            except InvalidTransition:
                return ""
            except (StorageError, ResultTimeout):
                await pause(0.3)
        return ""
