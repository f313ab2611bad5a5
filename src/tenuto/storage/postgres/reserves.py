"""Reserves of credits on PostgreSQL, within the transaction that writes a batch.

The account's row is locked before anything of the batch is written, and the reserve is added after that. So a start
that is refused for another reason has changed nothing.
"""

from collections.abc import Container
from typing import Any

from tenuto.storage.port import Batch, Refusal
from tenuto.storage.runs import OPEN
from tenuto.storage.shared.reserves import refused_by, totals
from tenuto.views.ledger import Reserve

from .statements import NOW

_LOCK = "SELECT tenant FROM credit_accounts WHERE tenant = ANY($1) ORDER BY tenant FOR UPDATE"
# A statement of its own: it sees whatever was committed while the lock was waited for.
_APPLY = """
WITH changes AS (DELETE FROM credit_changes WHERE tenant = ANY($1) RETURNING tenant, balance, held),
sums AS (SELECT tenant, sum(balance)::bigint AS balance, sum(held)::bigint AS held FROM changes GROUP BY tenant)
UPDATE credit_accounts a SET balance = a.balance + sums.balance, held = a.held + sums.held
FROM sums WHERE a.tenant = sums.tenant"""
_AVAILABLE = "SELECT tenant, balance - held FROM credit_accounts WHERE tenant = ANY($1)"
_CREATED = f"SELECT id FROM runs WHERE id = ANY($1) AND {OPEN} ORDER BY id FOR UPDATE"


async def refused_reserves(db: Any, batch: Batch) -> dict[str, Refusal]:
    """Locks what the reserves of a batch need, and returns those that are refused."""
    tenants = sorted({reserve.tenant for reserve in batch.reserves if reserve.amount})
    available: dict[str, int] = {}
    if tenants:
        await db.execute(_LOCK, tenants)
        await db.execute(_APPLY, tenants)
        available = {row[0]: row[1] for row in await db.fetch(_AVAILABLE, tenants)}
    starting = [reserve.execution for reserve in batch.reserves if reserve.starts]
    created = {row[0] for row in await db.fetch(_CREATED, starting)} if starting else set()
    return refused_by(batch.reserves, created, available)


async def reserve(db: Any, reserves: list[Reserve], refused: Container[str]) -> None:
    """Adds the reserves of what was written to their accounts, and marks runs as started."""
    held = totals(reserves, refused)
    if held:
        await db.executemany("UPDATE credit_accounts SET held = held + $2 WHERE tenant = $1", sorted(held.items()))
    started = [reserve.execution for reserve in reserves if reserve.starts and reserve.execution not in refused]
    if started:
        await db.execute(f"UPDATE runs SET started_at = {NOW} WHERE id = ANY($1)", started)
