"""Ledger entries derived from entries of histories. Pure.

Reserves, charges and refunds follow from what is recorded of a run, and are written in the same transaction.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref
from tenuto.kernel.events import Entry
from tenuto.kernel.state import Execution

LedgerType = Literal["topup", "reserve", "charge", "refund", "adjust"]
Direction = Literal["", "credit", "debit"]


class CreditEntry(Struct, frozen=True, kw_only=True):
    """A ledger entry that has no number yet. Amounts are millionths of a credit. `key` is unique per organisation."""

    execution: str = ""
    tenant: str
    attempt: int = 0
    step: str = ""
    step_attempt: int = 0
    failed: bool = False
    type: LedgerType
    amount: int
    direction: Direction = ""
    reverses: int = 0
    key: str
    actor: str
    reason: str = ""
    created_at: int


class Settlement(Struct, frozen=True, kw_only=True):
    """The end of a run attempt: what it changes of the account. Both numbers are zero or negative."""

    execution: str
    tenant: str
    balance: int
    held: int


class Reserve(Struct, frozen=True, kw_only=True):
    """The credits that a run attempt reserves. `starts`: it is the first attempt, of a run that was created before."""

    execution: str
    tenant: str
    amount: int
    starts: bool


class Bookings(NamedTuple):
    rows: list[CreditEntry]
    settlements: list[Settlement]
    reserves: list[Reserve]


def bookings(state: Execution, entries: Sequence[Entry]) -> Bookings:
    """Returns what the entries of one decision write to the ledger and the account."""
    found = Bookings([], [], [])
    for entry in entries:
        event = entry.event
        match event:
            case e.ExecutionStarted() | e.RunOpened():
                starts = isinstance(event, e.ExecutionStarted)
                if event.hold:
                    found.rows.append(_row(state, entry, "reserve", event.hold))
                if event.hold or starts:
                    found.reserves.append(
                        Reserve(execution=state.id, tenant=state.tenant, amount=event.hold, starts=starts)
                    )
            case e.ExecutionFinished() if state.hold:
                held = event.charged + event.refunded
                found.settlements.append(
                    Settlement(execution=state.id, tenant=state.tenant, balance=-event.charged, held=-held)
                )
                if event.refunded:
                    found.rows.append(_row(state, entry, "refund", event.refunded))
            case _:
                found.rows.extend(_charges(state, entry))
    return found


def _charges(state: Execution, entry: Entry) -> Iterator[CreditEntry]:
    match entry.event:
        case e.AttemptSucceeded(path, phase, number) | e.AttemptFailed(path, phase, number) if entry.event.charge:
            failed = isinstance(entry.event, e.AttemptFailed)
            yield _row(state, entry, "charge", entry.event.charge, Ref(path, phase, number), failed=failed)
        case e.AttemptTimedOut(path, phase, number, charge=charge) if charge:
            yield _row(state, entry, "charge", charge, Ref(path, phase, number), failed=True)
        case e.ChildrenAdded(scope, number, charge=charge) if charge:
            yield _row(state, entry, "charge", charge, Ref(scope, "plan", number))


def _row(
    state: Execution, entry: Entry, type: LedgerType, amount: int, ref: Ref | None = None, *, failed: bool = False
) -> CreditEntry:
    return CreditEntry(
        execution=state.id,
        tenant=state.tenant,
        attempt=state.run,
        step="" if ref is None else shown_path(state, ref),
        step_attempt=0 if ref is None else ref.number,
        failed=failed,
        type=type,
        amount=amount,
        key=f"{state.id}/{entry.seq}",
        actor=entry.actor or "system",
        created_at=entry.at,
    )


def shown_path(state: Execution, ref: Ref) -> str:
    """Returns the path of a step as people see it: without the scope of a run's agents; `planner` for the planner."""
    if ref.phase == "plan":
        return "planner"
    if state.plan.run is None:
        return ref.path
    first, _, rest = ref.path.partition("/")
    return rest if rest and first == state.plan.root.children[0].id else ref.path
