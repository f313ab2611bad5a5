"""The audit."""

from msgspec import Struct

from tenuto.storage.shared.records import ActRecord, AuditRecord, HeadRecord
from tests.checking.streams import change, driven

from .planting import decided_and_failed, replace, violates


def _audited() -> list[Struct]:
    """Started, decided and failed in names: a chain of several rows."""
    return driven(decided_and_failed())


@violates("A1")
def _() -> list[Struct]:
    return change(_audited(), AuditRecord, lambda row: replace(row, actor="user:eve"))


@violates("A1")
def _() -> list[Struct]:
    return change(_audited(), AuditRecord, lambda row: None, nth=1)


@violates("A1")
def _() -> list[Struct]:
    return change(_audited(), HeadRecord, lambda row: replace(row, n=row.n + 1))


@violates("A1")
def _() -> list[Struct]:
    """All rows are gone."""
    return change(_audited(), HeadRecord, lambda row: replace(row, last_n=None, last_hash=None))


@violates("A1")
def _() -> list[Struct]:
    return change(_audited(), AuditRecord, lambda row: replace(row, head=None))


@violates("A1")
def _() -> list[Struct]:
    """Written long ago, and not chained since."""
    return change(_audited(), AuditRecord, lambda row: replace(row, n=None, hash=None), nth=-1)


@violates("A2")
def _() -> list[Struct]:
    records = _audited()
    last = [record for record in records if isinstance(record, ActRecord)][-1]
    assert (last.actor, last.action) == ("system", "execution.failed")
    return [record for record in records if record != last]


@violates("H4")
def _() -> list[Struct]:
    """What somebody did is not in the audit."""
    return change(_audited(), ActRecord, lambda row: None)


@violates("H4")
def _() -> list[Struct]:
    """The audit says that somebody did what nobody did."""
    return change(_audited(), ActRecord, lambda row: replace(row, actor="user:eve"))


@violates("H4")
def _() -> list[Struct]:
    """The same twice."""
    records = _audited()
    act = next(record for record in records if isinstance(record, ActRecord))
    return [*records[:-1], replace(act, position=99), records[-1]]
