"""Makes the figures of docs/reliability.md from the reports of `make prove`: `make figures` writes them there.

It takes the lines about one commit, by default the one that was proved last, from every file in `proofs/`: reports of
several machines are simply put there together.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
REPORTS = ROOT / "proofs"
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- proofs:begin -->", "<!-- proofs:end -->"
NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}

# Of chaos, by the names in the report.
COUNTED = ("executions", "attempts", "effects", "faults")
TIMED = (
    ("takeover_seconds", "seconds from a kill until other workers owned all of the worker's executions"),
    ("recovery_seconds", "seconds from the kill of the database to the next effect"),
    ("shutdown_seconds", "seconds from SIGTERM to the end of the process"),
)
SUMMED = (
    ("copies", "copies opened and run to completion"),
    ("late_effects", "effects of a process that was frozen before it made them"),
)

Line = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m docs.figures", description=__doc__.partition("\n")[0])
    parser.add_argument("--commit", default="", help="the beginning of a commit (default: the one proved last)")
    parser.add_argument("--write", action="store_true", help=f"write to {PAGE.name}, between {BEGIN} and {END}")
    options = parser.parse_args()
    lines = list(read(REPORTS, options.commit))
    if not lines:
        sys.stderr.write(f"There are no proofs in {REPORTS}. Run `make prove` first.\n")
        return 1
    text = figures(lines)
    if not options.write:
        sys.stdout.write(text)
        return 0
    page = PAGE.read_text(encoding="utf-8")
    if BEGIN not in page or END not in page:
        sys.stderr.write(f"{PAGE} has no place for the figures. Add the lines {BEGIN} and {END}.\n")
        return 1
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 0


def read(folder: Path, commit: str = "") -> Iterator[Line]:
    """The lines about a commit, in the order in which they were written."""
    found: list[Line] = []
    for path in folder.glob("*.jsonl"):
        found += [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = sorted((line for line in found if line["commit"].startswith(commit)), key=lambda line: str(line["at"]))
    return (line for line in found if line["commit"] == found[-1]["commit"])


def figures(lines: Iterable[Line]) -> str:
    """Markdown: what was proved, when, and what was not run. A proof that was repeated counts once."""
    every = list(lines)
    planned = Counter[str]()
    for line in every:
        if line["record"] == "run":
            planned = Counter(line["proofs"])
    proofs = list({line["proof"]: line for line in every if line["record"] == "proof"}.values())
    days = sorted({line["at"][:10] for line in proofs})
    seeds = sorted({line["seed"] for line in proofs})
    parts = [
        f"Commit `{every[-1]['commit'][:12]}`, {' to '.join(dict.fromkeys([*days[:1], *days[-1:]]))}, "
        f"seed {', '.join(map(str, seeds))}: {len(proofs)} of {planned.total()} proofs were run.",
        _table(
            ["proof", "run", "of", "failed"],
            [[kind, *_run_and_failed(kind, planned[kind], proofs)] for kind in planned],
        ),
    ]
    for section in (_crashes, _chaos, _simulated, _others):
        parts += section(proofs)
    return "\n\n".join(parts) + "\n"


def _run_and_failed(kind: str, planned: int, proofs: list[Line]) -> list[str]:
    run = [line for line in proofs if line["kind"] == kind]
    return [str(len(run)), str(planned), str(sum(bool(line["wrong"]) for line in run))]


def _of(kind: str, proofs: list[Line], database: str = "") -> list[Line]:
    """What was measured by proofs of a kind, on a database if one is named."""
    prefix = f"{kind}/{database}/" if database else kind
    return [line["figures"] for line in proofs if line["kind"] == kind and line["proof"].startswith(prefix)]


def _sum(found: list[Line], name: str) -> int:
    return sum(line.get(name, 0) for line in found)


def _crashes(proofs: list[Line]) -> Iterator[str]:
    rows = []
    for database, title in NAMES.items():
        if found := _of("crash", proofs, database):
            numbers = [len(found), *(_sum(found, name) for name in ("points", "second_crashes", "killed"))]
            rows.append([title, *(f"{number:,}" for number in numbers)])
    if rows:
        yield _table(["crashes", "scenarios", "crash points", "second crashes, in recovery", "processes killed"], rows)


def _chaos(proofs: list[Line]) -> Iterator[str]:
    found = {title: _of("chaos", proofs, database) for database, title in NAMES.items()}
    found = {title: runs for title, runs in found.items() if any(runs)}
    if not found:
        return
    rows = [["runs", *(str(len(runs)) for runs in found.values())]]
    rows += [[name, *(_counted(runs, name) for runs in found.values())] for name in COUNTED]
    rows += [[f"{title}: median, maximum", *(_spread(runs, name) for runs in found.values())] for name, title in TIMED]
    rows += [[title, *(f"{_sum(runs, name):,}" for runs in found.values())] for name, title in SUMMED]
    yield _table(["chaos", *found], rows)


def _counted(runs: list[Line], name: str) -> str:
    total = sum((Counter(run.get(name, {})) for run in runs), Counter[str]())
    return ", ".join(f"{number:,} {kind}" for kind, number in total.most_common())


def _spread(runs: list[Line], name: str) -> str:
    times = [seconds for run in runs for seconds in run.get(name, ())]
    return f"{median(times):.1f}, {max(times):.1f}" if times else "–"


def _simulated(proofs: list[Line]) -> Iterator[str]:
    rows = []
    for kind, title in (("simulation", "kernel"), ("hostile", "durable runtime on a hostile store")):
        seeds, planted = _of(kind, proofs), _of(f"{kind}-planted", proofs)
        met = {name for line in seeds for name in line.get("situations", ())}
        hunted = [number for line in planted for number in line.get("seeds_to_find", ())]
        bugs = f"{len(hunted)} of {_sum(planted, 'bugs')}"
        after = f"{median(hunted):g}, {max(hunted)}" if hunted else "–"
        rows.append([title, f"{_sum(seeds, 'seeds'):,}", str(len(met)), bugs, after])
    yield _table(["simulation", "seeds", "situations met", "planted bugs found", "after seeds: median, maximum"], rows)


def _others(proofs: list[Line]) -> Iterator[str]:
    power, differential = _of("power", proofs), _of("differential", proofs)
    fuzzing, tests = _of("schemathesis", proofs), _of("tests", proofs)
    yield _table(
        ["others", "figures"],
        [
            ["power loss", f"{_sum(power, 'images'):,} images of {_sum(power, 'executions'):,} executions"],
            ["differential", f"{_sum(differential, 'programs'):,} programs, {_sum(differential, 'entries'):,} entries"],
            ["HTTP fuzzing", f"{_sum(fuzzing, 'examples')} examples of each operation"],
            ["tests that only `make prove` runs", f"{_sum(tests, 'tests')}"],
        ],
    )


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


if __name__ == "__main__":
    sys.exit(main())
