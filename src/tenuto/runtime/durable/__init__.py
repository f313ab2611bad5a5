"""Executions in a database: SQLite in one file, or PostgreSQL with many workers."""

from .clock import DatabaseClock
from .runtime import DurableRuntime

__all__ = ["DatabaseClock", "DurableRuntime"]
