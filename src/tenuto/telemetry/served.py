"""Counts the HTTP responses of a service, by route template.

There are as many templates as operations; a path without one is counted as `other`.
"""

from . import catalogue as c
from .tally import Counts, Histogram

METHODS = frozenset(("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"))
GONE = "gone"  # the client disconnected before the response


class Served:
    """HTTP counters. `is_serving` is false in workers without a service, which export none of them."""

    def __init__(self, counts: dict[c.Metric, Counts]) -> None:
        self._answers = counts[c.HTTP_REQUESTS]
        self._refusals = counts[c.HTTP_REFUSED]
        self.durations: dict[tuple[str, ...], Histogram] = {}
        self.under_way = 0
        self.is_serving = False

    def answered(self, route: str | None, method: str, status: int, seconds: float | None) -> None:
        """Counts a response. `seconds` is None if the request waited on purpose, such as a long poll."""
        at = (route or c.OTHER, method if method in METHODS else c.OTHER)
        self._answers[(*at, f"{status // 100}xx" if status else GONE)] += 1
        if seconds is None:
            return
        histogram = self.durations.get(at)
        if histogram is None:
            histogram = self.durations[at] = Histogram(c.REQUEST_BOUNDS)
        histogram.note(seconds * 1_000)

    def refused(self, reason: str) -> None:
        self._refusals[reason,] += 1
