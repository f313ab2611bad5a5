"""A draw of seeds and planted bugs, and that a seed is the same run everywhere. `make prove` has more of them."""

from collections import Counter

import pytest

from tests.draw import draw

from .mutants import MUTANTS
from .planted import MAX_SEEDS, hunt
from .run import corpus, run_seed
from .situations import FAULTS, SITUATIONS
from .world import CROWDED, LATEST, NEWER, WIDE

# The worlds that there are: each has what those before it have, and more.
WORLDS = (range(NEWER), range(NEWER, LATEST), range(LATEST, CROWDED), range(CROWDED, WIDE), range(WIDE, WIDE + 100_000))
SEEDS = 4  # of each
QUICK_TO_FIND = (
    "effects are let out before the commit",
    "callers are told before it is kept",
    "a commit with an unknown outcome is taken for applied",
    "the time to wake is lost when an execution is let go of",
    "a limit deals more than there is",
)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")


def test_seeds_that_found_something_hold() -> None:
    _hold(corpus())


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: f"from_{world[0]}")
def test_seeds_hold(world: range) -> None:
    """That every kind of fault is met is asked of many: `make prove`."""
    counts = _hold(draw("hostile", world, SEEDS))
    assert sum(counts[fault] > 0 for fault in FAULTS) > len(FAULTS) // 2


def _hold(seeds: list[int]) -> Counter[str]:
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


@pytest.mark.parametrize("name", QUICK_TO_FIND)
def test_a_planted_bug_is_found(name: str) -> None:
    """`make prove` hunts for all of them."""
    index = [mutant.name for mutant in MUTANTS].index(name)
    assert hunt(index)[1], f"not found in {MAX_SEEDS} seeds"
