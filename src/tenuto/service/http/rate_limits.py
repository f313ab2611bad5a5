"""Rate limits: token buckets for credentials, tenants and unknown clients, in this process."""

import time
from collections import OrderedDict
from collections.abc import Callable

from tenuto.errors import RateExceeded

MAX_BUCKETS = 10_000  # beyond it, the least recently used bucket is dropped


class TokenBuckets:
    """One bucket of tokens for each key. A rate of 0 is no limit."""

    def __init__(self, per_second: float, burst: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_second
        self._burst = max(1, burst)
        self._now = monotonic
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> None:
        """Takes a token, or raises `RateExceeded` with the time until the next one."""
        if self._rate <= 0:
            return
        now = self._now()
        tokens, since = self._buckets.pop(key, (float(self._burst), now))
        tokens = min(self._burst, tokens + (now - since) * self._rate)
        self._buckets[key] = (tokens - 1 if tokens >= 1 else tokens, now)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        if tokens < 1:
            raise RateExceeded(retry_after=(1 - tokens) / self._rate)

    def give_back(self, key: str) -> None:
        """Returns a token that was not needed."""
        if key in self._buckets:
            tokens, since = self._buckets[key]
            self._buckets[key] = (tokens + 1, since)
