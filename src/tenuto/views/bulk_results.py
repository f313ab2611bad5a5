"""`BulkResult`: the outcome of one command for many executions."""

from dataclasses import dataclass, field
from typing import NamedTuple


class RefusedItem(NamedTuple):
    """An item for which the command was refused. It is left unchanged."""

    id: str
    code: str
    detail: str


@dataclass(slots=True, kw_only=True)
class BulkResult:
    """The outcome of a bulk command. The verdicts of `pending` items are not known yet.

    `chosen` are the items that a dry run would have selected. `remaining` counts further items that match, up to
    10,000, and fewer if counting takes long; another call with `next_cursor` continues with them. A call ends when its
    limit is reached, or after about 20 seconds.
    """

    done: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    refused: list[RefusedItem] = field(default_factory=list)
    chosen: list[str] = field(default_factory=list)
    remaining: int = 0
    next_cursor: str | None = None
