"""Everything that `make prove` does, in parts of minutes. Each part is repeatable by its name and the seed."""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.chaos.faults import faults
from tests.chaos.places import File, Place, postgres_place
from tests.chaos.run import Load
from tests.chaos.run import Run as ChaosRun
from tests.crash.doubles import DOUBLES, second_crashes
from tests.crash.harness import Case, Harness, unreached
from tests.crash.scenario import SCENARIOS
from tests.differential.compare import compare, places
from tests.draw import ROOT
from tests.hostile import mutants as hostile_mutants
from tests.hostile import planted as hostile_planted
from tests.hostile import run as hostile
from tests.hostile.world import WIDE
from tests.power.run import Run as PowerRun
from tests.servers.postgres import Server, running
from tests.simulation import mutants as simulation_mutants
from tests.simulation import planted as simulation_planted
from tests.simulation import run as simulation

DATABASES = ("sqlite", "postgres")
FEWEST_POINTS = 10  # a scenario with fewer commits has lost what it was about
CHAOS_RUNS = 5
CHAOS_FAULTS = 60
CHAOS_RATE = 40.0
POWER_RUNS = 10
POWER_IMAGES = 30
SIMULATION_PARTS = 8
SIMULATION_SEEDS = 1_000
HOSTILE_PARTS = 12
HOSTILE_SEEDS = 25
PLANTED_AT_A_TIME = 7
DIFFERENTIAL_PARTS = 10
DIFFERENTIAL_PROGRAMS = 20
FUZZ_EXAMPLES = 200
SHOWN = 3  # of what is wrong in one proof
FAR = 1_000_000  # seeds of one commit are that far from those of the next

PASSED = re.compile(r"(\d+) passed")


@dataclass
class Done:
    """What a proof measured, and what it found wrong."""

    figures: dict[str, Any]
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Proof:
    name: str  # `kind/part`, or `kind/database/part`
    run: Callable[[], Done]

    @property
    def kind(self) -> str:
        return self.name.partition("/")[0]


