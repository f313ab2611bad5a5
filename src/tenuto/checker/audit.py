"""The audit log: its hash chains are complete, and it matches the histories."""

from collections import Counter
from collections.abc import Sequence

from tenuto.storage.audit import row_hash
from tenuto.storage.shared.records import ActRecord, AuditRecord, HeadRecord
from tenuto.views.projections import AuditRow

from .invariants import Family, require

AUDITED_SINCE = 2  # the migration that added the audit log: earlier actions have no rows
REQUESTED = ".requested"  # requests that wait for a second person are audited, but not part of a history

family = Family("Audit")

A1 = family("A1", "The audit of a tenant is one chain without gaps that ends at its head and contains every row.")
A2 = family("A2", "Audited events that no person caused, such as an end or a rollback, are in the audit.")
H4 = family(
    "H4", "Every command on an execution is in the audit exactly once, and the audit contains no other command."
)


class Chains:
    """Verifies the chains of all tenants, one after another."""

    def __init__(self) -> None:
        self._tenant: str | None = None
        self._n = 0
        self._hash = ""
        self._broken = False

    def take(self, row: AuditRecord, before: int) -> None:
        """Adds the next row. Rows older than `before` must be in a chain."""
        if row.n is None:
            require(row.at >= before, A1, f"row {row.position} of {row.tenant!r} is not chained since {row.at}")
            return
        if row.tenant != self._tenant:
            self._tenant, self._n, self._hash, self._broken = row.tenant, 0, "", False
        if self._broken:  # only the first mismatch is reported, because it invalidates all later rows
            return
        wanted = self._n + 1
        expected = row_hash(self._hash, row, wanted)
        self._broken = row.n != wanted or row.hash != expected
        require(not self._broken, A1, f"the chain of {row.tenant!r} does not go on at {wanted}")
        self._n, self._hash = wanted, expected
        self._broken = row.head is None or row.head < row.n
        require(not self._broken, A1, f"the chain of {row.tenant!r} goes beyond its head, {row.head}")


def head_is_last(head: HeadRecord) -> None:
    """Requires that a chain ends at its head, so that nothing was cut off."""
    noted, there = (head.n, head.hash), (head.last_n, head.last_hash)
    require(noted == there, A1, f"the chain of {head.tenant!r} ends at {head.last_n}, its head is of {head.n}")


def acts_are_told(expected: Sequence[AuditRow], acts: Sequence[ActRecord], since: int) -> None:
    """Requires an audit row for every audited action of the history, and no others."""
    wanted = Counter(row for row in expected if row.at >= since)
    told = Counter(_row(act) for act in acts if act.at >= since and not act.action.endswith(REQUESTED))
    for row in wanted - told:
        require(row.actor == "system", H4, f"{row.action} of {row.object_id} at {row.at} is not in the audit")
        require(False, A2, f"{row.action} of {row.object_id} at {row.at} is not in the audit")
    for row in told - wanted:
        require(False, H4, f"the audit tells of {row.action} of {row.object_id} at {row.at}, the history does not")


def _row(act: ActRecord) -> AuditRow:
    return AuditRow(**{name: getattr(act, name) for name in AuditRow.__struct_fields__})
