"""Claims: which session owns an execution."""

from collections.abc import Sequence
from typing import Final, Protocol

from msgspec import Struct

TENANTS_AT_ONCE: Final = 100
PARKED_AT_ONCE: Final = 10_000


class Claim(Struct, frozen=True):
    id: str
    epoch: int
    definition: str
    version: int


class Turn(Struct, frozen=True, kw_only=True):
    """A claim by tenant: tenants after this one, except full ones; at most `each` per tenant and `limit` in all."""

    after: str
    full: Sequence[str]
    each: int
    limit: int


def plan_pairs(plans: Sequence[str]) -> list[tuple[str, int]]:
    """Definition and version of each `name/version`; names of tenants' definitions contain a slash."""
    parted = (plan.rpartition("/") for plan in plans)
    return [(name, int(version)) for name, _, version in parted]


def next_after(turn: Turn, tenants: Sequence[str], claimed: int) -> str:
    """The tenant to continue after. If the limit was reached, the next claim sees the same tenants, minus full ones."""
    if claimed >= turn.limit:
        return turn.after
    return tenants[-1] if len(tenants) == TENANTS_AT_ONCE else ""


class Claims(Protocol):
    """Which session owns an execution."""

    async def claim(self, session: str, plans: Sequence[str], limit: int) -> list[Claim]:
        """Claims due executions of these plans (`name/version`), by priority and then by age."""

    async def claim_by_tenant(self, session: str, plans: Sequence[str], turn: Turn) -> tuple[list[Claim], str]:
        """Claims due executions tenant by tenant. Also returns the tenant to continue after; "" at the end.

        It costs one lookup per tenant, and none per waiting execution: a tenant with ten thousand of them does not
        delay the others. One call looks at `TENANTS_AT_ONCE` tenants.
        """

    async def claim_one(self, session: str, execution: str) -> Claim | None:
        """Claims this execution if it has no owner."""

    async def owned(self, session: str) -> list[Claim]:
        """The executions of this session: resolves a claim whose outcome is unknown."""

    async def park(
        self, session: str | None, execution: str, why: str, again_ms: int | None, epoch: int | None = None
    ) -> None:
        """Parks an execution with a reason. It is not claimed until the time is over or a command wakes it.

        Does nothing if another session owns it, or if an epoch is given and the execution has another one.
        """

    async def parked(self, plans: Sequence[str], within_ms: int) -> list[str]:
        """Parked executions of these plans that become due within that time, `PARKED_AT_ONCE` at most."""
