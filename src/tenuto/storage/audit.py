"""The hash chain of the audit log: each row's hash covers the row and the hash before it, so changes are detected.

Rows are written in the commit of the action that they record. They are numbered later, in one place and in commit
order, because numbering in the commit would make a tenant's commits wait for one another.

An intact chain proves that no row was changed or removed from its middle. To detect that its end was cut off, or that
it was rewritten from the beginning, compare it with an earlier head that was kept elsewhere.
"""

import hashlib
from typing import NamedTuple

import msgspec

from tenuto.errors import StorageError

from .registry import AuditEntry, Head, Registry

AT_ONCE = 500
MAX_CONFLICTS = 20
_MARK = b"\x01"  # what is hashed here is a row of the audit, and nothing else is


def row_hash(before: str, row: AuditEntry, n: int) -> str:
    """SHA-256 over a mark, the hash before, and the row as canonical JSON."""
    told = {
        "action": row.action,
        "actor": row.actor,
        "at": row.at,
        "n": n,
        "object_id": row.object_id,
        "object_type": row.object_type,
        "reason": row.reason,
        "tenant": row.tenant,
    }
    return hashlib.sha256(_MARK + bytes.fromhex(before) + msgspec.json.encode(told)).hexdigest()


async def seal(registry: Registry) -> int:
    """Numbers and chains the rows that are not chained yet. Concurrent calls chain each row once."""
    sealed = conflicts = 0
    refused: StorageError | None = None
    while conflicts < MAX_CONFLICTS and (tenants := await registry.unchained_tenants(AT_ONCE)):
        for tenant in tenants:
            # Read the head first: if another process chains these rows, it moves the head, and this attempt is refused.
            head = await registry.head(tenant)
            rows = await registry.unchained(tenant, AT_ONCE)
            try:
                if rows and await registry.chain(tenant, head, _numbered(head, rows)):
                    sealed += len(rows)
                elif rows:
                    conflicts += 1  # another process chains rows of this tenant: read again
            except StorageError as error:
                if error.code != "bad_data":
                    raise
                refused = error
                conflicts += 1
    if refused is not None:  # one tenant's rows do not hold up the others
        raise refused
    return sealed


def _numbered(head: Head, rows: list[AuditEntry]) -> list[AuditEntry]:
    chained: list[AuditEntry] = []
    n, hash = head.n, head.hash
    for row in rows:
        n, hash = n + 1, row_hash(hash, row, n + 1)
        chained.append(msgspec.structs.replace(row, n=n, hash=hash))
    return chained


class Verified(NamedTuple):
    """What a look at a chain found. `broken_at` is the first number that does not fit, or is gone; None if all is well.

    `cut`: all that is there fits, and there was more.
    """

    tenant: str
    rows: int
    head: str
    broken_at: int | None
    cut: bool = False


class Kept(NamedTuple):
    """A head that was kept outside the database."""

    n: int
    hash: str


async def verify(registry: Registry, tenant: str, kept: Kept | None = None) -> Verified:
    n, hash = 0, ""
    while rows := await registry.chained(tenant, n, AT_ONCE):
        for row in rows:
            expected = row_hash(hash, row, n + 1)
            is_kept = kept is None or kept.n != n + 1 or kept.hash == expected
            if row.n != n + 1 or row.hash != expected or not is_kept:
                return Verified(tenant, n, hash, n + 1)
            n, hash = n + 1, expected
    head = await registry.head(tenant)
    is_cut = head.n > n or (kept is not None and kept.n > n)
    return Verified(tenant, n, hash, None if head == Head(n, hash) and not is_cut else n + 1, is_cut)
