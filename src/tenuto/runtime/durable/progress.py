"""The progress of attempts, for other processes and for a takeover: written every second, without events."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec import Raw

from tenuto.kernel.evolve import find_step
from tenuto.runtime.executor.held_execution import Record
from tenuto.storage.port import ProgressRow, Store
from tenuto.views import Activity

from .batched_reads import BatchedReads

EVERY_SECONDS = 1.0


class ProgressWriter:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._written: dict[tuple[str, str], bytes] = {}
        self._left: dict[str, None] = {}
        self._asked = BatchedReads(self.give, lanes=4)

    async def give(self, executions: Sequence[str]) -> dict[str, list[ProgressRow]]:
        """What former owners wrote about these executions."""
        found: dict[str, list[ProgressRow]] = {}
        for row in await self._store.progress.of(executions):
            found.setdefault(row.execution, []).append(row)
        return found

    def take(self, record: Record, rows: list[ProgressRow]) -> None:
        for row in rows:
            record.shown[row.path] = Raw(row.body)
            self._written[row.execution, row.path] = row.body

    def leave(self, execution: str) -> None:
        """Let go of, and not over: what is written stays, for its next attempt."""
        self._left[execution] = None
        for key in [key for key in self._written if key[0] == execution]:
            del self._written[key]

    def clear(self) -> None:
        """All executions are in other hands."""
        self._left.update((execution, None) for execution, _ in self._written)
        self._written.clear()

    async def show(self, execution: str, activity: Activity) -> Activity:
        """Adds the progress that the last owner of the execution wrote."""
        rows = await self._asked.find(execution)
        return replace(activity, progress={row.path: Raw(row.body) for row in rows}) if rows else activity

    async def write(self, records: Mapping[str, Record]) -> None:
        """Writes what changed since the last time, and deletes what is obsolete."""
        self._left.clear()
        now: dict[tuple[str, str], bytes] = {}
        changed: list[ProgressRow] = []
        for row, is_own in _rows(records):
            key = row.execution, row.path
            now[key] = row.body
            if is_own and self._written.get(key) != row.body:
                changed.append(row)
        gone = [key for key in self._written if key not in now]
        if changed or gone:
            await self._store.progress.save(changed, gone)
            self._written = {key: body for key, body in now.items() if key[0] not in self._left}


def _rows(records: Mapping[str, Record]) -> Iterator[tuple[ProgressRow, bool]]:
    """Yields the progress, and whether the owner writes it: for the task of a queue, its task worker does."""
    for record in records.values():
        for path, progress in record.shown.items():
            step = find_step(record.state, path)
            if step is not None and step.status in ("running", "retrying"):
                yield ProgressRow(record.state.id, path, bytes(progress)), step.node.queue is None
