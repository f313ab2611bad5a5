"""All scenarios, by what they are about. Importing a module registers its own."""

from . import (
    bounds,
    control,
    interrupted_commands,
    people,
    registry,
    retries,
    safety,
    service,
    several_engines,
    side_effects,
    structure,
    undo,
    unreadable,
)

__all__ = [
    "bounds",
    "control",
    "interrupted_commands",
    "people",
    "registry",
    "retries",
    "safety",
    "service",
    "several_engines",
    "side_effects",
    "structure",
    "undo",
    "unreadable",
]
