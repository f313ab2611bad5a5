"""The last readings of long executions that are finished: a further page of one needs no further fold."""

from collections import OrderedDict
from typing import Final

from tenuto.views.reading import Reading

SHORTEST: Final = 200  # entries: a shorter history is folded in no time
MOST_ENTRIES: Final = 300_000  # of all readings together
MOST_READINGS: Final = 16


class FinishedReadings:
    """Readings by execution, the least recently used first."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, Reading] = OrderedDict()

    def find(self, execution_id: str) -> Reading | None:
        found = self._found.get(execution_id)
        if found is not None:
            self._found.move_to_end(execution_id)
        return found

    def add(self, reading: Reading) -> None:
        if reading.state.finished is None or not SHORTEST <= reading.length <= MOST_ENTRIES:
            return
        self._found[reading.state.id] = reading
        while len(self._found) > MOST_READINGS or sum(each.length for each in self._found.values()) > MOST_ENTRIES:
            self._found.popitem(last=False)

    def drop(self, execution_id: str) -> None:
        self._found.pop(execution_id, None)
