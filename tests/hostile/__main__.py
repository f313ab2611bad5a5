"""`python -m tests.hostile`: many seeds, one seed with its trace, or the bugs planted in the durable runtime."""

import argparse
import logging
import sys
import time
from collections import Counter
from statistics import median

from .mutants import MUTANTS
from .planted import MAX_SEEDS, hunt_all
from .run import CORPUS, Report, corpus, run_seed, run_seeds
from .situations import SITUATIONS, never_met
from .world import WIDE

DEFAULT_SEEDS = 300
MAX_SHOWN = 3
TOLD_EVERY = 25


def main() -> int:
    logging.disable()
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--seeds", type=int, default=DEFAULT_SEEDS, help="how many (default %(default)s)")
    parser.add_argument("--start", type=int, default=WIDE, help="the first seed (default %(default)s)")
    parser.add_argument("--seed", type=int, help="one seed, with all of its trace")
    parser.add_argument("--planted", action="store_true", help="whether every planted bug is found")
    parser.add_argument("--only", default="", metavar="TEXT", help="planted bugs whose names have this part")
    options = parser.parse_args()
    if options.seed is not None:
        return _one(options.seed)
    return _planted(options.only) if options.planted else _many(options.start, options.seeds)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _one(seed: int) -> int:
    report = run_seed(seed, verbose=True)
    say("\n".join(report.tail))
    say(f"seed {seed} violates: {report.law}\n  {report.detail}" if report.law else f"seed {seed} holds")
    return 1 if report.law else 0


def _many(start: int, count: int) -> int:
    began = time.monotonic()
    counts: Counter[str] = Counter()
    failures: list[Report] = []
    simulated = 0.0
    seeds = [*corpus(), *range(start, start + count)]
    for number, report in enumerate(run_seeds(seeds), 1):
        simulated += report.seconds
        counts.update(report.situations)
        if report.law:
            failures.append(report)
            if len(failures) <= MAX_SHOWN:
                say(report.explain())
        if number % TOLD_EVERY == 0:  # a run that is cut short says how far it came
            sys.stderr.write(f"{number} of {len(seeds)} seeds, {len(failures)} violations\n")
    missing = never_met(counts) if count >= DEFAULT_SEEDS else []
    seconds = time.monotonic() - began
    say(
        f"{len(seeds)} seeds, {simulated / 3_600:.1f} hours of the engine's time in {seconds:.0f} s; "
        f"{len(SITUATIONS) - len(never_met(counts))} of {len(SITUATIONS)} situations; {len(failures)} violations"
    )
    for name in missing:
        say(f"never happened: {name}")
    if failures:
        say(f"violated by seeds {sorted(report.seed for report in failures)[:20]}: when mended, note them in {CORPUS}")
    return 1 if failures or missing else 0


def _planted(part: str) -> int:
    counts: list[int] = []
    planted = sum(part in mutant.name for mutant in MUTANTS)
    for name, seeds in hunt_all(part):
        say(f"{'found after ' + str(seeds) + ' seeds' if seeds else 'NOT FOUND':>22}  {name}")
        counts += [seeds] if seeds else []
    say(
        f"found {len(counts)}/{planted} in at most {MAX_SEEDS} seeds, "
        f"median seeds to find: {median(counts) if counts else '-'}"
    )
    return 0 if len(counts) == planted > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
