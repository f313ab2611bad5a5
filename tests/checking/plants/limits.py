"""Limits, and what is only told of them."""

from msgspec import Struct

from tenuto.storage.shared.records import HolderRecord, LimitRecord, TenantLimitRow
from tests.checking.streams import NOW, driven

from .planting import two_steps, violates


def _beside(*rows: Struct) -> list[Struct]:
    records = driven(two_steps())
    return [*records[:2], *rows, *records[2:]]


def _limit(concurrency: int | None = None, count: int | None = None, spent: str = "[]") -> LimitRecord:
    return LimitRecord(name="bank", count=count, period_ms=count and 1_000, concurrency=concurrency, spent=spent)


def _holder(session: str, held: int) -> HolderRecord:
    return HolderRecord(
        name="bank", session=session, held=held, wanted=0, asked_at=NOW, served_at=NOW, session_ended_at=None
    )


@violates("I3")
def _() -> list[Struct]:
    return _beside(TenantLimitRow(tenant="t", max_in_flight=5, in_flight=3, counted=2))


@violates("I5")
def _() -> list[Struct]:
    return _beside(_limit(concurrency=3), _holder("one", 2), _holder("two", 2))


@violates("I5")
def _() -> list[Struct]:
    """What was dealt long ago counts no more."""
    return _beside(_limit(count=3, spent=f"[[{NOW - 1}, 9], [{NOW + 1}, 2], [{NOW + 2}, 2]]"))


@violates("I5")
def _() -> list[Struct]:
    return _beside(_limit(count=3, spent='[["soon", 2]]'))


@violates("I6")
def _() -> list[Struct]:
    return _beside(TenantLimitRow(tenant="t", max_in_flight=1, in_flight=2, counted=2))
