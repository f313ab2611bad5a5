"""Whether bugs that were planted in the durable runtime and its store are found, and how soon."""

from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any

from tests.simulation.planted import changed

from .mutants import MUTANTS, Change
from .run import PROCESSES, run_seed

MAX_SEEDS = 150
# What the change itself may raise, and nobody foresaw, proves nothing about the laws.
ACCIDENTS = ("no seed raises", "nothing fails where nobody listens")


def hunt(index: int) -> tuple[str, int]:
    """How many seeds it took to find this one; 0 when it was not found."""
    with changed([_at_home(change) for change in MUTANTS[index].changes()]):
        for number in range(MAX_SEEDS):
            law = run_seed(MUTANTS[index].since + number).law
            if law and not law.startswith(ACCIDENTS):
                return MUTANTS[index].name, number + 1
    return MUTANTS[index].name, 0


def _at_home(change: Change) -> Change:
    """Where it is written, when the class that was named only inherits it."""
    where, name, value = change
    lines: tuple[Any, ...] = getattr(where, "__mro__", (where,))
    return next((line for line in lines if name in vars(line)), where), name, value


def hunt_all(part: str = "", processes: int = PROCESSES) -> Iterator[tuple[str, int]]:
    """Those whose names have this part."""
    wanted = [index for index, mutant in enumerate(MUTANTS) if part in mutant.name]
    with get_context("fork").Pool(processes) as pool:
        yield from pool.imap_unordered(hunt, wanted, chunksize=1)
