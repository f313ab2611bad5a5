"""Passes on to observers what is decided and which attempts start."""

from collections.abc import Sequence

from tenuto.kernel.address import Ref
from tenuto.kernel.events import Entry
from tenuto.runtime.observer import Observer
from tenuto.runtime.supervision import report

from .held_execution import Record

OBSERVER_FAILED = "An observer failed; the execution continues."


class Observers:
    """An observer that fails is reported and does not affect the execution."""

    __slots__ = ("all", "of_starts")

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.all = tuple(observers)
        self.of_starts = tuple(observer for observer in self.all if observer.hears_starts)

    def decided(self, record: Record, entries: list[Entry]) -> None:
        reading = record.observed()
        for observer in self.all:
            try:
                observer.decided(reading, entries)
            except Exception as error:
                report(OBSERVER_FAILED, error)

    def started(self, record: Record, ref: Ref) -> None:
        reading = record.observed()
        for observer in self.of_starts:
            try:
                observer.started(reading, ref)
            except Exception as error:
                report(OBSERVER_FAILED, error)
