"""`python -m tests.crash`: every crash point of every scenario on both databases, and crashes during the recovery."""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from random import Random

from tests.servers.postgres import running

from .doubles import DOUBLES, second_crashes
from .harness import Case, Harness, Outcome
from .scenario import SCENARIOS


def main() -> int:
    options = _parse()
    part, parts = options.shard
    names = [name for name in SCENARIOS if options.scenario in name][part - 1 :: parts]
    if options.shard != (1, 1):
        _say(f"part {part} of {parts}: {', '.join(names)}")
    wrong = 0
    if options.database != "postgres":
        wrong += _run(Harness(), "SQLite", names, options)
    if options.database != "sqlite":
        with running() as server:
            wrong += _run(Harness(server), "PostgreSQL", names, options)
    return 1 if wrong else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--scenario", default="", help="only those with this in their name")
    parser.add_argument("--database", choices=["sqlite", "postgres", "both"], default="both")
    parser.add_argument("--doubles", type=int, default=DOUBLES, help="second crashes for each first (%(default)s)")
    parser.add_argument("--all-doubles", action="store_true", help="a second crash at every commit of every recovery")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="which second crashes, and which of all")
    parser.add_argument("--minutes", type=float, help="on each database: as many as fit, drawn by the seed from all")
    parser.add_argument(
        "--shard", type=_shard, default=(1, 1), metavar="I/N", help="the Ith of N parts of the scenarios"
    )
    return parser.parse_args()


def _shard(text: str) -> tuple[int, int]:
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(text)
    return part, parts


def _run(harness: Harness, database: str, names: list[str], options: argparse.Namespace) -> int:
    began = time.monotonic()
    found = harness.points_of(names)
    singles = [Case(name, (point,)) for name, points in found.items() for point in points]
    first = list(_told(database, _crash(harness, singles, began, options, 0.5)))
    number = None if options.all_doubles else options.doubles
    doubles = list(second_crashes(sorted(first, key=lambda outcome: outcome.case), number, options.seed))
    second = list(_told(database, _crash(harness, doubles, began, options, 1.0)))
    wrong = sum(bool(outcome.wrong) for outcome in (*first, *second))
    _say(
        f"{database}: {len(names)} scenarios, {_of(first, singles)} crash points, {_of(second, doubles)} second "
        f"crashes in the recovery; {sum(outcome.killed for outcome in (*first, *second))} processes killed in "
        f"{time.monotonic() - began:.0f} s; {wrong} wrong (seed {options.seed})"
    )
    return wrong


def _crash(
    harness: Harness, cases: list[Case], began: float, options: argparse.Namespace, share: float
) -> Iterator[Outcome]:
    """All of them; or, in this share of the minutes, as many as fit."""
    if options.minutes is None:
        return harness.crash_all(cases)
    drawn = Random(options.seed).sample(cases, len(cases))
    return harness.crash_all(drawn, began + 60 * share * options.minutes)


def _of(outcomes: list[Outcome], cases: list[Case]) -> str:
    return f"{len(outcomes)}" if len(outcomes) == len(cases) else f"{len(outcomes)} of {len(cases)}"


def _told(database: str, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    for outcome in outcomes:
        if outcome.wrong:
            _say(f"{database}: {outcome.case}")
            _say("".join(f"    {line}\n" for text in outcome.wrong for line in text.splitlines()))
        yield outcome


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
