"""`python -m tests.crash`: every crash point of every scenario on both databases, and crashes during the recovery."""

import argparse
import sys
import time
from collections.abc import Iterable
from random import Random

from tests.servers.postgres import running

from .harness import Case, Harness
from .points import Point
from .scenario import SCENARIOS

DOUBLES = 2  # second crashes for each first one


def main() -> int:
    options = _parse()
    names = [name for name in SCENARIOS if options.scenario in name]
    wrong = 0
    if options.database != "postgres":
        wrong += _run(Harness(), "SQLite", names, options.doubles, options.seed)
    if options.database != "sqlite":
        with running() as server:
            wrong += _run(Harness(server), "PostgreSQL", names, options.doubles, options.seed)
    return 1 if wrong else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--scenario", default="", help="only those with this in their name")
    parser.add_argument("--database", choices=["sqlite", "postgres", "both"], default="both")
    parser.add_argument("--doubles", type=int, default=DOUBLES, help="second crashes for each first (%(default)s)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="which second crashes")
    return parser.parse_args()


def _run(harness: Harness, database: str, names: list[str], doubles: int, seed: int) -> int:
    began = time.monotonic()
    found = harness.points_of(names)
    cases = [case for name, points in found.items() for case in cases_of(name, points, doubles, seed)]
    killed = wrong = 0
    for outcome in harness.crash_all(cases):
        killed += outcome.killed
        if outcome.wrong:
            wrong += 1
            _say(f"{database}: {outcome.case}")
            _say("".join(f"    {line}\n" for text in outcome.wrong for line in text.splitlines()))
    seconds = time.monotonic() - began
    _say(
        f"{database}: {len(names)} scenarios, {len(cases)} cases, {killed} crashes in {seconds:.0f} s; "
        f"{wrong} wrong (seed {seed})"
    )
    return wrong


def cases_of(name: str, points: list[Point], doubles: int, seed: int) -> Iterable[Case]:
    """Every single crash of a scenario, and some double ones: the second one hits whoever recovers from the first."""
    rng = Random(f"{seed} {name}")
    for point in points:
        yield Case(name, (point,))
        for second in rng.sample(points, min(doubles, len(points))):
            yield Case(name, (point, second))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
