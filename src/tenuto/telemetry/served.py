"""What a service has answered, in plain numbers. Routes are told apart by their templates: there are as many as there
are operations, and what fits none of them is `other`."""

from . import catalogue as c
from .tally import Counts, Histogram

METHODS = frozenset(("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"))
GONE = "gone"  # whoever asked went away before there was an answer


class Served:
    """`is_serving` once a service counts here: a worker without one has none of these figures."""

    def __init__(self, counts: dict[c.Metric, Counts]) -> None:
        self._answers = counts[c.HTTP_REQUESTS]
        self._refusals = counts[c.HTTP_REFUSED]
        self.durations: dict[tuple[str, ...], Histogram] = {}
        self.under_way = 0
        self.is_serving = False

    def answered(self, route: str | None, method: str, status: int, seconds: float | None) -> None:
        """`seconds` is None of what was waited for on purpose."""
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
