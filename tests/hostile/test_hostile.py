"""A bounded part of `python -m tests.hostile`, and that a seed is the same run everywhere."""

from collections import Counter

import pytest

from .mutants import MUTANTS
from .planted import MAX_SEEDS, hunt
from .run import corpus, run_seed
from .situations import FAULTS, SITUATIONS
from .world import CROWDED, LATEST, NEWER, WIDE

SEEDS_PER_SHARD = 6
SHARDS = (0, SEEDS_PER_SHARD, NEWER, NEWER + SEEDS_PER_SHARD, NEWER + 2 * SEEDS_PER_SHARD, LATEST, CROWDED, WIDE)
QUICK_TO_FIND = (
    "effects are let out before the commit",
    "a commit with an unknown outcome is taken for applied",
    "the time to wake is lost when an execution is let go of",
    "a limit deals more than there is",
)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")


def test_seeds_that_found_something_hold() -> None:
    _hold(corpus())


@pytest.mark.parametrize("first", SHARDS)
def test_seeds_hold(first: int) -> None:
    """That every kind of fault is met is asked of many: `python -m tests.hostile`."""
    counts = _hold(range(first, first + SEEDS_PER_SHARD))
    assert sum(counts[fault] > 0 for fault in FAULTS) > len(FAULTS) // 2


def _hold(seeds: "list[int] | range") -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in seeds:
        report = run_seed(seed)
        assert not report.law, report.explain()
        counts.update(report.situations)
    return counts


def test_a_seed_is_the_same_run_twice() -> None:
    assert run_seed(3, verbose=True).hash == run_seed(3, verbose=True).hash


def test_situations_are_named_once() -> None:
    assert len(set(SITUATIONS)) == len(SITUATIONS)


def test_mutants_are_named_once() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) == 49


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK_TO_FIND)
def test_a_planted_bug_is_found(name: str) -> None:
    """All of them: `python -m tests.hostile --planted`."""
    index = [mutant.name for mutant in MUTANTS].index(name)
    assert hunt(index)[1], f"not found in {MAX_SEEDS} seeds"
