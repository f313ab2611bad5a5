"""What the pages show is run, and prints what they say it prints."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .pages import ROOT, fences, run_page, steady, write_files

PAGES = [ROOT / "docs" / "tutorial.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]


@pytest.fixture
def logs_as_before() -> Iterator[None]:
    """What a page makes of the log, as an application may, is not for the tests that follow."""
    before = {log: (log.level, log.propagate, list(log.handlers)) for log in loggers()}
    yield
    for log in loggers():
        level, log.propagate, log.handlers[:] = before.get(log, (logging.NOTSET, True, []))
        log.setLevel(level)


def loggers() -> list[logging.Logger]:
    known = list(logging.Logger.manager.loggerDict.values())
    return [logging.getLogger(), *(log for log in known if isinstance(log, logging.Logger))]


@pytest.mark.usefixtures("logs_as_before")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(page) + len(write_files(page, tmp_path)) > 0


def run_in(folder: Path, *command: str, **environment: str) -> str:
    given = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TENUTO"))}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=given | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tutorial_runs_as_pasted(tmp_path: Path) -> None:
    page = ROOT / "docs" / "tutorial.md"
    code = "\n\n".join(fence.text for fence in fences(page) if fence.info == "python")
    (tmp_path / "shop.py").write_text(code, encoding="utf-8")
    assert write_files(page, tmp_path) == ["test_shop.py", "pytest.ini"]
    printed = run_in(tmp_path, "shop.py")
    assert steady(printed) == "\n".join(steady(fence.text) for fence in fences(page) if fence.info == "text")
    assert "3 passed" in run_in(tmp_path, "-m", "pytest", "-q", "-p", "no:schemathesis", "-p", "no:cacheprovider")


def test_the_embedded_application_runs_as_pasted(tmp_path: Path) -> None:
    page = ROOT / "docs" / "guides" / "fastapi.md"
    assert write_files(page, tmp_path) == ["trips.py", "web.py", "worker.py", "test_web.py", "pytest.ini"]
    assert "1 passed" in run_in(tmp_path, "-m", "pytest", "-q", "-p", "no:schemathesis", "-p", "no:cacheprovider")


def test_the_worker_of_the_embedded_application_runs_what_others_start(tmp_path: Path) -> None:
    write_files(ROOT / "docs" / "guides" / "fastapi.md", tmp_path)
    program = """
import asyncio
from trips import BookTrip, Trip, make_engine

async def main():
    async with make_engine(worker=False) as engine:
        print((await engine.execute(BookTrip, Trip("Oslo", 80))).output)

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "worker.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as worker:
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
            assert run_in(tmp_path, "-c", program) == "paid 80 for Oslo\n"
        finally:
            worker.terminate()
    assert worker.returncode == 0


def write(folder: Path, *lines: str) -> Path:
    page = folder / "page.md"
    page.write_text("\n".join(lines), encoding="utf-8")
    return page


def test_blocks_share_a_namespace_and_may_await(tmp_path: Path) -> None:
    page = write(
        tmp_path,
        *("```python", "import asyncio", "x = 1", "```"),
        *("```python", "await asyncio.wait_for(asyncio.Future(), 0) if x > 1 else None", "print(x + 1)", "```"),
        *("", "```text", "2", "```"),
    )
    assert run_page(page) == 2


def test_what_a_block_prints_is_compared(tmp_path: Path) -> None:
    page = write(tmp_path, "```python", "print(1)", "```", "", "```text", "2", "```")
    with pytest.raises(AssertionError, match="line 6"):
        run_page(page)


def test_tests_in_blocks_are_called(tmp_path: Path) -> None:
    page = write(tmp_path, "```python", "async def test_it():", "    assert 1 == 2", "```")
    with pytest.raises(AssertionError):
        run_page(page)


def test_what_is_not_to_run_must_still_be_python(tmp_path: Path) -> None:
    assert run_page(write(tmp_path, "```python no-run", "await nothing", "```")) == 0
    with pytest.raises(SyntaxError):
        run_page(write(tmp_path, "```python no-run", "this is not", "```"))


def test_a_fence_knows_its_line(tmp_path: Path) -> None:
    (fence,) = fences(write(tmp_path, "# Page", "", "```console", "$ ls", "```"))
    assert fence == ("console", "$ ls\n", 4)


def test_ids_and_durations_may_differ() -> None:
    assert steady("a 1a1e15ece136053ea5d34e: 12 ms\n") == steady("a 1a1e15eeca52f9e8294291: 7 ms")
    assert steady("2 attempts") != steady("3 attempts")
