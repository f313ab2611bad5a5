"""`tenuto migrate`, as a person types it."""

import os
import subprocess
import sys
from pathlib import Path


def tenuto(*arguments: str, url: str = "") -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "TENUTO_URL": url} if url else dict(os.environ)
    command = [str(Path(sys.executable).parent / "tenuto"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_database_is_prepared_and_may_be_prepared_again(tmp_path: Path) -> None:
    for _ in range(2):
        done = tenuto("migrate", url=f"sqlite:///{tmp_path}/x.db")
        assert (done.returncode, done.stdout, done.stderr) == (0, "the schema is up to date\n", "")
    assert (tmp_path / "x.db").exists()


def test_what_cannot_be_prepared_says_why_and_what_to_do(tmp_path: Path) -> None:
    done = tenuto("migrate", "--url", f"sqlite:///{tmp_path}/missing/x.db")
    assert done.returncode == 7
    assert "cannot be opened" in done.stderr
    assert "What to do" in done.stderr


def test_a_url_that_names_no_database() -> None:
    done = tenuto("migrate", "--url", "mysql://nowhere")
    assert done.returncode == 1
    assert "sqlite:///file.db" in done.stderr


def test_the_command_says_what_it_can() -> None:
    assert "migrate" in tenuto("--help").stdout
    assert tenuto("--version").stdout.startswith("tenuto ")
    assert tenuto().returncode == 2
