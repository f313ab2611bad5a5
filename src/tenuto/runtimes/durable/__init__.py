"""Executions in a database: SQLite in one file, or PostgreSQL with many workers."""

from .runtime import DurableRuntime

__all__ = ["DurableRuntime"]
