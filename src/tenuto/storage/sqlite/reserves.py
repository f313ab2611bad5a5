"""Reserves and settlements of credits on SQLite, within the transaction that writes a batch.

There is one writer at a time, so settlements are applied to the account at once.
"""

from collections.abc import Container

import apsw

from tenuto.storage.port import Batch, Refusal
from tenuto.storage.runs import OPEN
from tenuto.storage.shared.reserves import refused_by, totals

from .plain_batch import as_json

_AVAILABLE = "SELECT tenant, balance - held FROM credit_accounts WHERE tenant IN (SELECT value FROM json_each(?))"
_CREATED = f"SELECT id FROM runs WHERE id IN (SELECT value FROM json_each(?)) AND {OPEN}"
_CHANGE = "UPDATE credit_accounts SET balance = balance + ?, held = held + ? WHERE tenant = ?"
_STARTED = "UPDATE runs SET started_at = ? WHERE id = ?"


def refused_reserves(db: apsw.Connection, batch: Batch) -> dict[str, Refusal]:
    if not batch.reserves:
        return {}
    tenants = as_json(list({reserve.tenant for reserve in batch.reserves}))
    starting = as_json([reserve.execution for reserve in batch.reserves if reserve.starts])
    created = {id for (id,) in db.execute(_CREATED, (starting,))}
    return refused_by(batch.reserves, created, dict(db.execute(_AVAILABLE, (tenants,))))


def book(db: apsw.Connection, batch: Batch, refused: Container[str], now: int) -> None:
    """Applies the settlements and reserves of what was written, and marks runs as started."""
    settled = [(s.balance, s.held, s.tenant) for s in batch.settlements if s.execution not in refused]
    db.executemany(_CHANGE, settled)
    db.executemany(_CHANGE, [(0, amount, tenant) for tenant, amount in totals(batch.reserves, refused).items()])
    started = [(now, r.execution) for r in batch.reserves if r.starts and r.execution not in refused]
    db.executemany(_STARTED, started)
