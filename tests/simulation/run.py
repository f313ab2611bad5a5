"""Runs seeds, alone or many at a time, and says what came of them."""

import signal
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from tenuto.checker.invariants import Violated
from tenuto.kernel.transitions import IllegalTransition

from .trace import Violation
from .world import World

CORPUS = Path(__file__).with_name("corpus.txt")
PROCESSES = 2
CHUNK = 20
WATCHDOG_SECONDS = 20


@dataclass(frozen=True)
class Failed:
    law: str
    detail: str
    tail: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    seed: int
    hash: str
    actions: int
    situations: Counter[str]
    failed: Failed | None = None

    def explain(self) -> str:
        assert self.failed is not None
        return "\n".join(
            (
                *self.failed.tail,
                f"seed {self.seed} violates: {self.failed.law}",
                f"  {self.failed.detail}",
                f"  again, with all of its trace: python -m tests.simulation --seed {self.seed}",
            )
        )


def run_seed(seed: int, *, verbose: bool = False) -> Report:
    world = World(seed, verbose=verbose)
    failed = None
    try:
        with _watched():
            world.run()
    except Violation as violation:
        failed = Failed(violation.law, violation.detail, tuple(world.trace.lines))
    except Violated as violated:
        law = f"{violated.invariant.id} {violated.invariant.sentence}"
        failed = Failed(law, violated.detail, tuple(world.trace.lines))
    except IllegalTransition as illegal:
        failed = Failed("only legal transitions", str(illegal), tuple(world.trace.lines))
    except Exception as error:  # whatever a kernel raises that must not raise is a finding
        where = "".join(traceback.format_exception(error, limit=-4))
        failed = Failed(f"no decision raises ({type(error).__name__})", where, tuple(world.trace.lines))
    return Report(seed, world.trace.hash, world.actions, world.situations.counts, failed)


@contextmanager
def _watched() -> Iterator[None]:
    """A decision that never ends is a finding, too. A seed takes milliseconds; this is seconds of computing."""

    def bark(signum: int, frame: object) -> None:
        raise Violation("every decision ends", f"not after {WATCHDOG_SECONDS} seconds of computing")

    signal.signal(signal.SIGVTALRM, bark)
    signal.setitimer(signal.ITIMER_VIRTUAL, WATCHDOG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def run_seeds(seeds: Iterable[int], processes: int = PROCESSES) -> Iterator[Report]:
    """In any order, but every seed is the same run in every process."""
    with get_context("fork").Pool(processes) as pool:
        yield from pool.imap_unordered(run_seed, seeds, chunksize=CHUNK)


def corpus() -> list[int]:
    """Seeds that found something once. They are run first, for ever."""
    lines = CORPUS.read_text(encoding="utf-8").splitlines()
    return [int(line.split()[0]) for line in lines if line.strip() and not line.startswith("#")]
