"""Scenarios of the five seeds, as programs: what is given, what happens, exactly what is recorded.

Each is a test (`test_scenarios.py`) and a recorded history (`histories/`, by `python -m tests.kernel.record NAME`).
"""

from . import corners, definitions, orders, protocols, runs, sagas
from .program import PROGRAMS

__all__ = ["PROGRAMS", "corners", "definitions", "orders", "protocols", "runs", "sagas"]
