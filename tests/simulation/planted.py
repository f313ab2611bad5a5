"""Planted bugs: the kernel with one mistake in it. A simulation that does not find them would not find yours either.

A mutant is a list of changes to the kernel's own functions and tables, made by assignment and taken back afterwards.
The list of them is `mutants`.
"""

import builtins
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context

from .mutants import MUTANTS, Change
from .run import PROCESSES, run_seed

MAX_SEEDS = 1_500
ACCIDENT = "no decision raises"  # what the change itself may raise, and nobody foresaw, proves nothing about the laws


@contextmanager
def changed(changes: list[Change]) -> Iterator[None]:
    with ExitStack() as stack:
        for where, name, value in changes:
            if isinstance(where, dict):
                stack.callback(where.__setitem__, name, where[name])
                where[name] = value
            elif name in vars(where):
                stack.callback(setattr, where, name, getattr(where, name))
                setattr(where, name, value)
            else:  # a builtin, hidden by a global of the module
                assert name in vars(builtins), f"{where} has no {name}"
                stack.callback(delattr, where, name)
                setattr(where, name, value)
        yield


def hunt(index: int) -> tuple[str, int]:
    """How many seeds it took to find this mutant; 0 when it was not found."""
    with changed(MUTANTS[index].changes()):
        for seed in range(MAX_SEEDS):
            failed = run_seed(seed).failed
            if failed is not None and not failed.law.startswith(ACCIDENT):
                return MUTANTS[index].name, seed + 1
    return MUTANTS[index].name, 0


def hunt_all(processes: int = PROCESSES) -> dict[str, int]:
    with get_context("fork").Pool(processes) as pool:
        return dict(pool.imap(hunt, range(len(MUTANTS)), chunksize=1))
