"""What goes wrong when, by a seed."""

from collections.abc import Iterator
from random import Random
from typing import Literal, NamedTuple

Kind = Literal["kill", "freeze", "end", "kill submitter", "kill people", "kill database", "copy"]

WEIGHTS: dict[Kind, int] = {"kill": 5, "freeze": 2, "end": 2, "kill submitter": 1, "kill people": 1}


class Fault(NamedTuple):
    """`after`: how many seconds of peace come before. `which`: of several. `length`: in leases, for those that last."""

    kind: Kind
    after: float
    which: int
    length: float


def faults(seed: int, number: int, *, databases: int = 0, copies: int = 0) -> Iterator[Fault]:
    """That many, of all kinds that there are, in the seed's order."""
    random = Random(f"{seed} faults")
    once: list[Kind] = ["kill database"]
    copied: list[Kind] = ["copy"]
    kinds = once * databases + copied * copies
    chosen = random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=max(0, number - len(WEIGHTS)))
    kinds += [*WEIGHTS, *chosen]
    random.shuffle(kinds)
    for kind in kinds:
        yield Fault(kind, random.uniform(0.3, 1.5), random.randrange(1_000), random.uniform(1.3, 2.2))
