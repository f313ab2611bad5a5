"""`Progress`: the state of a batch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The state of a batch.

    `waiting` counts executions that wait for a person; `total` is None until all have started.
    """

    started: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    waiting: int = 0
    canceled: int = 0
    total: int | None = None
