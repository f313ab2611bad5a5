"""Recorded histories: what was decided once, kept for ever, and what it must always fold to.

A file holds the definition as a document, the entries as they are stored (one list for each decision), and a portrait
of the state that they folded to on the day of the recording. No release may change what an old file means.
"""

from pathlib import Path
from typing import TypedDict

import msgspec

from tenuto.kernel.codec import decode_entry, encode_entry
from tenuto.kernel.definition import JSON, from_document, to_document
from tenuto.kernel.events import Entry
from tenuto.kernel.plan import Plan
from tenuto.kernel.state import Execution, ScopeState

from . import laws
from .driver import Driver
from .rendering import ref_text

FOLDER = Path(__file__).parent / "histories"


class Portrait(TypedDict):
    """What a user could see of an execution. Not a snapshot: the form of those may change."""

    status: str
    outcome: str
    run: int
    seq: int
    steps: dict[str, str]
    undos: dict[str, str]
    scopes: dict[str, str]
    open: list[str]
    reviews: list[str]
    wake_at: int | None
    charged: int
    refunded: int


class History(TypedDict):
    name: str
    definition: JSON
    decisions: list[list[JSON]]
    final: Portrait


def portrait(state: Execution) -> Portrait:
    found = laws.statuses(state)
    compensations = {path: status for (table, path), status in found.items() if table == "compensation"}
    scopes = {path: node for path, node in state.nodes.items() if isinstance(node, ScopeState)}
    return {
        "status": state.status,
        "outcome": state.outcome,
        "run": state.run,
        "seq": state.seq,
        "steps": {path: status for (table, path), status in found.items() if table in ("step", "fan_out")},
        "undos": {path: status for path, status in compensations.items() if status != "none"},
        "scopes": {path or ".": node.outcome or node.status for path, node in scopes.items()},
        "open": sorted(ref_text(key) for key in state.agenda if not isinstance(key, str)),
        "reviews": sorted(f"{review.kind} {review.path}" for review in state.reviews.values()),
        "wake_at": state.wake_at,
        "charged": state.charged,
        "refunded": state.refunded,
    }


def recorded(name: str, run: Driver) -> History:
    return {
        "name": name,
        "definition": to_document(run.definition),
        "decisions": [[msgspec.json.decode(encode_entry(entry)) for entry in entries] for entries in run.decisions],
        "final": portrait(run.state),
    }


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.json"


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load(name: str) -> History:
    return msgspec.json.decode(path_of(name).read_bytes(), type=History)


def plan_of(history: History) -> Plan:
    assert isinstance(history["definition"], dict)
    return Plan(from_document(history["definition"]))


def decisions_of(history: History) -> list[list[Entry]]:
    return [[decode_entry(msgspec.json.encode(entry)) for entry in entries] for entries in history["decisions"]]
