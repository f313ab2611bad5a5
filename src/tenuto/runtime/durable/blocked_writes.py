"""Writes that wait for another transaction's locks, with the writes that follow them, while others are committed.

A caller's open transaction may lock what a commit needs: the row of a tenant with a limit, the queue of a concurrency
key, an idempotency key. It may last for any length of time. So the blocked executions wait here. After a backoff they
are tried again, with everything that was decided meanwhile, in order.
"""

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from tenuto.values.jitter import spread

PAUSES_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
IN_EARNEST = 8  # every eighth try skips the check for locks, which under contention would always find some


class Write(Protocol):
    @property
    def execution(self) -> str: ...


W = TypeVar("W", bound=Write)


class BlockedWrites(Generic[W]):
    def __init__(self) -> None:
        self._writes: list[W] = []
        self._executions: dict[str, None] = {}
        self._tries = 0

    def __len__(self) -> int:
        return len(self._writes)

    def __contains__(self, execution: str) -> bool:
        return execution in self._executions

    @property
    def is_wary(self) -> bool:
        """Whether batches are checked for locks first, because another transaction blocked one lately."""
        return self._tries > 0 or bool(self._writes)

    @property
    def is_earnest(self) -> bool:
        return self._tries > 0 and self._tries % IN_EARNEST == 0

    @property
    def pause_s(self) -> float:
        return spread(PAUSES_SECONDS[min(self._tries, len(PAUSES_SECONDS) - 1)], 0.5, 1)

    def add(self, writes: Iterable[W]) -> None:
        for write in writes:
            self._writes.append(write)
            self._executions[write.execution] = None

    def take(self) -> list[W]:
        """All of them, to be tried again."""
        writes, self._writes, self._executions = self._writes, [], {}
        self._tries += 1
        return writes

    def settle(self) -> None:
        """Nothing was in the way any more."""
        if not self._writes:
            self._tries = 0
