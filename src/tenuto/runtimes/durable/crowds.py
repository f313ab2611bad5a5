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
FORGOTTEN_S: Final = 5.0
MOST_AT_ONCE: Final = 8  # each may be one too many, and that is known only after its commit


class _Crowd:
    __slots__ = ("growth", "probing", "refusals", "refused_at", "room", "until")

    def __init__(self) -> None:
        self.refusals = 0
        self.refused_at = 0.0
        self.room = 0  # starts that are let through
        self.until = 0.0  # then one more is, to see
        self.probing = False
        self.growth = 1


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
        if now > crowd.refused_at + FORGOTTEN_S:
            del self._crowds[tenant]
            return False
        if crowd.room:
            crowd.room -= 1
            return False
        if now > crowd.until:
            crowd.until = now + MOMENT_S
            crowd.probing = True
            return False
        return True

    def refused(self, tenant: str) -> None:
        """By the database."""
        crowd = self._crowds.setdefault(tenant, _Crowd())
        crowd.refusals += 1
        crowd.refused_at = time.monotonic()
        crowd.until = crowd.refused_at + MOMENT_S
        crowd.probing = False
        crowd.growth = 1

    def accepted(self, tenant: str) -> None:
        """By the database. If somebody was sent to see whether there is room, there is: more follow him each time."""
        crowd = self._crowds.get(tenant)
        if crowd is None:
            return
        if crowd.refusals < MANY:
            del self._crowds[tenant]
        elif crowd.probing:
            crowd.probing = False
            crowd.room += crowd.growth
            crowd.growth = min(2 * crowd.growth, MOST_AT_ONCE)

    def ended(self, tenant: str) -> None:
        """One of its executions, here."""
        crowd = self._crowds.get(tenant)
        if crowd is not None:
            crowd.room += 1

    def forget(self, tenant: str) -> None:
        """Its limit was changed."""
        self._crowds.pop(tenant, None)
