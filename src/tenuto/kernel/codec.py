"""Encodes histories and snapshots, versioned.

An entry is a JSON array that stays readable for ever: new fields are appended with defaults. A snapshot is only an
optimisation: if its format is not the current one, it is ignored and the history is folded from its beginning.
"""

from array import array
from collections import deque
from typing import Literal, get_args

import msgspec
from msgspec import Raw, Struct

from .address import Ref
from .definition import JSON
from .effects import DispatchAttempt, Effect, EffectKey, RequestAdmission, RequestHold, RunAttempt
from .events import Entry, Event, Failure
from .evolve import ADMISSION, HOLD, estimate_of, restore_node, set_timer
from .facts import Answer, Fact
from .plan import Node, Plan
from .state import (
    CancelState,
    Execution,
    FanState,
    KeptSignal,
    PauseState,
    Review,
    ScopeState,
    StepState,
    TimerKind,
    UndoState,
)

SNAPSHOT_FORMAT = 6

_entry_encoder = msgspec.json.Encoder()
_entry_decoder = msgspec.json.Decoder(Entry)


def encode_entry(entry: Entry) -> bytes:
    return _entry_encoder.encode(entry)


def decode_entry(data: bytes) -> Entry:
    return _entry_decoder.decode(data)


_fact_decoder = msgspec.json.Decoder(Fact)
_answer_decoder = msgspec.json.Decoder(Answer)


def encode_fact(fact: Fact) -> bytes:
    """Encodes a fact as a mailbox message, for an execution that this process does not own."""
    return _entry_encoder.encode(fact)


def decode_fact(data: bytes) -> Fact:
    fact: Fact = _fact_decoder.decode(data)
    return fact


def encode_answer(answer: Answer) -> bytes:
    return _entry_encoder.encode(answer)


def decode_answer(data: bytes) -> Answer:
    answer: Answer = _answer_decoder.decode(data)
    return answer


_entries_decoder = msgspec.json.Decoder(list[Entry])


def encode_entries(entries: list[Entry]) -> bytes:
    """Encodes the entries of one decision, which are stored together.

    Default values at the end of an array are left out.

    The default of a field must therefore never change, like its position.
    """
    return b"[%b]" % b",".join([_shortened(entry) for entry in entries])


def _shortened(entry: Entry) -> bytes:
    encode = _entry_encoder.encode
    event = encode(entry.event)[:-1]
    for tail in _TAILS[type(entry.event)]:
        if event.endswith(tail):
            event = event[: -len(tail)]
            break
    rest = b""
    if entry.grants or entry.cause is not None or entry.actor is not None:
        # Paths contain neither commas nor quotes, so only the end of a grant can match.
        grants = encode(entry.grants).replace(b',"forward",1,-1,-1]', b"]").replace(b",-1,-1]", b"]")
        rest = b"," + grants
        if entry.cause is not None or entry.actor is not None:
            rest += b",%b,%b" % (encode(entry.cause), encode(entry.actor))
    return b"[%d,%d,%d,%b]%b]" % (entry.seq, entry.at, entry.epoch, event, rest)


def _tails(kind: type[Struct]) -> tuple[bytes, ...]:
    """Returns the possible ends of an event's array if its last fields have their defaults, longest first.

    The text of a field ends with a quote, a bracket or a digit, and a comma comes before each default. So an array with
    such an end has these defaults, whatever its other fields contain.
    """
    tails = [b""]
    for field in reversed(msgspec.structs.fields(kind)):
        if field.required:
            break
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        tails.append(b"," + _entry_encoder.encode(default) + tails[-1])
    return tuple(reversed(tails[1:]))


_TAILS = {kind: _tails(kind) for kind in get_args(Event)}


def decode_entries(data: bytes) -> list[Entry]:
    return _entries_decoder.decode(data)


