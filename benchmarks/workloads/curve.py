"""Rates from half of what can be done to three times as much, one after another and all of them again: a machine that
is slower for some seconds is that for each of them. What is left of the best is told by the curve itself."""

import statistics
from collections.abc import Callable

from benchmarks.measure import percentile
from benchmarks.runner import Answer

RATES = (0.5, 0.8, 1.0, 1.2, 2.0, 3.0)  # of what can be done
MOST = RATES[-1]


class Curve:
    """What came of each rate, round by round. `offer` is asked for a multiple of what can be done."""

    def __init__(self, offer: Callable[[float], Answer], rounds: int) -> None:
        self.offer = offer
        self._rounds = rounds
        self._answers: dict[float, list[Answer]] = {rate: [] for rate in RATES}

    def measure(self) -> None:
        for _ in range(self._rounds):
            for times, answers in self._answers.items():
                answers.append(self.offer(times))

    def done(self, times: float) -> float:
        """A second."""
        rates: list[float] = [answer["executions"] / answer["seconds"] for answer in self._answers[times]]
        return statistics.median(rates)

    @property
    def best_at(self) -> float:
        return max(RATES, key=self.done)

    @property
    def kept(self) -> float:
        return self.done(MOST) / self.done(self.best_at)

    def most(self, times: float, what: str) -> float:
        found: list[float] = [answer[what] for answer in self._answers[times]]
        return max(found)

    def percentile_ms(self, times: float, what: str, percent: int) -> float:
        each = [seconds * 1e3 for answer in self._answers[times] for seconds in answer[what]]
        return percentile(each or [0.0], percent)
