"""The checker is only as good as what it finds: every invariant has violations planted, and each is found by it."""

import pytest

from tenuto.checker import INVARIANTS, Checker
from tenuto.storage.shared.records import HolderRecord, LimitRecord, TenantLimitRow

from .plants import PLANTS, Plant, jobs
from .sites import watching
from .streams import NOW, found_in, given, stream

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


async def test_the_rows_of_a_job_are_sound_before_something_is_planted() -> None:
    assert await found_in(jobs.records()) == []


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


@pytest.mark.parametrize("id", ["I5", "I6"])
async def test_what_can_have_a_reason_is_told_and_is_no_violation(id: str) -> None:
    for plant in PLANTS[id]:
        checker = Checker()
        assert [found async for found in checker.findings(given(plant()))] == []
        assert [told.invariant for told in checker.told] == [id]


async def test_what_is_within_its_limits_is_not_told_of() -> None:
    full = [
        LimitRecord(name="bank", count=2, period_ms=1_000, concurrency=2, spent=f"[[{NOW}, 5], [{NOW + 1}, 2]]"),
        TenantLimitRow(tenant="t", max_in_flight=2, in_flight=2, counted=2),
        *(
            HolderRecord(name=name, session=s, held=1, wanted=3, asked_at=1, served_at=1, session_ended_at=None)
            for s in ("one", "two")
            for name in ("bank", "other")
        ),
    ]
    sound = stream("invoice")
    assert await found_in([*sound[:2], *full, *sound[2:]]) == []
