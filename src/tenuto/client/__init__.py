"""The HTTP client behind `Engine("https://…", api_key=…)`. It runs no steps."""

from .runtime import RemoteRuntime

__all__ = ["RemoteRuntime"]
