"""Executions that live behind a service: what `Engine("https://…", api_key=…)` drives. Nothing is run here."""

from .runtime import RemoteRuntime

__all__ = ["RemoteRuntime"]
