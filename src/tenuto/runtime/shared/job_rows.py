"""The rows that a decision on a job writes: its ledger, its index, and the log of callbacks."""

from collections.abc import Callable, Sequence

import msgspec

from tenuto.kernel import facts as f
from tenuto.kernel.events import Entry
from tenuto.kernel.state import Execution
from tenuto.storage.ledger.port import IndexRow
from tenuto.storage.port import Batch
from tenuto.views.jobs import CALLBACK, CallbackRow, is_job, ledger_attempts, ledger_rows


def add_job_rows(
    batch: Batch, state: Execution, entries: Sequence[Entry], callback: CallbackRow | None, key: str | None
) -> None:
    """`key` is the idempotency key of an execution that these entries start."""
    if callback is not None:
        batch.callbacks.append(callback)
    if not entries or not is_job(state):
        return
    batch.ledger.extend(ledger_rows(state, entries))
    batch.ledger_attempts.extend(ledger_attempts(state, entries))
    if key is not None:
        at = entries[0].at
        batch.job_index.append(IndexRow(execution=state.id, tenant=state.tenant, hash=key, created_at=at))


def with_cause(fact: f.Fact, new_id: Callable[[], str]) -> f.Fact:
    """Gives a callback the id under which it is logged."""
    if isinstance(fact, f.Acked | f.Reported) and fact.lease is not None and fact.cause is None:
        return msgspec.structs.replace(fact, cause=CALLBACK + new_id())
    return fact
