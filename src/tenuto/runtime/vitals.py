"""The state of a process, for health checks and metrics."""

from dataclasses import dataclass
from typing import NamedTuple


class LaneLoad(NamedTuple):
    """Slots of one kind: how many there are, how many are in use, and how many attempts wait for one."""

    size: int
    running: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What a process knows about itself without IO. The defaults are those of a process without a database."""

    is_open: bool
    held: int  # executions in memory
    lanes: dict[str, LaneLoad]
    is_claiming: bool = True  # the loop that claims executions is running
    is_taking_tasks: bool = True  # so are the loops that take tasks from queues and deliver their reports
    may_start: bool = True  # the lease has not expired by this process's own clock
    renewed_ms: int = 0  # since the lease was last renewed
    uncommitted: int = 0  # decisions that wait for their commit
    committing_ms: int = 0  # how long the current commit has taken so far
    commit_trouble: str = ""  # why nothing can be committed until an operator acts
