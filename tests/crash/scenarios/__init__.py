"""All scenarios, by what they are about. Importing a module registers its own."""

from . import (
    bounds,
    control,
    elsewhere,
    people,
    registry,
    retries,
    safety,
    service,
    several,
    structure,
    surroundings,
    undo,
    unreadable,
)

__all__ = [
    "bounds",
    "control",
    "elsewhere",
    "people",
    "registry",
    "retries",
    "safety",
    "service",
    "several",
    "structure",
    "surroundings",
    "undo",
    "unreadable",
]
