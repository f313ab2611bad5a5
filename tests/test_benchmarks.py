"""The instrument itself: figures, ratios and measured processes. No test asserts a time."""

import json
import os
from pathlib import Path

import pytest

from benchmarks import processes
from benchmarks.measure import CLEAN_CORES, Series, percentile
from benchmarks.program import Program, Unavailable
from benchmarks.results import Metric, Results
from benchmarks.systems import SYSTEMS
from benchmarks.workload import Effort
from benchmarks.workloads import http

STEPS = Metric("steps", "1/s")
QUIET, BUSY = 0.0, CLEAN_CORES

needs_proc = pytest.mark.skipif(not processes.AVAILABLE, reason="/proc is Linux's")


def test_a_median_is_of_clean_repetitions_and_of_all_where_none_is() -> None:
    series = Series()
    series.add(100, BUSY)
    assert (series.median, series.clean) == (100, [])
    series.add(10, QUIET)
    series.add(30, QUIET)
    assert (series.median, series.clean) == (20, [10, 30])


@pytest.mark.parametrize(("percent", "expected"), [(50, 50), (95, 95), (99, 99), (100, 100)])
def test_a_percentile_is_one_of_the_values(percent: int, expected: int) -> None:
    assert percentile(range(1, 101), percent) == expected


def test_results_are_rows_with_their_ratio_to_us(tmp_path: Path) -> None:
    results = Results(ours={"us": "us", "them": "us", "stranger": "nobody"})
    for system, value in (("us", 1_000), ("them", 50), ("stranger", 7)):
        results.add("W1", system, {STEPS: value}, QUIET)
    results.write(tmp_path / "results.json")
    rows = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert {tuple(row) for row in rows} == {("workload", "system", "metric", "value", "unit", "ratio_to_us")}
    ratios = {row["system"]: row["ratio_to_us"] for row in rows if row["metric"] == "steps"}
    assert ratios == {"us": 1.0, "them": 0.05, "stranger": None}
    assert [row["value"] for row in rows if row["metric"] == "foreign_cores"] == [QUIET] * 3


def test_a_table_says_what_is_missing() -> None:
    results = Results(ours={"us": "us", "them": "us"})
    results.add("W1", "us", {STEPS: 1_000}, BUSY)
    results.note("W1", "them", "not built yet")
    table = results.table("W1").splitlines()
    assert table[2] == "| us | 1,000 † | 1 † | 0/1 | 0.25 |"
    assert table[-1] == "- them: not built yet"


@needs_proc
def test_a_program_is_asked_and_ended() -> None:
    with Program("benchmarks.programs.plain") as program:
        answer = program.ask("throughput", seconds=0, in_flight=1, within=30)
        assert answer["executions"] == 0
        assert len(program.ask("fan_out", width=3, seconds=0, at_most=1, within=30)["each"]) == 1
        assert program.pid in processes.tree(os.getpid())
        with pytest.raises(Unavailable, match="not built yet"):
            program.ask("submit_slow", executions=1, log="", within=30)
    assert program.pid not in processes.tree(os.getpid())


@needs_proc
def test_a_program_that_cannot_start_says_why() -> None:
    with pytest.raises(Unavailable, match="No module named"):
        Program("benchmarks.programs.missing")


@needs_proc
@pytest.mark.parametrize("workload", ["http-create", "http-read", "http-list"])
def test_the_service_is_measured_over_http(workload: str) -> None:
    """That it runs, and finds what it looks for; how fast is for `make bench`."""
    short = Effort(repetitions=1, seconds=0.2, warm_up_s=0.1, takeovers=1, finished=30_000, patience_s=0)
    (measure,) = [each.measure for each in http.WORKLOADS if each.name == workload]
    for system in SYSTEMS:
        if workload in system.stages and "SQLite" in system.name:
            with system.stages[workload]() as stage:
                figures = measure(stage, system, short).figures
            assert figures
            assert all(value > 0 for value in figures.values())
