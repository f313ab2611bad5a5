"""A draw of single crashes on both databases, which differs with each commit. `make prove` has every crash point."""

from collections.abc import Callable

import pytest

from tests.draw import draw
from tests.servers.postgres import Server

from .conftest import CRASHES
from .harness import Case, Harness, Outcome, unreached
from .scenario import SCENARIOS

NAMES = list(SCENARIOS)
DRAWN = {"sqlite": (40, 3), "postgres": (24, 3)}  # scenarios, and points in each
SHARDS = 4

Note = Callable[[str, object], None]


def _is_right(outcomes: list[Outcome], note: Note) -> None:
    wrong = [f"{outcome.case}\n" + "\n".join(outcome.wrong) for outcome in outcomes if outcome.wrong]
    assert not wrong, "\n\n".join(wrong)
    note(CRASHES, sum(outcome.killed for outcome in outcomes))
    assert not unreached(outcomes)


def test_there_are_scenarios_of_all_kinds() -> None:
    assert len(NAMES) >= 40


@pytest.mark.requirement("B9", "G1")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("database", DRAWN)
def test_drawn_commits_survive_a_crash(
    database: str, shard: int, request: pytest.FixtureRequest, record_property: Note
) -> None:
    server: Server | None = request.getfixturevalue("postgres_server") if database == "postgres" else None
    scenarios, each = DRAWN[database]
    harness = Harness(server)
    found = harness.points_of(draw(f"crash {database}", NAMES, scenarios)[shard::SHARDS])
    assert all(len(points) >= 10 for points in found.values())
    chosen = [(name, point) for name, points in found.items() for point in draw(f"{database} {name}", points, each)]
    _is_right(list(harness.crash_all(Case(name, (point,)) for name, point in chosen)), record_property)
