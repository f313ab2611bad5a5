"""Violations of every invariant, planted into records that are sound without them."""

from . import attempts, audit, definitions, jobs, limits, machine, mail, order, people, retries, rows, times, undo
from .planting import PLANTS, Plant

__all__ = [
    "PLANTS",
    "Plant",
    "attempts",
    "audit",
    "definitions",
    "jobs",
    "limits",
    "machine",
    "mail",
    "order",
    "people",
    "retries",
    "rows",
    "times",
    "undo",
]
