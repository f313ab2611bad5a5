"""The runtime behind `memory://`: executions in one process, without storage."""

from .runtime import MemoryRuntime

__all__ = ["MemoryRuntime"]
