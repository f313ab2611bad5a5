"""Tenuto: a durable orchestration engine for Python."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenuto.errors import TenutoError

__version__ = "0.1.0"

__all__ = ["TenutoError"]

# Each public name and its home. Loaded on first use, so that `import tenuto.kernel` loads no driver and no framework.
_HOMES = {
    "TenutoError": "tenuto.errors",
}

# Hidden from type checkers, which would otherwise believe that every name exists.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'tenuto' has no attribute {name!r}")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
