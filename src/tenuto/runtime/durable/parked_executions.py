"""Executions that this process cannot continue: which are to be parked, and which it has tried with the code it has."""

import logging
from time import monotonic
from typing import NamedTuple

from tenuto.values.jitter import spread

from .session import Session

logger = logging.getLogger("tenuto.durable")

PARKED_MS = 60_000
LONGEST_PARKED_MS = 3_600_000
REMEMBERED = 10_000
LOOK_SECONDS = 60.0  # between looks for executions that other workers parked
# When to look for lost claims: longer than a database takes to carry out what its client has given up.
LOST_CLAIM_SECONDS = (0.0, 1.0, 3.0, 8.0, 20.0, 35.0)


class Parking(NamedTuple):
    """An execution that is still owned in the database, by this session since this epoch, and is to be released."""

    session: Session
    epoch: int
    why: str  # empty: it is due, for the first worker that claims it
    again_ms: int


class ParkedExecutions:
    def __init__(self) -> None:
        self.to_park: dict[str, Parking] = {}
        self.learned = 0  # how often this process was given code
        self.lost_claims_at: list[float] = []  # a claim failed, and may have been made, or be made yet
        self._tried: dict[str, int] = {}  # parked here, and what this process had learned by then
        self._look_at = 0.0

    def learn(self) -> None:
        """This process was given code. Executions that it parked may be able to continue."""
        self.learned += 1
        self.look_soon()

    def note_tried(self, id: str, why: str) -> None:
        """The execution cannot continue with the present code. Each reason is logged once."""
        if self._tried.pop(id, None) != self.learned and why:
            extra = {"action": "set_aside", "execution_id": id, "reason": why}
            logger.warning("Execution %s cannot go on with the code that is here: %s", id, why, extra=extra)
        self._tried[id] = self.learned
        if len(self._tried) > REMEMBERED:
            del self._tried[next(iter(self._tried))]

    def was_tried(self, id: str) -> bool:
        """Whether the execution was tried with the present code."""
        return self._tried.get(id) == self.learned

    def look_soon(self) -> None:
        self._look_at = 0.0

    def begin_look(self) -> bool:
        """Whether it is time to look for executions that others parked. If so, the next look is a minute away."""
        if monotonic() < self._look_at:
            return False
        self._look_at = monotonic() + spread(LOOK_SECONDS)
        return True

    def look_for_lost_claims(self) -> None:
        """This session may own an execution that it does not hold."""
        self.lost_claims_at = [monotonic() + seconds for seconds in LOST_CLAIM_SECONDS]
