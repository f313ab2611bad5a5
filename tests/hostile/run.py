"""Runs seeds, alone or many at a time, and says what came of them."""

import hashlib
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from .world import Violation, World

CORPUS = Path(__file__).with_name("corpus.txt")
PROCESSES = 2


@dataclass(frozen=True)
class Report:
    seed: int
    hash: str
    situations: Counter[str]
    seconds: float  # of the world's own time
    law: str = ""
    detail: str = ""
    tail: tuple[str, ...] = ()

    def explain(self) -> str:
        again = f"  again, with all of its trace: python -m tests.hostile --seed {self.seed}"
        return "\n".join((*self.tail, f"seed {self.seed} violates: {self.law}", f"  {self.detail}", again))


def run_seed(seed: int, *, verbose: bool = False) -> Report:
    world = World(seed, verbose=verbose)
    law = detail = ""
    try:
        world.run()
    except Violation as violation:
        law, detail = violation.law, violation.detail
    except Exception as error:  # whatever a world raises is a finding
        law, detail = f"no seed raises ({type(error).__name__})", "".join(traceback.format_exception(error, limit=-6))
    lines = "\n".join(world.lines)
    return Report(
        seed,
        hashlib.sha256(lines.encode()).hexdigest(),
        world.situations.counts,
        world.loop.time() - 1_000,
        law,
        detail,
        tuple(world.lines) if law or verbose else (),
    )


def run_seeds(seeds: Iterable[int], processes: int = PROCESSES) -> Iterator[Report]:
    """In any order, but every seed is the same run in every process."""
    with get_context("fork").Pool(processes) as pool:
        yield from pool.imap_unordered(run_seed, seeds, chunksize=2)


def corpus() -> list[int]:
    """Seeds that found something once. They are run first, for ever."""
    lines = CORPUS.read_text(encoding="utf-8").splitlines()
    return [int(line.split()[0]) for line in lines if line.strip() and not line.startswith("#")]
