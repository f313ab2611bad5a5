"""What the hostile world runs: each saga is about something that a fault could break."""

from typing import Annotated, Any

from tenuto import FromStep, Outcome, Retry, Saga, SagaContext, approval, saga, signal, step, wait

from .outside import Outside

FEW, MOST = "few", 2
QUEUED = ("sort", "ship")  # steps that are run by whoever serves their queue
SOON = Retry(3, initial="200ms", jitter=0.1)


class _Acting(Saga[int, str]):
    def __init__(self, out: Outside) -> None:
        self.out = out

    async def undo(self, ctx: SagaContext) -> str:
        return await self.out.act(ctx, "compensate")

    async def find(self, ctx: SagaContext) -> Outcome[str]:
        return await self.out.look(ctx, "reconcile")

    async def guard(self, ctx: SagaContext) -> Outcome[str]:
        return await self.out.look(ctx, "guard")


@saga("pay", output="last")
class Pay(_Acting):
    """The step in the middle may not be repeated blindly."""

    @step(compensate=_Acting.undo, retry=SOON, timeout="3s")
    async def first(self, ctx: SagaContext) -> str:
        return await self.out.act(ctx)

    @step(depends_on=[first], safety="not_safe_to_retry", reconcile=_Acting.find, compensate=_Acting.undo, timeout="3s")
    async def pay(self, ctx: SagaContext) -> str:
        return await self.out.act(ctx, unsafe=True)

    @step(depends_on=[pay], retry=SOON, timeout="3s")
    async def last(self, ctx: SagaContext, paid: Annotated[str, FromStep(pay)]) -> str:
        return await self.out.act(ctx)


@saga("manual", output="send")
class Manual(_Acting):
    """Nobody can find out what became of it but a person."""

    @step(safety="not_safe_to_retry", compensation_policy="manual", compensate=_Acting.undo, timeout="3s")
    async def send(self, ctx: SagaContext) -> str:
        return await self.out.act(ctx, unsafe=True)


@saga("spread", output="join")
class Spread(_Acting):
    """A fan-out between two guarded steps."""

    @step(safety="safe_to_retry_with_guard", guard=_Acting.guard, compensate=_Acting.undo, retry=SOON, timeout="3s")
    async def begin(self, ctx: SagaContext) -> str:
        return await self.out.act(ctx)

    @step(depends_on=[begin], compensate=_Acting.undo, retry=SOON, timeout="3s", foreach="[1, 2, 3, 4, 5]")
    async def each(self, ctx: SagaContext) -> str:
        return await self.out.act(ctx)

    @step(depends_on=[each], retry=SOON, timeout="3s")
    async def join(self, ctx: SagaContext) -> str:
        return await self.out.act(ctx)


@saga("ask", output="after")
class Ask(_Acting):
    """Waits: for a while, for a message, for a person."""

    @step(compensate=_Acting.undo, retry=SOON, timeout="3s")
    async def before(self, ctx: SagaContext) -> str:
        return await self.out.act(ctx)

    rest = wait("4s", depends_on=[before])
    word = signal("word", deadline="60s", depends_on=[rest])
    nod = approval(deadline="90s", depends_on=[word])

    @step(depends_on=[nod], retry=SOON, timeout="3s")
    async def after(self, ctx: SagaContext, word: Annotated[Any, FromStep("word")]) -> str:
        return await self.out.act(ctx)


@saga("queued", output="done")
class Queued(_Acting):
    """Its steps are run by whoever serves their queue."""

    @step(queue="mail", compensate=_Acting.undo, retry=SOON, timeout="3s")
    async def sort(self, ctx: SagaContext) -> str:
        return await self.out.act(ctx)

    @step(
        queue="mail", depends_on=[sort], safety="not_safe_to_retry", reconcile=_Acting.find, compensate=_Acting.undo,
        timeout="3s",
    )  # fmt: skip
    async def ship(self, ctx: SagaContext) -> str:
        return await self.out.act(ctx, unsafe=True)

    @step(depends_on=[ship], retry=SOON, timeout="3s")
    async def done(self, ctx: SagaContext) -> str:
        return await self.out.act(ctx)


@saga("alone", output="two", concurrency_key="'k' + string(input)")
class Alone(_Acting):
    """One at a time for each key."""

    @step(compensate=_Acting.undo, retry=SOON, timeout="3s")
    async def one(self, number: int, ctx: SagaContext) -> str:
        with self.out.world.alone(f"k{number}", ctx.execution_id):
            return await self.out.act(ctx)

    @step(depends_on=[one], retry=SOON, timeout="3s")
    async def two(self, ctx: SagaContext) -> str:
        return await self.out.act(ctx)


@saga("bounded", output="join")
class Bounded(_Acting):
    """A fan-out of which few may run at once, in all processes together."""

    @step(compensate=_Acting.undo, retry=SOON, timeout="3s", foreach="[1, 2, 3, 4, 5]", limits=[FEW])
    async def each(self, ctx: SagaContext) -> str:
        with self.out.world.among_few():
            return await self.out.act(ctx)

    @step(depends_on=[each], retry=SOON, timeout="3s", limits=[FEW])
    async def join(self, ctx: SagaContext) -> str:
        with self.out.world.among_few():
            return await self.out.act(ctx)


@saga("mailed", output="after")
class Mailed(_Acting):
    """Waits for a letter longer than anybody may be late."""

    @step(compensate=_Acting.undo, retry=SOON, timeout="3s")
    async def before(self, ctx: SagaContext) -> str:
        return await self.out.act(ctx)

    word = signal("word", deadline="180s", depends_on=[before])
    more = signal("word", deadline="180s", depends_on=[word])

    @step(depends_on=[more], retry=SOON, timeout="3s")
    async def after(self, ctx: SagaContext) -> str:
        return await self.out.act(ctx)


SAGAS: tuple[type[_Acting], ...] = (Pay, Manual, Spread, Ask, Queued, Alone)
MAILED: tuple[type[_Acting], ...] = (Mailed, Mailed, Mailed)  # where many letters are written
