"""The register of invariants: each has an id, a sentence, and the family it belongs to.

A family is a module. It declares its invariants at its top, and has functions that ask for them with `require`. What
they are asked of is data: entries and grants against the model so far, or stored rows. No rule here calls the engine's
own rules: where both need a table, it is written down a second time.
"""

from typing import Literal, NamedTuple

When = Literal["always", "at rest", "told"]


class Invariant(NamedTuple):
    """`when`: it holds of every prefix of a history, or only where nothing is under way.

    What is only `told` is for information: there can be a reason why it does not hold, and no row has it.
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
    """An invariant does not hold here. `detail` names places and numbers, never payloads."""

    def __init__(self, invariant: Invariant, detail: object) -> None:
        super().__init__(f"{invariant.id}: {invariant.sentence} {detail}")
        self.invariant = invariant
        self.detail = str(detail)


def require(condition: object, invariant: Invariant, detail: object) -> None:
    if not condition:
        raise Violated(invariant, detail)
