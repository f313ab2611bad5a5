"""A draw of seeds and planted bugs, and that a seed is the same run everywhere. `make prove` has more of them."""

import pytest

from tests.draw import draw

from .hashseed import check_hash_seeds
from .mutants import MUTANTS
from .planted import MAX_SEEDS, hunt
from .run import corpus, run_seed
from .situations import SITUATIONS

pytestmark = pytest.mark.timeout(900)  # it only computes, for long where others do so too

SEEDS = 100_000
SHARDS = 4
SEEDS_PER_SHARD = 75
BUGS = 6


def test_seeds_that_found_something_hold() -> None:
    _hold(corpus())


@pytest.mark.requirement("B18")
@pytest.mark.parametrize("shard", range(SHARDS))
def test_seeds_hold(shard: int) -> None:
    _hold(draw(f"simulation {shard}", range(SEEDS), SEEDS_PER_SHARD))


def _hold(seeds: list[int]) -> None:
    for seed in seeds:
        report = run_seed(seed)
        assert report.failed is None, report.explain()


def test_a_seed_is_the_same_run_under_every_hash_seed() -> None:
    assert check_hash_seeds(range(10)) == []


def test_a_seed_is_the_same_run_twice() -> None:
    assert run_seed(7).hash == run_seed(7).hash


def test_situations_are_named_once() -> None:
    assert len(set(SITUATIONS)) == len(SITUATIONS) >= 50


@pytest.mark.parametrize("number", range(BUGS))
def test_a_planted_bug_is_found(number: int) -> None:
    name, seeds = hunt(draw("simulation bugs", range(len(MUTANTS)), BUGS)[number])
    assert seeds, f"{name!r} was not found in {MAX_SEEDS} seeds"
