"""The embedded bus: messages are rows in the engine's database, and workers receive them over HTTP."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

from tenuto.errors import StorageError
from tenuto.storage.bus_messages import BusMessage, BusMessages, Delivery, TopicDepth
from tenuto.values.jitter import spread

from .port import BusUnreachable

FIRST_LOOK_SECONDS = 0.02
LONGEST_LOOK_SECONDS = 0.25
SWEEP_SECONDS = 1.0


class EmbeddedBus:
    """Implements `ReceivingBus` on the messages of a store."""

    name = "embedded"

    def __init__(self, messages: BusMessages, now_ms: Callable[[], int]) -> None:
        self._messages = messages
        self._now = now_ms
        self._news = asyncio.Event()
        self._swept_at = 0.0

    async def publish(self, message: BusMessage) -> None:
        try:
            await self._messages.publish(message)
        except StorageError as error:  # the same database as the job's: it waits for both
            raise BusUnreachable(error.message) from None
        self._news.set()

    async def check(self, services: Sequence[str]) -> None:
        try:
            await self._messages.depths(self._now())
        except StorageError as error:
            raise BusUnreachable(error.message) from None

    async def close(self) -> None:
        """Its connections belong to the store."""

    async def receive(
        self, service: str, *, limit: int, wait_ms: int, lock_ms: int, tenant: str | None
    ) -> list[Delivery]:
        await self._sweep()
        deadline = monotonic() + wait_ms / 1_000
        wait = FIRST_LOOK_SECONDS
        while True:
            self._news.clear()
            now = self._now()
            found = await self._messages.receive(service, now, secrets.token_hex(16), now + lock_ms, limit, tenant)
            left = deadline - monotonic()
            if found or left <= 0:
                return found
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), min(spread(wait), left))
            wait = min(2 * wait, LONGEST_LOOK_SECONDS)

    async def _sweep(self) -> None:
        if monotonic() - self._swept_at >= SWEEP_SECONDS:
            self._swept_at = monotonic()
            await self._messages.sweep(self._now())

    async def complete(self, id: str, token: str) -> bool:
        return await self._messages.complete(id, token, self._now())

    async def abandon(self, id: str, token: str, delay_ms: int) -> bool:
        now = self._now()
        settled = await self._messages.abandon(id, token, now, now + delay_ms)
        self._news.set()
        return settled

    async def renew(self, id: str, token: str, lock_ms: int) -> int | None:
        until = self._now() + lock_ms
        return until if await self._messages.renew(id, token, self._now(), until) else None

    async def dead_letter(self, id: str, token: str, reason: str) -> bool:
        return await self._messages.dead_letter(id, token, self._now(), reason)

    async def withdraw(self, execution: str) -> list[str]:
        return await self._messages.withdraw(execution)

    async def depths(self) -> list[TopicDepth]:
        return await self._messages.depths(self._now())
