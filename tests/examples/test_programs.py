"""The examples run, and do what they say."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tenuto.errors import TransientError
from tenuto.testing import Harness

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for the names in their annotations
    spec.loader.exec_module(module)
    return module


async def test_the_trip_is_undone_when_the_card_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    await load("trip").main()
    printed = capsys.readouterr().out
    assert "p-1 for flight to Oslo" in printed
    assert "pay     failed" in printed
    assert printed.rstrip().endswith("cancelled: hotel in Tokyo, flight to Tokyo")


async def test_a_lost_payment_is_found_again() -> None:
    example = load("trip")
    bank = example.Bank()
    async with Harness(example.BookTrip(bank)) as t:
        t.crash("pay", when="after")
        result = await t.execute(example.BookTrip, example.Trip("Oslo", 5))
        assert result.output == example.Payment("p-1", 5)
        assert len(bank.payments) == 1


async def test_the_campaign_keeps_to_the_rate() -> None:
    example = load("campaign")
    async with Harness(example.Campaign()) as t:
        await t.limit("mail", rate="14/s", concurrency=20)
        t.script("send", TransientError("busy"))
        result = await t.execute(example.Campaign, 1_000)
        assert result.output == "1000 of 1000 letters sent"
        assert 1_000 / 14 - 1 < t.elapsed.total_seconds() < 1_000 / 14 + 2


async def test_the_agent_answers_without_the_tool_that_failed() -> None:
    example = load("agent")
    async with Harness(example.Research()) as t:
        result = await t.execute(example.Research, "x")
        assert result.output == "search found something on 'x'; archive found something on 'x'"
        assert [clone.status for clone in result.steps["run_tool"].clones] == ["succeeded", "succeeded", "skipped"]


@pytest.mark.parametrize("name", ["trip", "campaign", "agent"])
def test_a_program_runs_by_itself(name: str) -> None:
    done = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr  # failed attempts are logged
    assert done.stdout


def test_the_survey_prints_what_it_found_and_cost(tmp_path: Path) -> None:
    program = [sys.executable, str(EXAMPLES / "survey" / "survey.py")]
    done = subprocess.run(program, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "[1499] 37.5\n"), done.stderr


def test_programs_import_only_what_is_public() -> None:
    assert {path.name: found for path in EXAMPLES.rglob("*.py") if (found := not_public(path))} == {}


PUBLIC = ("tenuto", "tenuto.errors", "tenuto.runs", "tenuto.telemetry", "tenuto.testing")
LIBRARIES = (
    "apsw",
    "asyncpg",
    "fastapi",
    "httpx2",
    "pydantic",
    "rich",
    "starlette",
)  # of services that embed Tenuto, and the demo


def not_public(path: Path) -> list[str]:
    """What it imports besides the standard library, libraries for services, the public modules, and its own."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.append(node.module or "")
    outside = [
        name for name in names if name.partition(".")[0] not in (*sys.stdlib_module_names, *LIBRARIES, "examples")
    ]
    return [name for name in outside if name not in PUBLIC]
