"""Single crashes: every point of every scenario on SQLite, 300 of them on PostgreSQL. `make chaos` has more."""

from collections.abc import Callable, Iterator
from random import Random

import pytest

from tests.servers.postgres import Server, running

from .conftest import CRASHES
from .harness import Case, Harness, Outcome
from .scenario import SCENARIOS

ON_POSTGRES = 300
SHARDS = 6
REACHED = 0.7

NAMES = list(SCENARIOS)


Note = Callable[[str, object], None]


def _is_right(outcomes: list[Outcome], note: Note) -> None:
    wrong = [f"{outcome.case}\n" + "\n".join(outcome.wrong) for outcome in outcomes if outcome.wrong]
    assert not wrong, "\n\n".join(wrong)
    # Runs differ a little: the last points may find nothing to interrupt. The rest must be reached, or prove nothing.
    crashes = sum(outcome.killed for outcome in outcomes)
    note(CRASHES, crashes)
    assert crashes >= REACHED * len(outcomes), f"only {crashes} of {len(outcomes)} points were reached"


def test_there_are_scenarios_of_all_kinds() -> None:
    assert len(NAMES) >= 40


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_every_commit_survives_a_crash(name: str, record_property: Note) -> None:
    harness = Harness()
    points = harness.points(name)
    assert len(points) >= 10
    _is_right(list(harness.crash_all(Case(name, (point,)) for point in points)), record_property)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as started:
        yield started


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_commits_survive_a_crash_on_postgres(shard: int, server: Server, record_property: Note) -> None:
    harness = Harness(server)
    found = harness.points_of(NAMES[shard::SHARDS])
    cases = [Case(name, (point,)) for name, points in found.items() for point in points]
    chosen = Random(f"shard {shard}").sample(cases, ON_POSTGRES // SHARDS)
    _is_right(list(harness.crash_all(chosen)), record_property)
