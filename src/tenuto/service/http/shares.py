"""What tenants have of something that all of them share: one of them cannot have all of it."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tenuto.errors import RateExceeded


class Shares:
    """So many at once, and of those at most three quarters for one tenant. A most of 0 is no limit."""

    def __init__(self, most: int, what: str = "requests under way") -> None:
        self._most = most
        self._of_one = max(1, most - most // 4)
        self._what = what
        self._by_tenant: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._by_tenant.total()

    def take(self, tenant: str) -> None:
        """Raises `RateExceeded` if there is no more for this tenant."""
        if 0 < self._most <= len(self):
            raise RateExceeded(f"This process has as many {self._what} as it takes.", retry_after=5)
        if self._most > 0 and self._by_tenant[tenant] >= self._of_one:
            raise RateExceeded(f"This tenant has its share of the {self._what} here.", retry_after=2)
        self._by_tenant[tenant] += 1

    @contextmanager
    def held(self, tenant: str) -> Iterator[None]:
        self.take(tenant)
        try:
            yield
        finally:
            self.give(tenant)

    def give(self, tenant: str) -> None:
        self._by_tenant[tenant] -= 1
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]
