"""Which reserves of a batch are refused: a rule that both databases apply, one reserve after the other."""

from collections.abc import Collection, Container, Sequence

from tenuto.storage.port import Refusal
from tenuto.views.ledger import Reserve


def refused_by(reserves: Sequence[Reserve], created: Collection[str], available: dict[str, int]) -> dict[str, Refusal]:
    """`created`: runs that may still start. `available`: the credits of each organisation that has an account."""
    left = dict(available)
    refused: dict[str, Refusal] = {}
    for reserve in reserves:
        if reserve.starts and reserve.execution not in created:
            refused[reserve.execution] = "not_created"
        elif reserve.amount > left.get(reserve.tenant, 0):
            refused[reserve.execution] = "insufficient_credits"
        else:
            left[reserve.tenant] = left.get(reserve.tenant, 0) - reserve.amount
    return refused


def totals(reserves: Sequence[Reserve], refused: Container[str]) -> dict[str, int]:
    """Returns what is held for each organisation, without what was refused."""
    held: dict[str, int] = {}
    for reserve in reserves:
        if reserve.amount and reserve.execution not in refused:
            held[reserve.tenant] = held.get(reserve.tenant, 0) + reserve.amount
    return held
