"""Code that cannot read what is stored: it is set aside, and goes on with code that can, or is cancelled."""

import logging
from typing import Annotated, Any

from tenuto import Engine, FromStep, Handle, SagaContext
from tenuto.runtime.durable import parked_executions
from tests.crash.client import Client
from tests.crash.scenario import Document, scenario, task, unsafe
from tests.crash.world import World

from .several_engines import LEASE, QUEUES

LOOK_SECONDS = 0.05  # whoever comes looks for what was set aside, also if that is recorded just then


def _provide(engine: Engine, world: World, *, fits: bool) -> None:
    """What reads the result of `a`: as it is, or as the number that it never was."""

    async def reads(value: Annotated[dict[str, Any], FromStep("a")], ctx: SagaContext) -> Any:
        return await world.act(value, ctx)

    async def misreads(value: Annotated[int, FromStep("a")], ctx: SagaContext) -> Any:
        return await world.act(value, ctx)

    async def unreads(value: Annotated[dict[str, Any], FromStep("a")], ctx: SagaContext) -> None:
        await world.undo(value, ctx)

    async def cannot_unread(value: Annotated[int, FromStep("a")], ctx: SagaContext) -> None:
        await world.undo(value, ctx)

    engine.handler("read", reads if fits else misreads)
    engine.handler("unread", unreads if fits else cannot_unread)


def _is_news(said: logging.LogRecord) -> bool:
    """That it is set aside is what is wanted here."""
    return getattr(said, "action", "") != "set_aside"


async def _set_aside(client: Client) -> Handle[Any]:
    """By a worker whose code does not fit, and however often one of those is killed over it."""
    vars(parked_executions)["LOOK_SECONDS"] = LOOK_SECONDS
    parked_executions.logger.addFilter(_is_news)
    _provide(client.engine, client.world, fits=False)
    handle = await client.start()
    await client.blocked(handle, "incompatible")
    return handle


async def _elsewhere(client: Client) -> None:
    handle = await _set_aside(client)
    async with Engine(client.engine.url, lease=LEASE, **QUEUES) as other:
        client.world.provide(other)
        _provide(other, client.world, fits=True)
        await client.finish(handle)


async def _cancel(client: Client) -> None:
    """Nobody can read it, and nobody has to."""
    handle = await _set_aside(client)
    await client.command(handle.cancel("compensate"))
    await client.finish(handle)


READ: Document = {"handler": "read"}

scenario("set aside, read elsewhere", task("a"), task("b", **READ), task("c"), script=_elsewhere)
scenario("payment set aside, made elsewhere", task("a"), unsafe("pay", timeout=400, **READ), script=_elsewhere)
scenario("set aside, cancelled", task("a", undo="ok"), task("b", **READ), script=_cancel, ends="canceled")
scenario("payment set aside, cancelled", task("a", undo="ok"), unsafe("pay", **READ), script=_cancel, ends="canceled")
scenario(
    "given back to a queue, read elsewhere",
    task("a"),
    task("b", queue="gpu", **READ),
    script=_elsewhere,
    options=QUEUES,
)
scenario(
    "undo set aside, undone elsewhere",
    task("a", undo="ok"),
    {**task("b", undo="ok"), "compensation_handler": "unread"},
    task("c", "refused"),
    script=_elsewhere,
    ends="failed",
)
