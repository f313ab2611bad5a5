"""One execution at a time per concurrency key, in one process."""

from collections import deque

from tenuto.runtime.executor.held_execution import Record


class ConcurrencyKeys:
    """The first record in line for a key holds it."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str, str], deque[Record]] = {}  # by tenant, definition and key

    def is_held(self, tenant: str, definition: str, key: str) -> bool:
        return (tenant, definition, key) in self._lines

    def join(self, record: Record, tenant: str, key: str | None) -> bool:
        """Whether the record holds the key at once. Otherwise it waits in line."""
        if key is None:
            return True
        at = (tenant, record.performer.program.name, key)
        line = self._lines.get(at)
        if line is None:
            self._lines[at] = deque((record,))
            return True
        line.append(record)
        return False

    def leave(self, record: Record) -> Record | None:
        """Removes the record from its line. Returns the record that holds the key now, if it has just got it."""
        state = record.state
        if state.concurrency_key is None:
            return None
        at = (state.tenant, record.performer.program.name, state.concurrency_key)
        line = self._lines.get(at)
        if line is None or record not in line:
            return None
        held = line[0] is record
        line.remove(record)
        if not line:
            del self._lines[at]
            return None
        return line[0] if held else None
