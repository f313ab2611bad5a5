"""Random draws that differ with each commit: the seed is printed, and SEED=... repeats a draw."""

import os
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import TypeVar

ROOT = Path(__file__).parent.parent
VARIABLE = "SEED"

T = TypeVar("T")


@cache
def seed() -> int:
    """The seed in the environment, or one made from the commit that is checked out."""
    given = os.environ.get(VARIABLE)
    return int(given) if given else int(commit()[:8], 16)


@cache
def commit() -> str:
    """The commit that is checked out; zeros where there is no repository, as in an unpacked release."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "0" * 40


def draw(name: str, population: Iterable[T], count: int) -> list[T]:
    """Draws up to so many, in their order. `name` keeps draws apart that share the seed."""
    found: Sequence[T] = list(population)
    chosen = Random(f"{seed()} {name}").sample(range(len(found)), min(count, len(found)))
    return [found[index] for index in sorted(chosen)]
