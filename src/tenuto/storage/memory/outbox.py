"""An outbox without a database, for executions that live in memory: what is in it goes with the process."""

from collections import deque
from collections.abc import Iterable, Sequence

from tenuto.storage.outbox import OutboxStanding, Waiting
from tenuto.views.projections import OutboxRow


class _Line:
    """The messages of one execution that have not been published, in order."""

    def __init__(self) -> None:
        self.rows: deque[OutboxRow] = deque()
        self.taken = False
        self.tries = 0
        self.due_at = 0
        self.error = ""


class MemoryOutbox:
    """Implements `outbox.OutboxStore`."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    def add(self, rows: Iterable[OutboxRow]) -> None:
        for row in rows:
            self._lines.setdefault(row.execution, _Line()).rows.append(row)

    async def take(self, relay: str, now: int, executions: int) -> list[Waiting]:
        due = [line for line in self._lines.values() if not line.taken and line.due_at <= now][:executions]
        for line in due:
            line.taken = True
        return [
            Waiting(row.execution, row.seq, row.body, 0 if place else line.tries)
            for line in due
            for place, row in enumerate(line.rows)
        ]

    async def published(self, relay: str, now: int, messages: Sequence[tuple[str, int]]) -> None:
        for execution, seq in messages:
            line = self._lines[execution]
            assert line.rows[0].seq == seq, "they leave in order"
            line.rows.popleft()
            line.taken, line.tries, line.error = False, 0, ""
            if not line.rows:
                del self._lines[execution]

    async def put_off(self, relay: str, execution: str, seq: int, due_at: int, error: str) -> None:
        line = self._lines[execution]
        line.taken, line.tries, line.due_at, line.error = False, line.tries + 1, due_at, error

    async def give_back(self, relay: str) -> None:
        for line in self._lines.values():
            line.taken = False

    async def standing(self) -> OutboxStanding:
        lines = list(self._lines.values())
        oldest_at = min((line.rows[0].created_at for line in lines), default=None)
        errors = [line.error for line in lines if line.error]
        return OutboxStanding(
            sum(len(line.rows) for line in lines), len(errors), oldest_at, errors[-1] if errors else ""
        )
