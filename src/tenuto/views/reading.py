"""`Reading`: an execution's history and state at one point."""

from collections.abc import Sequence

from tenuto.authoring.program import Program
from tenuto.kernel.events import Entry, ExecutionStarted
from tenuto.kernel.evolve import fold
from tenuto.kernel.state import Execution

from . import NOTHING_UNDER_WAY, Activity, AttemptRow, attempt_rows


class Reading:
    """One execution at the time it was read: its history so far, and the state that the history folds to.

    A history only grows, so a reading is defined by its length. If the state has advanced since, the old state is
    folded again.
    """

    __slots__ = ("_attempts", "_history", "_state", "activity", "idempotency_key", "length", "program")

    def __init__(
        self,
        program: Program,
        state: Execution,
        history: Sequence[Entry],
        *,
        idempotency_key: str | None = None,
        activity: Activity = NOTHING_UNDER_WAY,
    ) -> None:
        self.program = program
        self.length = len(history)
        self.idempotency_key = idempotency_key
        self.activity = activity
        self._history = history
        self._state = state
        self._attempts: list[AttemptRow] | None = None

    @property
    def history(self) -> Sequence[Entry]:
        if len(self._history) != self.length:
            self._history = self._history[: self.length]
        return self._history

    @property
    def state(self) -> Execution:
        if self._state.seq != self.length:
            self._state = fold(Execution(self.program.plan), list(self.history))
        return self._state

    @property
    def attempts(self) -> list[AttemptRow]:
        """All attempts. Those of a finished execution are computed once."""
        if self._attempts is not None:
            return self._attempts
        rows = attempt_rows(self.state, self.history, self.activity)
        if self.state.finished is not None:
            self._attempts = rows
        return rows

    @property
    def started(self) -> ExecutionStarted:
        event = self._history[0].event
        assert isinstance(event, ExecutionStarted)
        return event
