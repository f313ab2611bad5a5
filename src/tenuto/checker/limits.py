"""Limits: permits held, and permits granted per period. Exceeding a limit can have reasons that no row shows."""

from collections import Counter
from collections.abc import Iterator

import msgspec

from tenuto.storage.permits import UNCOUNTED
from tenuto.storage.shared.records import HolderRecord, LimitRecord, TenantLimitRow

from .findings import Finding, finding, show
from .invariants import Family

family = Family("Limits")

I3 = family("I3", "The in-flight count of a tenant equals its number of unfinished executions.")
I5 = family("I5", "A limit has no more permits in use, and no more starts in its window, than it allows.", "told")
I6 = family("I6", "A tenant has no more executions in flight than its limit.", "told")


class Use:
    """Sums up the permits of all sessions."""

    def __init__(self) -> None:
        self._limits: list[LimitRecord] = []
        self._held: Counter[str] = Counter()

    def take(self, row: LimitRecord | HolderRecord) -> None:
        if isinstance(row, HolderRecord):
            self._held[row.name] += row.held
        else:
            self._limits.append(row)

    def beyond(self, now: int) -> Iterator[Finding]:
        for limit in self._limits:
            held, most = self._held[limit.name], limit.concurrency
            if most is not None and held > most:
                yield finding(I5, None, f"{held} are held of {limit.name!r}, which allows {most}", show(limit))
            try:
                started, rate = _started(limit, now), limit.count
            except msgspec.DecodeError:
                yield finding(I5, None, f"what was dealt of {limit.name!r} cannot be read", show(limit))
                continue
            if rate is not None and started > rate:
                yield finding(I5, None, f"{started} started under {limit.name!r}, which allows {rate}", show(limit))


def _started(limit: LimitRecord, now: int) -> int:
    dealt = msgspec.json.decode(limit.spent, type=list[tuple[int, int]])
    return sum(number for until, number in dealt if until > now)


def miscounted(row: TenantLimitRow) -> list[Finding]:
    if row.in_flight == row.counted or row.max_in_flight == UNCOUNTED:
        return []
    return [finding(I3, None, f"{row.in_flight} are noted, {row.counted} counted", show(row))]


def exceeded(row: TenantLimitRow) -> list[Finding]:
    if row.in_flight <= row.max_in_flight:
        return []
    return [finding(I6, None, f"{row.in_flight} are in flight, and {row.max_in_flight} may be", show(row))]
