"""Us, the floor under us, and what runs in our own environment."""

from benchmarks.system import System

from . import durable, http, memory

SYSTEMS: list[System] = [*memory.SYSTEMS, *durable.SYSTEMS, *http.SYSTEMS]
