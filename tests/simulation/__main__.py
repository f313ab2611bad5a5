"""`python -m tests.simulation`: many seeds, one seed with its trace, the planted bugs, or the check of hash orders."""

import argparse
import math
import sys
import time
from collections import Counter

from .hashseed import check_hash_seeds
from .mutants import MUTANTS
from .planted import hunt_all
from .run import CORPUS, PROCESSES, Report, corpus, run_seed, run_seeds
from .situations import SITUATIONS, never_reached

DEFAULT_SEEDS = 8_000
MAX_SHOWN = 3


def main() -> int:
    options = _parse()
    if options.seed is not None:
        return _one(options.seed)
    if options.planted:
        return _planted(options.processes)
    if options.hashseed_check:
        return _hash_seeds()
    return _many(options)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=DEFAULT_SEEDS, help="how many (default %(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no longer than this")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="at a time (default %(default)s)")
    parser.add_argument("--seed", type=int, help="one seed, with all of its trace")
    parser.add_argument("--planted", action="store_true", help="whether every planted bug is found")
    parser.add_argument("--hashseed-check", action="store_true", help="whether a seed is the same run everywhere")
    return parser.parse_args()


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _one(seed: int) -> int:
    report = run_seed(seed, verbose=True)
    say("\n".join(report.failed.tail) if report.failed else f"seed {seed} holds, {report.actions} actions")
    if report.failed is None:
        return 0
    say(f"seed {seed} violates: {report.failed.law}\n  {report.failed.detail}")
    return 1


def _many(options: argparse.Namespace) -> int:
    began = time.monotonic()
    seeds = [*corpus(), *range(options.start, options.start + options.seeds)]
    counts: Counter[str] = Counter()
    failures: list[Report] = []
    actions = done = 0
    for report in run_seeds(seeds, options.processes):
        done += 1
        actions += report.actions
        counts.update(report.situations)
        if report.failed is not None:
            failures.append(report)
            if len(failures) <= MAX_SHOWN:
                say(report.explain())
        if time.monotonic() - began > 60 * options.minutes:
            break
    missing = never_reached(counts) if done >= DEFAULT_SEEDS else []
    seconds = time.monotonic() - began
    say(
        f"{done} seeds, {actions} actions in {seconds:.0f} s ({done / seconds:.0f} seeds/s); "
        f"{len(SITUATIONS) - len(never_reached(counts))} of {len(SITUATIONS)} situations; {len(failures)} violations"
    )
    for name in missing:
        say(f"never happened: {name}")
    if failures:
        say(f"violated by seeds {sorted(report.seed for report in failures)[:20]}: when mended, note them in {CORPUS}")
    return 1 if failures or missing else 0


def _planted(processes: int) -> int:
    found = hunt_all(processes)
    for name, seeds in found.items():
        say(f"{'found after ' + str(seeds) + ' seeds' if seeds else 'NOT FOUND':>22}  {name}")
    counts = sorted(seeds for seeds in found.values() if seeds)
    say(f"found {len(counts)}/{len(MUTANTS)}, median seeds to find: {counts[len(counts) // 2] if counts else '-'}")
    return 0 if len(counts) == len(MUTANTS) else 1


def _hash_seeds() -> int:
    differing = check_hash_seeds(range(40))
    say(f"differ by PYTHONHASHSEED: {differing}" if differing else "40 seeds are the same run under two hash seeds")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
