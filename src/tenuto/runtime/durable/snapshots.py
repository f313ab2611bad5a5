"""Snapshots: a short cut over the beginning of a long history.

One is written with the decision whose record makes the tail outgrow the snapshot before it; so all but the newest
together are no longer than the history itself. What came before is not read again, except for what an attempt asks for:
the history of such an execution has gaps, and `unread` says up to where.
"""

from collections.abc import Sequence
from typing import Final, cast

import msgspec
from msgspec import Raw, Struct

from tenuto.kernel.address import Ref
from tenuto.kernel.codec import decode_entries, decode_snapshot, encode_snapshot
from tenuto.kernel.events import Entry, Expanded
from tenuto.kernel.evolve import evolve, holder_of
from tenuto.kernel.plan import Plan
from tenuto.kernel.state import Execution
from tenuto.runtime.executor import wanted
from tenuto.runtime.executor.held_execution import Record
from tenuto.storage.port import Loaded, SnapshotRow
from tenuto.views.reading import Reading

SMALLEST_TAIL: Final = 64_000  # bytes; what is shorter is folded faster than it is worth

_UNREAD: Final = cast(Entry, None)  # to read it is a mistake, and says so


class _Body(Struct, array_like=True):
    """The kernel's snapshot, and where fan-outs were expanded: their items are in those entries alone."""

    state: Raw
    expanded: list[int]


def take(record: Record) -> SnapshotRow:
    state = record.state
    expanded = [
        *record.expanded,
        *(entry.seq for entry in record.history[record.snapshot_seq :] if type(entry.event) is Expanded),
    ]
    body = msgspec.json.encode(_Body(Raw(encode_snapshot(state)), expanded))
    record.expanded = expanded
    note(record, SnapshotRow(state.id, state.seq, body))
    return SnapshotRow(state.id, state.seq, body)


def note(record: Record, snapshot: SnapshotRow) -> None:
    record.snapshot_seq = snapshot.seq
    record.tail = 0
    record.longest_tail = len(snapshot.body)


def state_of(plan: Plan, loaded: Loaded) -> Execution | None:
    """Where the execution stands, by its snapshot if it has one; None if that is one which this release cannot read."""
    bodies = loaded.bodies
    state = Execution(plan)
    if loaded.snapshot is not None:
        found = _read(plan, loaded.snapshot)
        if found is None:
            return None
        state, bodies = found[0], bodies[1:]
    for body in bodies:
        for entry in decode_entries(body):
            evolve(state, entry)
    return state


def first_of(loaded: Loaded, state: Execution) -> list[Entry]:
    """A history of the state's length that has the entries of its first decision, and no others."""
    first = decode_entries(loaded.bodies[0])
    return [*first, *[_UNREAD] * (state.seq - len(first))]


def detached(reading: Reading) -> Reading:
    """Copies the state, because it cannot be folded again where entries are missing."""
    state = decode_snapshot(reading.program.plan, encode_snapshot(reading.state))
    assert state is not None
    key, activity = reading.idempotency_key, reading.activity
    return Reading(reading.program, state, list(reading.history), idempotency_key=key, activity=activity)


def _read(plan: Plan, snapshot: SnapshotRow | None) -> tuple[Execution, list[int]] | None:
    if snapshot is None:
        return None
    try:
        body = msgspec.json.decode(snapshot.body, type=_Body)
        state = decode_snapshot(plan, body.state)
    except Exception:  # whatever another release wrote: the history is the truth, and is there
        return None
    return None if state is None or state.seq != snapshot.seq else (state, body.expanded)


def restore(record: Record, loaded: Loaded) -> bool:
    """Fills a record from its snapshot and what came after. False: this release cannot read it."""
    found = _read(record.performer.program.plan, loaded.snapshot)
    if found is None or loaded.snapshot is None:
        return False
    state, record.expanded = found
    first, *rest = [decode_entries(body) for body in loaded.bodies]
    record.state = state
    record.note(first)
    record.history.extend([_UNREAD] * (state.seq - len(first)))
    record.unread = state.seq
    note(record, loaded.snapshot)
    for entries in rest:
        for entry in entries:
            evolve(state, entry)
        record.note(entries)
    record.tail = sum(len(body) for body in loaded.bodies[1:])
    return True


def missing(record: Record, seqs: Sequence[int]) -> list[int]:
    return [seq for seq in seqs if record.history[seq - 1] is _UNREAD]


def needed(record: Record, ref: Ref) -> list[int]:
    """The entries that an attempt may read and that are not here. One with a context may ask for any result."""
    state, performer = record.state, record.performer
    holder = holder_of(state, ref)
    assert holder is not None
    role = performer.role(holder.node, ref.phase)
    anything = role.handler is not None and role.handler.needs.context
    if anything or (role.template is not None and role.template.reads_all_steps):
        return missing(record, range(1, record.unread + 1))
    return missing(record, [*record.expanded, *wanted(performer, state, ref)])


def fill(record: Record, bodies: Sequence[bytes]) -> None:
    """What was asked for has arrived."""
    for body in bodies:
        entries = decode_entries(body)
        for entry in entries:
            if record.history[entry.seq - 1] is _UNREAD:
                record.history[entry.seq - 1] = entry
        record.payloads.note(entry for entry in entries if entry.seq in record.expanded)
