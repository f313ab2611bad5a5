"""What is run: payments that may not be repeated, rollbacks, approvals, signals, fan-outs, a queue."""

from typing import Any

from tests.crash.scenario import GUARDED, UNSAFE, Document

QUEUE = "heavy"
PAYMENT_MS = 1_500


def _step(id: str, *, undo: bool = False, timeout: int = 10_000, **fields: Any) -> Document:
    """`stumbles`, `forgets`, `refuses`: how likely that is. See `outside`."""
    odds = {name: fields.pop(name, 0.0) for name in ("stumbles", "forgets", "refuses")}
    retry = {"max_attempts": 4, "initial_delay_ms": 20, "timeout_ms": timeout}
    step: Document = {
        "step_id": id,
        "type": "task",
        "handler": "act",
        "with": {**odds, "gives": fields.pop("gives", None)},
        "idempotency_strategy": fields.pop("safety", "SAFE_TO_RETRY"),
        "retry_policy": retry,
        **fields,
    }
    if undo:
        # An attempt that is lost for good may have made its effect. The undo, by its key alone, can follow it.
        step |= {"compensation_handler": "undo", "compensation_backoff_ms": 20, "partial_effect": True}
    return step


def _payment(id: str, **fields: Any) -> Document:
    return _step(id, safety=UNSAFE, timeout=PAYMENT_MS, **fields)


ORDER: Document = {
    "name": "order",
    "mode": "sequence",
    "steps": [
        _step("reserve", undo=True, stumbles=0.1),
        _payment("pay", undo=True, forgets=0.03, reconcile_handler="find"),
        _step("ship", queue=QUEUE, stumbles=0.1, refuses=0.08),
    ],
}

APPROVED: Document = {
    "name": "approved",
    "mode": "sequence",
    "steps": [
        _step("prepare", undo=True),
        {"step_id": "ok", "type": "human_approval"},
        _step("book", safety=GUARDED, guard_handler="guard", stumbles=0.15, forgets=0.05),
    ],
}

SIGNALLED: Document = {
    "name": "signalled",
    "mode": "sequence",
    "steps": [
        _step("ask"),
        {"step_id": "answer", "type": "wait", "with": {"signal": "answered"}},
        _payment("give", forgets=0.03, compensation_policy="manual"),
    ],
}

SPREAD: Document = {
    "name": "spread",
    "mode": "sequence",
    "policies": {"compensation": "GROUPED_PARALLEL"},
    "steps": [
        _step("list", gives=[1, 2, 3, 4], undo=True),
        _step("each", foreach="steps.list.result.more", undo=True, stumbles=0.05),
        _step("join", refuses=0.1),
    ],
}

DOCUMENTS = (ORDER, APPROVED, ORDER, SIGNALLED, SPREAD)


def program_of(number: int) -> str:
    name: str = DOCUMENTS[number % len(DOCUMENTS)]["name"]
    return name
