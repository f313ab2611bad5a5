"""The checker is only as good as what it finds: every invariant has a violation planted, and it is found."""

import pytest

from tenuto.checking import INVARIANTS

from .plants import PLANTS, Plant
from .streams import found_in


def test_every_invariant_has_a_planted_violation() -> None:
    assert sorted(PLANTS) == sorted(INVARIANTS)


@pytest.mark.parametrize(
    ("id", "plant"),
    [pytest.param(id, plant, id=f"{id}-{n}") for id in sorted(PLANTS) for n, plant in enumerate(PLANTS[id])],
)
async def test_a_planted_violation_is_found(id: str, plant: Plant) -> None:
    assert id in await found_in(plant())
