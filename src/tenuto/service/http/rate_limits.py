"""How many requests a credential, a tenant or a stranger may make: a bucket of tokens for each, in this process."""

import time
from collections import OrderedDict
from collections.abc import Callable

from tenuto.errors import RateExceeded

KEPT = 10_000  # buckets; the one that was not asked for the longest time goes first


class TokenBuckets:
    def __init__(self, per_second: float, burst: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_second
        self._burst = max(1, burst)
        self._now = monotonic
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def spend(self, who: str) -> None:
        """Takes a token, or raises `RateExceeded` saying when there is one again."""
        if self._rate <= 0:
            return
        now = self._now()
        tokens, since = self._buckets.pop(who, (float(self._burst), now))
        tokens = min(self._burst, tokens + (now - since) * self._rate)
        self._buckets[who] = (tokens - 1 if tokens >= 1 else tokens, now)
        if len(self._buckets) > KEPT:
            self._buckets.popitem(last=False)
        if tokens < 1:
            raise RateExceeded(retry_after=(1 - tokens) / self._rate)

    def give_back(self, who: str) -> None:
        """A token that was taken in case, and was not needed."""
        if who in self._buckets:
            tokens, since = self._buckets[who]
            self._buckets[who] = (tokens + 1, since)
