"""What is in a fixture: the definitions of its schema, and how their executions end."""

from tests.crash.scenario import UNSAFE, Document

from .schema_2 import LATER, steps
from .schema_3 import RARER
from .states import STATES

LATER_SINCE = 2
RARER_SINCE = 3
HOUR_MS = 3_600_000

DRAFT: Document = {"name": "draft", "mode": "sequence", "steps": [{"step_id": "ok", "type": "human_approval"}]}
DEPRECATED = "deprecated"


def documents(schema: int) -> list[Document]:
    return [{"name": name, **document} for name, (document, _) in _contents(schema).items()]


def ends(schema: int) -> dict[str, str]:
    """How executions end, by the names of their definitions."""
    return {name: end for name, (_, end) in _contents(schema).items()}


def _contents(schema: int) -> dict[str, tuple[Document, str]]:
    found = {name: (steps(*given), end) for name, (given, end) in STATES.items()}
    found |= LATER if schema >= LATER_SINCE else {}
    if schema < RARER_SINCE:
        return found
    return {name: (_patient(document), end) for name, (document, end) in (found | RARER).items()}


def _patient(part: Document) -> Document:
    """What hangs is not timed out before its worker is killed, however busy the machine is that makes the fixture.

    What may not be repeated is an exception: until its time is over, nobody looks for what a dead worker made of it.
    """
    if part.get("type") in ("task", "external_call") and part["idempotency_strategy"] != UNSAFE:
        return {**part, "retry_policy": {"timeout_ms": HOUR_MS, **part.get("retry_policy", {})}}
    return part | {key: [_patient(child) for child in part[key]] for key in ("steps", "children") if key in part}
