"""Peers are installed on first use, in pinned versions, under `benchmarks/.venvs`: nothing of them is in our lock."""

import hashlib
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from benchmarks.program import Unavailable

HERE = Path(__file__).parent
VENVS = HERE.parent / ".venvs"
WITHIN_S = 600.0


@cache
def python_environment(name: str) -> Path:
    """The folder with the programs of this peer's virtual environment."""
    requirements = HERE / f"requirements-{name}.txt"
    folder = VENVS / name
    if not _is_current(folder, requirements):
        uv = _find("uv", "`make setup` installs it")
        _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], cwd=HERE)
        target = ["--python", str(folder / "bin" / "python")]
        _run([uv, "pip", "install", "--quiet", "--no-deps", *target, "-r", str(requirements)], cwd=HERE)
        _keep(folder, requirements)
    return folder / "bin"


@cache
def node_packages(name: str) -> Path:
    """The `node_modules` of a peer from npm. Scripts that packages would run while installing are not run."""
    lock = HERE / name / "package-lock.json"
    folder = VENVS / name
    if not _is_current(folder, lock):
        npm = _find("npm", "install Node.js")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(lock.parent, folder)
        _run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"], cwd=folder)
        _keep(folder, lock)
    return folder / "node_modules"


def _is_current(folder: Path, wanted: Path) -> bool:
    stamp = folder / "installed"
    return stamp.exists() and stamp.read_text() == _digest(wanted)


def _keep(folder: Path, wanted: Path) -> None:
    (folder / "installed").write_text(_digest(wanted))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _find(tool: str, hint: str) -> str:
    beside_python = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which(tool, path=beside_python)
    if found is None:
        raise Unavailable(f"{tool} is not installed ({hint})")
    return found


def _run(command: list[str], cwd: Path) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{Path(command[0]).name} took longer than {WITHIN_S:.0f} s") from None
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise Unavailable(f"{Path(command[0]).name} failed: {words[-1]}")
