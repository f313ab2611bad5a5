"""In one process, with nothing kept: plain asyncio, us, and a library."""

from contextlib import AbstractContextManager
from functools import partial

from benchmarks.program import Program
from benchmarks.system import Stage, System
from benchmarks.targets import MEMORY

OURS = "benchmarks.programs.ours"


def program(module: str, *arguments: str) -> AbstractContextManager[Stage]:
    return Stage(partial(Program, module, *arguments))


PLAIN = partial(program, "benchmarks.programs.plain")
SAGAZ = partial(program, "benchmarks.programs.sagaz_library")
PLAINLY = partial(program, OURS, "memory://")
WITH_TIMEOUTS = partial(program, OURS, "memory://", "--timeouts")

SYSTEMS = [
    System(
        name="plain asyncio",
        ours=MEMORY,
        stages={"saga-5": PLAIN, "fan-out-1000": PLAIN, "fan-out-100000": PLAIN},
    ),
    System(
        name=MEMORY,
        ours=MEMORY,
        stages={"saga-5": PLAINLY, "fan-out-1000": PLAINLY, "fan-out-100000": PLAINLY},
    ),
    System(
        name=f"{MEMORY}, a timeout on every step",
        ours=MEMORY,
        stages={"saga-5": WITH_TIMEOUTS, "fan-out-1000": WITH_TIMEOUTS},
    ),
    System(name="sagaz", ours=MEMORY, stages={"saga-5": SAGAZ, "fan-out-1000": SAGAZ}),
]
