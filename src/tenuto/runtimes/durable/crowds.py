"""Tenants that ask for far more than they may. They are told so at once, and their refusals cost the others nothing.

Whether a tenant has room is decided by the commit that would start an execution, under the lock of the tenant's row,
and nothing else ever lets one in. But a refusal in a commit costs nearly as much as a start. So when many were refused,
this process remembers that for a moment: as many starts as executions end here are let through to the database, and one
now and then, because executions end elsewhere, too. All others are refused here.
"""

import time
from typing import Final

MANY: Final = 64  # refusals; fewer are each asked about
MOMENT_S: Final = 0.1


class _Crowd:
    __slots__ = ("probing", "refusals", "room", "until")

    def __init__(self) -> None:
        self.refusals = 0
        self.room = 0
        self.until = 0.0
        self.probing = False


class Crowds:
    """By tenant. Where nobody is refused there is nothing in it."""

    __slots__ = ("_crowds",)

    def __init__(self) -> None:
        self._crowds: dict[str, _Crowd] = {}

    def refuse(self, tenant: str) -> bool:
        """Whether a start is refused without asking the database."""
        crowd = self._crowds.get(tenant)
        if crowd is None or crowd.refusals < MANY:
            return False
        now = time.monotonic()
        if now > crowd.until:
            crowd.until = now + MOMENT_S
            crowd.probing = True
            return False
        if crowd.room:
            crowd.room -= 1
            return False
        return True

    def refused(self, tenant: str) -> None:
        """By the database."""
        crowd = self._crowds.setdefault(tenant, _Crowd())
        crowd.refusals += 1
        crowd.room = 0
        crowd.until = time.monotonic() + MOMENT_S
        crowd.probing = False

    def accepted(self, tenant: str) -> None:
        """By the database: if that was a look whether there is room again, there is."""
        crowd = self._crowds.get(tenant)
        if crowd is not None and (crowd.probing or crowd.refusals < MANY):
            del self._crowds[tenant]

    def ended(self, tenant: str) -> None:
        """One of its executions, here."""
        crowd = self._crowds.get(tenant)
        if crowd is not None:
            crowd.room += 1

    def forget(self, tenant: str) -> None:
        """Its limit was changed."""
        self._crowds.pop(tenant, None)
