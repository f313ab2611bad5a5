"""Notifications that were sent, so that a repeated attempt does not send them again."""

from typing import Protocol

from msgspec import Struct


class Notice(Struct, frozen=True, kw_only=True):
    """A notification, by the key of its step. `receipt` is None until the channel has accepted it."""

    key: str
    tenant: str
    execution: str
    path: str
    channel: str
    begun_at: int = 0
    sent_at: int | None = None
    receipt: bytes | None = None


class Notices(Protocol):
    async def begin_notice(self, notice: Notice) -> Notice:
        """Stores that a notification is about to be sent, unless its key is known. Returns the stored one."""

    async def end_notice(self, key: str, receipt: bytes) -> None:
        """Stores the receipt. The first one stays."""

    async def notice(self, key: str) -> Notice | None: ...
