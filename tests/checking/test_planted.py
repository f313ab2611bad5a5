"""The checker is only as good as what it finds: every invariant has violations planted, and each is found by it."""

import pytest

from tenuto.checking import INVARIANTS

from .plants import PLANTS, Plant
from .sites import watching
from .streams import found_in

# Rules that no record can break, and why they are there all the same.
UNBREAKABLE = {
    'require(was == now or now in STEP.get(was, ()), G1, f"{path} went from {was} to {now}")': (
        "the fold asserts the same table, and such a history cannot be followed (G3); this is for `python -O`"
    ),
}


def test_every_invariant_has_a_planted_violation() -> None:
    assert sorted(PLANTS) == sorted(INVARIANTS)


@pytest.mark.parametrize(
    ("id", "plant"),
    [pytest.param(id, plant, id=f"{id}-{n}") for id in sorted(PLANTS) for n, plant in enumerate(PLANTS[id])],
)
async def test_a_planted_violation_is_found(id: str, plant: Plant) -> None:
    assert id in await found_in(plant())


async def test_every_rule_is_broken_by_a_violation_that_is_planted_for_it() -> None:
    """A rule that was never seen to fail may not be able to."""
    with watching() as watch:
        for id, plants in PLANTS.items():
            watch.wanted = id
            for plant in plants:
                await found_in(plant())
    missed = {site.text: f"{site.module}.py:{site.first}" for site in watch.missed()}
    left = {text: place for text, place in missed.items() if text not in UNBREAKABLE}
    assert left == {}
    assert UNBREAKABLE.keys() <= missed.keys(), "these can be broken, and are"
