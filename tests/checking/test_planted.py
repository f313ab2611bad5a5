"""The checker is only as good as what it finds: every invariant has a violation planted, and it is found."""

import pytest

from tenuto.checking import INVARIANTS

from .plants import PLANTS
from .streams import found_in


def test_every_invariant_has_a_planted_violation() -> None:
    assert sorted(PLANTS) == sorted(INVARIANTS)


@pytest.mark.parametrize("id", sorted(PLANTS))
async def test_a_planted_violation_is_found(id: str) -> None:
    assert id in await found_in(PLANTS[id]())
