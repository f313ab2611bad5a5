"""Violations of every invariant, planted into records that are sound without them."""

from . import attempts, audit, definitions, limits, machine, mail, order, people, retries, rows, times, undo
from .planting import PLANTS, Plant

__all__ = [
    "PLANTS",
    "Plant",
    "attempts",
    "audit",
    "definitions",
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
