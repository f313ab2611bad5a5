"""Other engines, each in an environment of its own."""

from benchmarks.system import System

from . import dbos

SYSTEMS: list[System] = [*dbos.SYSTEMS]
