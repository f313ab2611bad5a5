"""`make prove` itself: what is run, what is skipped when it continues, and what its report says."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pytest

from docs import figures
from tests import draw
from tests.prove.__main__ import STOPPED, _run
from tests.prove.proofs import Done, Proof, Proofs
from tests.prove.report import Report

COMMIT = "c0ffee00" * 5


def options(**given: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"shard": (1, 1), "minutes": math.inf, "again": False, **given})


@pytest.fixture
def ran() -> list[str]:
    return []


def proof(name: str, ran: list[str], *, wrong: str = "", stops: bool = False) -> Proof:
    def run() -> Done:
        ran.append(name)
        if stops and ran.count(name) == 1:
            raise KeyboardInterrupt
        return Done({"points": 2}, [wrong] if wrong else [])

    return Proof(name, run)


def test_a_run_that_was_stopped_is_continued(tmp_path: Path, ran: list[str]) -> None:
    proofs = [proof(f"crash/sqlite/{number}", ran, stops=number == 3) for number in range(6)]
    report = Report(COMMIT, tmp_path)
    assert _run(report, proofs, proofs, options()) == STOPPED
    assert _run(report, proofs, proofs, options()) == 0
    assert sorted(ran) == sorted([*(each.name for each in proofs), "crash/sqlite/3"])


def test_what_failed_is_repeated_and_what_another_commit_passed_counts_for_nothing(
    tmp_path: Path, ran: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    proofs = [proof("crash/sqlite/good", ran), proof("crash/sqlite/bad", ran, wrong="it was lost")]
    for _ in range(2):
        assert _run(Report(COMMIT, tmp_path), proofs, proofs, options()) == 1
    assert sorted(ran) == ["crash/sqlite/bad", "crash/sqlite/bad", "crash/sqlite/good"]
    told = capsys.readouterr().out
    assert "it was lost" in told
    assert f'SEED={draw.seed()} python -m tests.prove --again --only "crash/sqlite/bad"' in told
    assert not Report("another commit", tmp_path).passed()


def test_a_proof_that_raises_has_failed(tmp_path: Path) -> None:
    def run() -> Done:
        raise LookupError("no such scenario")

    proofs = [Proof("crash/sqlite/broken", run)]
    assert _run(Report(COMMIT, tmp_path), proofs, proofs, options()) == 1
    (path,) = tmp_path.iterdir()
    (line,) = [line for line in map(json.loads, path.read_text().splitlines()) if line["record"] == "proof"]
    assert "no such scenario" in line["wrong"][0]


def test_time_that_is_over_leaves_the_rest_for_later(tmp_path: Path, ran: list[str]) -> None:
    proofs = [proof("crash/sqlite/any", ran)]
    assert _run(Report(COMMIT, tmp_path), proofs, proofs, options(minutes=0)) == 0
    assert ran == []


def test_everything_is_proved_on_both_databases_and_has_a_name_of_its_own() -> None:
    with Proofs(1, jobs=2) as proofs:
        names = [each.name for each in proofs.all()]
    assert len(set(names)) == len(names)
    kinds = {name.partition("/")[0] for name in names}
    assert kinds == {
        "crash", "chaos", "power", "simulation", "simulation-planted", "hostile", "hostile-planted", "differential",
        "schemathesis", "tests",
    }  # fmt: skip
    for kind in ("crash", "chaos"):
        sqlite, postgres = (
            sum(name.startswith(f"{kind}/{each}/") for name in names) for each in ("sqlite", "postgres")
        )
        assert sqlite == postgres > 0


def test_figures_are_made_from_the_newest_commit(tmp_path: Path) -> None:
    Report("0" * 40, tmp_path).write("run", proofs={"crash": 9}, seed=1, shard="1/1")
    report = Report(COMMIT, tmp_path)
    report.write("run", proofs={"crash": 4, "chaos": 2}, seed=7, shard="1/1")
    for scenario in ("a", "a", "b"):  # the first was repeated
        counts = {"points": 30, "second_crashes": 60, "killed": 1_000}
        report.write("proof", proof=f"crash/sqlite/{scenario}", kind="crash", seed=7, figures=counts, wrong=[])
    chaos = {"executions": {"succeeded": 5}, "takeover_seconds": [1.0, 3.0, 2.0], "copies": 11}
    report.write("proof", proof="chaos/sqlite/0", kind="chaos", seed=7, figures=chaos, wrong=["it was lost"])
    text = figures.figures(figures.read(tmp_path))
    assert text.startswith("Commit `c0ffee00c0ff`, ")
    assert "seed 7: 3 of 6 proofs were run." in text
    assert "| crash | 2 | 4 | 0 |" in text
    assert "| chaos | 1 | 2 | 1 |" in text
    assert "| SQLite | 2 | 60 | 120 | 2,000 |" in text
    assert "| executions | 5 succeeded |" in text
    assert "owned all of the worker's executions: median, maximum | 2.0, 3.0 |" in text


def test_a_draw_is_repeated_by_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(seed: str, name: str = "any") -> list[int]:
        monkeypatch.setenv(draw.VARIABLE, seed)
        draw.seed.cache_clear()
        return draw.draw(name, range(100), 10)

    try:
        assert drawn("1") == drawn("1") == sorted(drawn("1"))
        assert drawn("1") != drawn("2")
        assert drawn("1") != drawn("1", "other")
        assert draw.draw("few", range(3), 10) == [0, 1, 2]
    finally:
        draw.seed.cache_clear()


def test_the_seed_is_that_of_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(draw.VARIABLE)
    draw.seed.cache_clear()
    try:
        assert draw.seed() == int(draw.commit()[:8], 16)
    finally:
        draw.seed.cache_clear()
