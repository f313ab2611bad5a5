"""The port of observers: telemetry and event sinks."""

from collections.abc import Sequence
from typing import Protocol

from tenuto.kernel.address import Ref
from tenuto.kernel.events import Entry
from tenuto.views.reading import Reading


class Observer(Protocol):
    """Notified in order of recorded entries and of attempts that start. It must neither fail nor block."""

    @property
    def hears_starts(self) -> bool:
        """Whether `started` is called. Most observers need only what is recorded."""

    def decided(self, reading: Reading, entries: Sequence[Entry]) -> None: ...

    def started(self, reading: Reading, ref: Ref) -> None: ...
