"""Messages: each matches its entry, and they are published in order."""

from collections.abc import Sequence

import msgspec

from tenuto.kernel import events as e
from tenuto.kernel.state import Execution
from tenuto.storage.shared.records import ExecutionRecord, MessageRow
from tenuto.views.messages import Announced

from .invariants import Family, Violated, require
from .projections import I1

family = Family("Messages")

B2 = family("B2", "A message is published.", "at rest")
B4 = family("B4", "The messages of an execution are published in the order of its history.")
B5 = family("B5", "Every message belongs to a recorded entry and has the content of that entry.")

_EVERY = Announced(["*"])


def message_is_of_entry(message: MessageRow, entry: e.Entry, state: Execution) -> None:
    made = _EVERY.rows(state, [entry])
    require(made, B5, f"entry {entry.seq} makes no message, and has one of {message.kind}")
    kind, at = made[0].kind, made[0].created_at
    told = (message.kind, message.created_at)
    require(told == (kind, at), B5, f"the message of entry {entry.seq} is {told}, and should be {(kind, at)}")
    _says_the_same(message, made[0].body)


def _says_the_same(message: MessageRow, wanted: bytes) -> None:
    """Compares messages as JSON, because an export may format them differently. The error contains no values."""
    said, should = _read(message), msgspec.json.decode(wanted, type=dict[str, object])
    differing = sorted(name for name in said.keys() | should.keys() if said.get(name) != should.get(name))
    require(not differing, B5, f"the message of entry {message.seq} differs from it in {differing}")


def _read(message: MessageRow) -> dict[str, object]:
    try:
        return msgspec.json.decode(message.body, type=dict[str, object])
    except msgspec.DecodeError:
        raise Violated(B5, f"the message of entry {message.seq} cannot be read") from None


def message_is_recorded(message: MessageRow, row: ExecutionRecord, state: Execution) -> None:
    require(1 <= message.seq <= state.seq, B5, f"a message names entry {message.seq} of {state.seq}")
    require(message.tenant == row.tenant, I1, f"the message of entry {message.seq} is of another tenant")


def published_in_order(messages: Sequence[MessageRow]) -> None:
    """Requires that no message is published before an earlier one. Messages published long ago may be deleted."""
    waiting: int | None = None
    for message in messages:
        if message.published_at is None:
            waiting = message.seq if waiting is None else waiting
        else:
            require(waiting is None, B4, f"the message of entry {message.seq} left before that of entry {waiting}")


def is_late(message: MessageRow, before: int) -> bool:
    return message.published_at is None and message.created_at < before
