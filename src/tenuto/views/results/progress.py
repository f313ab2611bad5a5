"""How far a batch is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a batch is. `waiting` are those that wait for a person; `total` is None until all have been started."""

    started: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    waiting: int = 0
    canceled: int = 0
    total: int | None = None