class Snapshot(Struct, frozen=True, kw_only=True):
    """An execution's state without the parts that can be derived: the agenda, the timer heap, the nodes of the plan."""

    format: int
    id: str
    tenant: str
    rules: int
    seq: int
    at: int
    epoch: int
    started_by: str | None
    size: int
    run: int
    finished: Literal["succeeded", "failed", "canceled"] | None
    outcome: str
    failure: Failure | None
    correlation_id: str
    priority: Literal["high", "normal"]
    input: Raw
    by_step: bool
    each: dict[str, int]
    variables: dict[str, Raw]
    payloads: dict[int, Raw]
    concurrency_key: str | None
    admitted: bool
    cancel: CancelState | None
    pause: PauseState | None
    hold: int
    charged: int
    usage: int
    tokens: int
    refunded: int
    retry_hold: int
    retries: bool
    unclaimed: Literal["", "start", "resume"]
    opens_at: int
    running_at: int | None
    max_attempts: int
    budget_left: int
    error_times: list[int]
    ok_times: list[int]
    signals: dict[str, list[KeptSignal]]
    heard: dict[str, None] = {}
    waits: dict[str, dict[str, None]]
    marks: dict[str, str]
    nodes: dict[str, StepState | FanState | ScopeState]
    last_done: int
    latest: dict[str, str]
    compensable: dict[str, int]
    undo: UndoState | None
    reviews: dict[str, Review]
    moving: int
    timers: list[tuple[TimerKind, str, int]]
    workspace: str = ""


# `_SAME` fields have the same shape in snapshot and state; `_OTHERS` differ.
_OTHERS = ("format", "error_times", "ok_times", "signals", "timers")
_SAME = tuple(name for name in Snapshot.__struct_fields__ if name not in _OTHERS)


def encode_snapshot(state: Execution) -> bytes:
    fields = {name: getattr(state, name) for name in _SAME}
    snapshot = Snapshot(
        format=SNAPSHOT_FORMAT,
        error_times=list(state.error_times),
        ok_times=list(state.ok_times),
        signals={name: list(kept) for name, kept in state.signals.items()},
        timers=[(kind, path, due) for (kind, path), due in state.timers.items()],
        **fields,
    )
    return msgspec.json.encode(snapshot, enc_hook=_enc_hook)


def decode_snapshot(plan: Plan, data: bytes) -> Execution | None:
    """Decodes a snapshot; None if this release does not support its format."""
    if msgspec.json.decode(data, type=_Format).format != SNAPSHOT_FORMAT:
        return None
    snapshot = msgspec.json.decode(data, type=Snapshot, dec_hook=_dec_hook)
    state = Execution(plan)
    for name in _SAME:
        setattr(state, name, getattr(snapshot, name))
    state.error_times.extend(snapshot.error_times)
    state.ok_times.extend(snapshot.ok_times)
    state.signals = {name: deque(kept) for name, kept in snapshot.signals.items()}
    state.signal_bytes = sum(signal.size for kept in snapshot.signals.values() for signal in kept)
    for path in sorted(state.nodes, key=lambda path: (path.count("/"), len(path) > 0)):
        restore_node(state, path)
    for kind, path, due in snapshot.timers:
        set_timer(state, kind, path, due)
    state.agenda = agenda_of(state)
    state.set_aside = sum(estimate_of(state, key) for key in state.agenda if isinstance(key, Ref))
    return state


class _Format(Struct):
    format: int


def agenda_of(state: Execution) -> dict[EffectKey, Effect]:
    """Computes the agenda from the rest of the state. `evolve` maintains the same agenda incrementally."""
    agenda: dict[EffectKey, Effect] = {}
    for node in state.nodes.values():
        holders = node.live.values() if isinstance(node, FanState) else (node,)
        for holder in holders:
            if holder.open is not None:
                ref = holder.open.ref
                agenda[ref] = DispatchAttempt(ref) if _is_outside(holder.node, ref) else RunAttempt(ref)
    if not state.admitted and state.finished is None and state.concurrency_key is not None:
        agenda[ADMISSION] = RequestAdmission(state.concurrency_key)
    if state.retries:
        agenda[HOLD] = RequestHold(state.retry_hold, state.run + 1)
    return agenda


def _is_outside(node: Node, ref: Ref) -> bool:
    return node.outside if ref.phase == "forward" else node.queue is not None


def _enc_hook(value: object) -> JSON:
    if isinstance(value, Node):
        return None  # looked up again by its path
    if isinstance(value, array):
        return list(value)
    assert isinstance(value, deque)
    return list(value)


def _dec_hook(kind: type, value: object) -> object:
    if kind is Node:
        return _NOWHERE
    assert isinstance(value, list)
    return array("I", value) if getattr(kind, "__origin__", kind) is array else deque(value)


class _Nowhere(Node):
    def __init__(self) -> None:
        pass


_NOWHERE = _Nowhere()
