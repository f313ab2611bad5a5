"""The mailbox: messages to executions from other processes."""

from collections.abc import Sequence
from typing import Final, Protocol

from msgspec import Struct

MAIL_AT_ONCE: Final = 1_000


class Mail(Struct, frozen=True, kw_only=True):
    id: str
    execution: str
    body: bytes
    received_at: int


class Mailbox(Protocol):
    """Messages to executions from other processes."""

    async def post(self, id: str, execution: str, body: bytes) -> tuple[int, str | None] | None:
        """Stores a message, once per id. Returns when it arrived and the owner; None if the execution is unknown.

        It also sets `wake_at`, even if the execution has an owner: if the owner releases it at this moment, the next
        one finds the message.
        """

    async def unread(self, session: str) -> list[Mail]:
        """Messages without a verdict to this session's executions, oldest first, `MAIL_AT_ONCE` at most."""

    async def verdicts(self, ids: Sequence[str]) -> dict[str, bytes]:
        """The verdicts on those of these messages that have one."""

    async def wake_unread(self) -> int:
        """Makes executions due that have unread messages, no owner and no due time. Returns how many: normally 0."""
