"""The process that is killed, and the one that takes over: a worker with a client that runs a scenario to its end."""

import asyncio
import os
import sys
import traceback
from pathlib import Path
from typing import NamedTuple

import msgspec

from tenuto import Engine
from tenuto.runtime.durable.claimer import Claimer

from . import scenarios
from .client import Client
from .plants import PLANTS
from .points import Point, Trap, set_trap
from .scenario import SCENARIOS
from .verdict import judge
from .world import World

LEASE = "1s"

assert scenarios.__all__  # importing them registers what they hold


class Job(NamedTuple):
    scenario: str
    url: str
    folder: Path
    point: Point | None
    judged: bool
    plant: str = ""


class Told(msgspec.Struct):
    """What a process that was not killed leaves behind: its points, and what was wrong in the end."""

    points: list[Point]
    wrong: list[str]


def work(job: Job) -> None:
    """Ends by the point's signal, or with 0 and a report, or with 1."""
    trap = Trap(job.point)
    set_trap(job.url, trap)
    _watch_net(World(job.folder / "log"))
    if job.plant:
        PLANTS[job.plant].change()
    try:
        asyncio.run(_run(job))
        points = trap.points()
        trap.point = None
        wrong = asyncio.run(judge(SCENARIOS[job.scenario], job.url, World(job.folder / "log"))) if job.judged else []
        (job.folder / "told").write_bytes(msgspec.json.encode(Told(points, wrong)))
    except BaseException:
        (job.folder / "failed").write_text(traceback.format_exc())
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _watch_net(world: World) -> None:
    """Whatever the net under claims catches goes on, and the outcome may be right. But somebody had lost it."""

    def caught(_: Claimer, number: int) -> None:
        world.note("wrong", why=f"{number} executions were in nobody's hand")

    type.__setattr__(Claimer, "_report_found", caught)


async def _run(job: Job) -> None:
    scenario = SCENARIOS[job.scenario]
    world = World(job.folder / "log")
    options = scenario.options | ({"publish": world.publish} if "messages" in scenario.options else {})
    async with Engine(job.url, lease=LEASE, shutdown_grace="1s", **options) as engine:
        world.provide(engine)
        await engine.apply(scenario.document)
        caller = engine.scoped(tenant="default", actor=scenario.actor) if scenario.actor else engine
        await scenario.script(Client(caller, world, scenario.document["name"]))
