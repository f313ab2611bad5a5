"""Both type checkers, on programs as users write them: what they must infer is asserted in the programs."""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PROGRAMS = {
    path.name: path.read_text(encoding="utf-8") for path in (HERE / "authored.py", *HERE.glob("programs/[a-z]*.py"))
}

PYRIGHT = {
    "pythonVersion": "3.11",
    "typeCheckingMode": "strict",
    "enableTypeIgnoreComments": False,
    "reportUnnecessaryTypeIgnoreComment": "error",
    "reportPrivateUsage": "none",
    "reportUnusedExpression": "none",
}


def write(folder: Path) -> list[str]:
    """Away from the project, where neither its settings nor its source tree are at hand: as at a user's."""
    for name, text in PROGRAMS.items():
        (folder / name).write_text(text, encoding="utf-8")
    return sorted(PROGRAMS)


def run(folder: Path, *command: str) -> str:
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_mypy_is_content(tmp_path: Path) -> None:
    assert run(tmp_path, "mypy", "--strict", *write(tmp_path)) == ""


def test_pyright_is_content(tmp_path: Path) -> None:
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(PYRIGHT), encoding="utf-8")
    assert run(tmp_path, "pyright", "--pythonpath", sys.executable, *write(tmp_path)) == ""


def test_something_is_asserted_in_every_program() -> None:
    assert len(PROGRAMS) > 3
    assert all("assert_type(" in text for text in PROGRAMS.values())
