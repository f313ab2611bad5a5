"""A bounded part of `make sim`, the planted bugs, and that a seed is the same run everywhere."""

import pytest

from .hashseed import check_hash_seeds
from .mutants import MUTANTS
from .planted import MAX_SEEDS, hunt
from .run import corpus, run_seed
from .situations import SITUATIONS

pytestmark = pytest.mark.timeout(900)  # it only computes, for long where others do so too

SHARDS = 4
SEEDS_PER_SHARD = 400


def test_seeds_that_found_something_hold() -> None:
    _hold(corpus())


@pytest.mark.parametrize("shard", range(SHARDS))
def test_seeds_hold(shard: int) -> None:
    _hold(range(shard * SEEDS_PER_SHARD, (shard + 1) * SEEDS_PER_SHARD))


def _hold(seeds: "list[int] | range") -> None:
    for seed in seeds:
        report = run_seed(seed)
        assert report.failed is None, report.explain()


def test_a_seed_is_the_same_run_under_every_hash_seed() -> None:
    assert check_hash_seeds(range(10)) == []


def test_a_seed_is_the_same_run_twice() -> None:
    assert run_seed(7).hash == run_seed(7).hash


def test_situations_are_named_once() -> None:
    assert len(set(SITUATIONS)) == len(SITUATIONS) >= 50


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(MUTANTS)), ids=[mutant.name for mutant in MUTANTS])
def test_a_planted_bug_is_found(index: int) -> None:
    _, seeds = hunt(index)
    assert seeds, f"not found in {MAX_SEEDS} seeds"
