"""A short run: a dozen faults on each database. `make prove` has longer ones."""

from pathlib import Path

import pytest

from .faults import faults
from .places import File, postgres_place
from .run import Load, Run

FAULTS = 12
SEED = 1


def _is_right(run: Run, database: str) -> None:
    again = f"python -m tests.chaos --database {database} --seed {SEED} --faults {FAULTS}"
    assert not run.wrong, "\n".join([*run.wrong, *run.figures.lines(), again])
    # What never happened was not tried.
    figures = run.figures
    assert figures.statuses["succeeded"] > 0
    assert figures.effects["made"] > 0
    assert figures.faults["kill"] > 0
    assert len(figures.taken_over) == figures.faults["kill"]


@pytest.mark.timeout(1_200)
def test_nothing_is_lost_on_postgres() -> None:
    with postgres_place() as place:
        run = Run(place, SEED, Load(workers=3, submitters=2, rate=30.0))
        run.play(faults(SEED, FAULTS, databases=2))
    _is_right(run, "postgres")
    assert len(run.figures.outages) == 2


@pytest.mark.timeout(1_200)
def test_nothing_is_lost_on_one_file(tmp_path: Path) -> None:
    run = Run(File(tmp_path / "x.db"), SEED, Load(workers=2, submitters=1, rate=30.0))
    run.play(faults(SEED, FAULTS, copies=3))
    _is_right(run, "sqlite")
    assert run.figures.images == 3


def test_a_seed_is_a_schedule() -> None:
    first = list(faults(7, 40, databases=2, copies=3))
    assert first == list(faults(7, 40, databases=2, copies=3))
    assert first != list(faults(8, 40, databases=2, copies=3))
    assert {fault.kind for fault in first} == {
        "kill", "freeze", "end", "kill submitter", "kill people", "kill database", "copy",
    }  # fmt: skip