class Proofs:
    """The proofs under a seed, and the PostgreSQL server that some of them share."""

    def __init__(self, seed: int, jobs: int) -> None:
        self._seed = seed
        self._jobs = jobs
        self._stack = ExitStack()

    def __enter__(self) -> "Proofs":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @cached_property
    def _server(self) -> Server:
        return self._stack.enter_context(running())

    def all(self) -> Iterator[Proof]:
        for database in DATABASES:
            for scenario in SCENARIOS:
                yield Proof(f"crash/{database}/{scenario}", partial(self._crash, database, scenario))
            for number in range(CHAOS_RUNS):
                yield Proof(f"chaos/{database}/{number}", partial(self._chaos, database, number))
        for number in range(POWER_RUNS):
            yield Proof(f"power/{number}", partial(self._power, number))
        for number in range(SIMULATION_PARTS):
            yield Proof(f"simulation/{number}", partial(self._simulation, number))
        for number in range(HOSTILE_PARTS):
            yield Proof(f"hostile/{number}", partial(self._hostile, number))
        for name, hunt, mutants in (
            ("simulation-planted", simulation_planted.hunt, simulation_mutants.MUTANTS),
            ("hostile-planted", hostile_planted.hunt, hostile_mutants.MUTANTS),
        ):
            for first in range(0, len(mutants), PLANTED_AT_A_TIME):
                chosen = range(first, min(first + PLANTED_AT_A_TIME, len(mutants)))
                yield Proof(f"{name}/{first}", partial(self._planted, hunt, chosen))
        for number in range(DIFFERENTIAL_PARTS):
            yield Proof(f"differential/{number}", partial(self._differential, number))
        yield Proof("schemathesis", self._schemathesis)
        for path in marked():
            yield Proof(f"tests/{path}", partial(self._tests, path))

    # -- Processes that are killed -------------------------------------------------------------------------------------

    def _crash(self, database: str, scenario: str) -> Done:
        """Every crash point of a scenario, and for each some crashes in the recovery."""
        harness = Harness(self._server if database == "postgres" else None)
        points = harness.points(scenario)
        first = list(harness.crash_all(Case(scenario, (point,)) for point in points))
        second = list(harness.crash_all(second_crashes(first, DOUBLES, self._seed)))
        wrong = [f"{outcome.case}\n" + "\n".join(outcome.wrong) for outcome in (*first, *second) if outcome.wrong]
        wrong += [complaint for complaint in (unreached(first), _too_few(points)) if complaint]
        figures = {
            "points": len(first),
            "second_crashes": len(second),
            "killed": sum(outcome.killed for outcome in (*first, *second)),
        }
        return Done(figures, wrong)

    def _chaos(self, database: str, number: int) -> Done:
        seed = self._seed + number
        if database == "postgres":
            with postgres_place() as place:
                return _play(place, seed, Load(workers=3, submitters=2, rate=CHAOS_RATE), databases=6)
        with tempfile.TemporaryDirectory(prefix="tenuto-chaos-") as folder:
            return _play(File(Path(folder) / "x.db"), seed, Load(workers=2, submitters=1, rate=CHAOS_RATE), copies=11)

    def _power(self, number: int) -> Done:
        run = PowerRun(self._seed + number, images=POWER_IMAGES)
        run.play()
        return Done({name: run.counts[name] for name in ("images", "executions", "effects")}, run.wrong)

    # -- Simulated time ------------------------------------------------------------------------------------------------

    def _simulation(self, number: int) -> Done:
        start = FAR + self._seed % FAR * FAR + number * SIMULATION_SEEDS
        kept = simulation.corpus() if number == 0 else []
        reports = list(simulation.run_seeds([*kept, *range(start, start + SIMULATION_SEEDS)], self._jobs))
        failed = [report for report in reports if report.failed is not None]
        figures = {
            "seeds": len(reports),
            "actions": sum(report.actions for report in reports),
            "situations": _met([report.situations for report in reports]),
        }
        return Done(figures, [report.explain() for report in failed])

    def _hostile(self, number: int) -> Done:
        start = WIDE + self._seed % FAR * FAR + number * HOSTILE_SEEDS
        kept = hostile.corpus() if number == 0 else []
        reports = list(hostile.run_seeds([*kept, *range(start, start + HOSTILE_SEEDS)], self._jobs))
        figures = {
            "seeds": len(reports),
            "simulated_seconds": round(sum(report.seconds for report in reports)),
            "situations": _met([report.situations for report in reports]),
        }
        return Done(figures, [report.explain() for report in reports if report.law])

    def _planted(self, hunt: Callable[[int], tuple[str, int]], chosen: Sequence[int]) -> Done:
        with get_context("fork").Pool(self._jobs) as pool:
            found = dict(pool.imap(hunt, chosen, chunksize=1))
        missed = [f"the planted bug was not found: {name}" for name, seeds in found.items() if not seeds]
        return Done({"bugs": len(found), "seeds_to_find": [seeds for seeds in found.values() if seeds]}, missed)

    # -- Comparisons ---------------------------------------------------------------------------------------------------

    def _differential(self, number: int) -> Done:
        start = FAR + self._seed % FAR * FAR + number * DIFFERENTIAL_PROGRAMS
        programs = range(start, start + DIFFERENTIAL_PROGRAMS)
        entries, wrong = 0, list[str]()
        for program in programs:
            try:
                with places(self._server) as urls:
                    entries += asyncio.run(compare(program, urls))
            except AssertionError as error:
                wrong.append(str(error))
        return Done({"programs": len(programs), "entries": entries}, wrong)

    # -- Tests ---------------------------------------------------------------------------------------------------------

    def _schemathesis(self) -> Done:
        given = {"FUZZ_EXAMPLES": str(FUZZ_EXAMPLES), "FUZZ_SEED": str(self._seed)}
        done = self._pytest("tests/service/test_openapi.py", "-k", "schemathesis", **given)
        return Done({**done.figures, "examples": FUZZ_EXAMPLES}, done.wrong)

    def _tests(self, path: str) -> Done:
        return self._pytest(path, "--prove", "-m", "prove")

    def _pytest(self, *arguments: str, **environment: str) -> Done:
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(self._jobs), *arguments]
        given = {**os.environ, "SEED": str(self._seed), **environment}
        done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)
        passed = PASSED.search(done.stdout)
        return Done({"tests": int(passed[1]) if passed else 0}, [done.stdout[-8_000:]] if done.returncode else [])


def marked() -> list[str]:
    """The test files of which something is left to `make prove`."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in paths if "mark.prove" in path.read_text(encoding="utf-8")]


def _too_few(points: Sequence[object]) -> str:
    return "" if len(points) >= FEWEST_POINTS else f"there are only {len(points)} crash points"


def _play(place: Place, seed: int, load: Load, **options: int) -> Done:
    run = ChaosRun(place, seed, load)
    run.play(faults(seed, CHAOS_FAULTS, **options))
    found = run.figures
    figures = {
        "executions": dict(found.statuses),
        "attempts": dict(found.attempts),
        "effects": dict(found.effects),
        "late_effects": found.late,
        "faults": dict(found.faults),
        "takeover_seconds": [round(seconds, 2) for seconds in found.taken_over],
        "recovery_seconds": [round(seconds, 2) for seconds in found.back_to_work],
        "shutdown_seconds": [round(seconds, 2) for seconds in found.stops],
        "copies": found.images,
    }
    return Done(figures, run.wrong)


def _met(counts: Sequence[Counter[str]]) -> list[str]:
    return sorted({name for each in counts for name, number in each.items() if number})
