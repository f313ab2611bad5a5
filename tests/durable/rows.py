"""Rows for tests of the store, with everything that a test does not care about filled in."""

from tenuto.storage.port import Append, Batch, NewExecution
from tenuto.views.projections import Standing


def start(id: str = "x1", *, owner: str | None = "s1", key: str | None = None, tenant: str = "t") -> NewExecution:
    return NewExecution(
        id=id,
        tenant=tenant,
        definition="d",
        version=1,
        priority=0,
        correlation_id="",
        target_type="",
        target_id="",
        key=key,
        request_hash="r",
        concurrency_key=None,
        reject_conflict=False,
        created_at=1,
        owner=owner,
    )


def standing(
    id: str = "x1",
    status: str = "running",
    *,
    epoch: int = 1,
    release: bool = False,
    wake_at: int | None = None,
    ended: bool = False,
) -> Standing:
    return Standing(
        id=id,
        epoch=epoch,
        status=status,
        run=1,
        seq=1,
        wake_at=wake_at,
        release=release,
        ended_at=1 if ended else None,
        cancel_requested=False,
        error_class="",
    )


def append(id: str = "x1", seq: int = 1, body: bytes = b"[]") -> Append:
    return Append(id, seq, 1, body)


def started(id: str = "x1", *, session: str | None = "s1", release: bool = False, key: str | None = None) -> Batch:
    """A batch that starts one execution."""
    return Batch(
        session=session,
        starts=[start(id, owner=session, key=key)],
        standings={id: standing(id, release=release, wake_at=1 if release else None)},
        appends=[append(id)],
    )
