"""Second crashes: whoever recovers from a first one is killed as well."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from random import Random

from .harness import Case, Outcome
from .points import Point

DOUBLES = 2  # second crashes for each first one


def second_crashes(first: Iterable[Outcome], number: int | None, seed: int) -> Iterator[Case]:
    """Crashes of those who recover from a first one: so many for each, or at every commit of theirs.

    Those few are chosen where the fewest were so far, so that a scenario's recoveries are hit everywhere.
    """
    for name, outcomes in groupby(first, key=lambda outcome: outcome.case.scenario):
        rng = Random(f"{seed} {name}")
        hit: Counter[Point] = Counter()
        for outcome in outcomes:
            points = list(outcome.recovery)
            if number is not None:
                rng.shuffle(points)
                points = sorted(points, key=lambda point: hit[point])[:number]
            hit.update(points)
            yield from (Case(name, (*outcome.case.points, point)) for point in points)
