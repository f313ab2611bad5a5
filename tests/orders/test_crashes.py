"""A process with all services is killed at its commits, and another one takes over. `make prove` has every commit."""

import pytest

from tests.draw import draw

from .crash import SCENARIOS, crash_all, points

DRAWN = 2  # scenarios in `make test`
EACH = 2  # points of each
REACHED = 0.5  # of the points: the last ones of a run may have nothing to interrupt


def crashes(scenario: str, number: int | None) -> None:
    found = points(scenario)
    assert len(found) > 30
    chosen = found if number is None else draw(f"orders {scenario}", found, number)
    outcomes = crash_all((scenario, point) for point in chosen)
    assert [outcome for outcome in outcomes if outcome.wrong] == []
    assert sum(outcome.killed for outcome in outcomes) >= REACHED * len(outcomes)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", draw("orders crashes", SCENARIOS, DRAWN))
def test_an_order_survives_a_crash_at_drawn_commits(scenario: str) -> None:
    crashes(scenario, EACH)


@pytest.mark.prove
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_order_survives_a_crash_at_every_commit(scenario: str) -> None:
    crashes(scenario, None)
