"""`tenuto worker`: the processes that a deployment is made of."""

import signal
from typing import TYPE_CHECKING, Annotated

import typer

from .command import command, place
from .screen import Screen
from .words import many

if TYPE_CHECKING:
    from tenuto.engine import Engine
    from tenuto.settings import Settings

SECTION = "Processes"

App = Annotated[
    str | None, typer.Option(metavar="MODULE[:NAME]", help="Your sagas and @handler functions; TENUTO_APP unless said.")
]
Queues = Annotated[
    list[str] | None, typer.Option("--queue", metavar="NAME", help="Whose steps to run, as often as needed.")
]


async def worker(context: typer.Context, app: App = None, queue: Queues = None) -> None:
    """Run steps: a worker, without the API. SIGTERM ends it when what runs is done, or after 30 s."""
    settings = place(context).settings(app=app, queues=tuple(queue) if queue else None)
    engine = make_engine(settings)
    async with engine:
        names = await store_definitions(engine)
        Screen().say(f"worker on {settings.url}, {_queues(settings)}: {', '.join(names) or 'no sagas, handlers only'}")
        await until_stopped()
        Screen().say("stopping: waits for what runs")


def make_engine(settings: "Settings") -> "Engine":
    """An engine that runs steps, with the user's sagas and handlers."""
    from tenuto.engine import Engine

    engine = Engine(
        settings.url,
        queues=settings.queues,
        lease=settings.lease,
        shutdown_grace=settings.shutdown_grace,
        slots=settings.slots,
        threads=settings.threads,
    )
    if settings.app:
        from .loading import load_app

        engine.register(*load_app(settings.app))
    return engine


async def store_definitions(engine: "Engine") -> list[str]:
    """Stores what is registered, so that clients without the code can start it; gives what there is."""
    return [f"{each['name']} {each['version']}" async for each in engine.definitions()]


def _queues(settings: "Settings") -> str:
    noun = many(len(settings.queues), "queue").partition(" ")[2]
    return f"{noun} {', '.join(settings.queues)}"


async def until_stopped() -> None:
    """Until SIGTERM or Ctrl-C. A second one ends the process at once."""
    import asyncio

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        await stopped.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def add_to(app: typer.Typer) -> None:
    command(app, "worker", SECTION)(worker)
