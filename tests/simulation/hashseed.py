"""A seed must be the same run in every process: strings hash differently in each, so no order may come from a hash."""

import os
import subprocess
import sys
from collections.abc import Iterable

PROGRAM = """
import sys
from tests.simulation.run import run_seed
for seed in sys.argv[1:]:
    print(seed, run_seed(int(seed)).hash)
"""


def check_hash_seeds(seeds: Iterable[int]) -> list[int]:
    """The seeds whose trace differs between two interpreters with different hash seeds."""
    names = [str(seed) for seed in seeds]
    first, second = (_hashes(names, hash_seed) for hash_seed in ("1", "2"))
    return [int(seed) for seed in names if first[seed] != second[seed]]


def _hashes(seeds: list[str], hash_seed: str) -> dict[str, str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, *seeds], capture_output=True, text=True, check=True, env=environment
    )
    return dict(line.split() for line in answer.stdout.splitlines())
