"""The register of invariants: each has an id, a sentence, and a family.

A family is a module. It declares its invariants at the top, and its functions check them with `require`, on data:
entries and grants against the model so far, or stored rows. No rule calls the engine's own rules. If both need a table,
it exists twice.
"""

from typing import Literal, NamedTuple

When = Literal["always", "at rest", "told"]


class Invariant(NamedTuple):
    """An invariant. `when`: it holds for every prefix of a history, or only when nothing is in progress.

    An invariant that is only `told` is reported as information, because there can be reasons that no row shows.
    """

    id: str
    sentence: str
    family: str
    when: When = "always"


INVARIANTS: dict[str, Invariant] = {}


class Family:
    """Declares the invariants of one module."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, id: str, sentence: str, when: When = "always") -> Invariant:
        assert id not in INVARIANTS, f"{id} is declared twice"
        INVARIANTS[id] = Invariant(id, sentence, self.name, when)
        return INVARIANTS[id]


class Violated(Exception):
    """An invariant is violated. `detail` contains paths and numbers, never payloads."""

    def __init__(self, invariant: Invariant, detail: object) -> None:
        super().__init__(f"{invariant.id}: {invariant.sentence} {detail}")
        self.invariant = invariant
        self.detail = str(detail)


def require(condition: object, invariant: Invariant, detail: object) -> None:
    if not condition:
        raise Violated(invariant, detail)
