"""The port of buses: publish a directive, and receive and settle it.

A bus confirms what it has stored. A publish that was tried and not confirmed raises `PublishFailed`: the directive may
have arrived. If the bus cannot be reached, nothing was tried (`BusUnreachable`); the directive waits in the database.
"""

from collections.abc import Sequence
from typing import Protocol

from tenuto.errors import IndeterminateError, NonRetryableError
from tenuto.storage.bus_messages import BusMessage, Delivery, TopicDepth


class BusUnreachable(Exception):
    """There is no connection to the bus, so nothing was published. The message says why, without secrets."""


class PublishFailed(IndeterminateError):
    """The bus did not confirm the directive, which may have arrived all the same."""


class BusTopologyError(NonRetryableError):
    """The topic or the queue of a directive does not exist on the bus."""


class Bus(Protocol):
    """Delivers each message at least once. Receivers deduplicate by its id."""

    @property
    def name(self) -> str:
        """The kind of bus, as metrics show it."""

    async def publish(self, message: BusMessage) -> None:
        """Returns once the bus has stored the message."""

    async def check(self, services: Sequence[str]) -> None:
        """Raises `BusUnreachable`, or `BusTopologyError` if a topic or a queue of these services is missing."""

    async def close(self) -> None: ...


class ReceivingBus(Bus, Protocol):
    """A bus whose messages can be received here."""

    async def receive(
        self, service: str, *, limit: int, wait_ms: int, lock_ms: int, tenant: str | None
    ) -> list[Delivery]:
        """Locks messages of a service. Waits for the first one at most so long."""

    async def complete(self, id: str, token: str) -> bool:
        """Settles a message. False: the lock is lost, here and in the methods below."""

    async def abandon(self, id: str, token: str, delay_ms: int) -> bool:
        """Delivers the message again after a delay."""

    async def renew(self, id: str, token: str, lock_ms: int) -> int | None:
        """Extends the lock, and returns until when. None: the lock is lost."""

    async def dead_letter(self, id: str, token: str, reason: str) -> bool: ...

    async def withdraw(self, execution: str) -> list[str]:
        """Removes what no receiver has seen of a job, and returns the ids of the messages."""

    async def depths(self) -> list[TopicDepth]: ...
