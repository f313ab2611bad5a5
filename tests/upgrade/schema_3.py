"""States that are in fixtures of schema 3 and later: with them, every kind of event is in a fixture."""

from typing import Any

from tests.crash.scenario import GUARDED, UNSAFE, Document
from tests.crash.scenarios.structure import scope

from .schema_2 import ONCE, steps
from .states import APPROVAL, CALLBACK, CENTURY_MS, FAR, SIGNAL, payment, task

RUSHED: Document = {"timeout_ms": 300, "retry_policy": {"max_attempts": 9, "initial_delay_ms": 10, "timeout_ms": 200}}
PATIENT: Document = {"reconcile_timeout_ms": CENTURY_MS}
LOST = ("lost", "lost-payment")
"""What a first worker had in hand when it was killed, and a second one took over."""


def _flow(first: Document, **policies: Any) -> Document:
    """What becomes of the first step leads to a person, so that the execution stands there."""
    edges = {"on_success": "$succeed", "on_failure": "ok", "on_timeout": "ok"}
    return steps(task("a", gives=1, on_success=first["step_id"]), {**first, **edges}, APPROVAL, mode="flow", **policies)


RARER: dict[str, tuple[Document, str]] = {
    # Workers that are gone: their attempts were lost, or are still a guest's.
    "lost": (steps(task("a"), task("b", "hangs"), task("c")), "succeeded"),
    "lost-payment": (steps(payment("pay", "hangs", finds=True, **PATIENT), task("b")), "succeeded"),
    "taken": (steps(task("a"), task("b", "hangs", queue=FAR)), "succeeded"),
    "taken-payment": (steps(payment("pay", "hangs", finds=True, queue=FAR), task("b")), "succeeded"),
    # Probes that said something, and one that is asked again later.
    "looked-for": (steps(payment("pay", "is unknown", finds=True, **PATIENT), task("b")), "succeeded"),
    # Earlier fixtures have it, too; there it ends otherwise, because the time that the guard had is over.
    "guard": (
        steps(task("a", "stumbles", idempotency_strategy=GUARDED, guard_handler="guard", **PATIENT), task("b")),
        "succeeded",
    ),
    # Directives: taken up, and not taken by whoever they were sent to.
    "acked": (steps(CALLBACK, task("b")), "succeeded"),
    "undispatched": (steps({**CALLBACK, "with": {"does": "stumbles, then hangs", "gives": None}}), "succeeded"),
    # Steps that ended without an attempt's end.
    "expired": (_flow(task("b", "hangs", **RUSHED)), "succeeded"),
    "expired-payment": (steps(payment("pay", "hangs", finds=False, **RUSHED), task("b")), "succeeded"),
    "refused": (_flow(task("b", foreach="steps.a.result")), "succeeded"),
    # Structure that the definition does not have: a planner's children, the next visit of a scope.
    "planned": (steps(scope("p", planner="plan", mode="sequence", max_children=5), task("b")), "succeeded"),
    "planning": (steps(task("a"), scope("p", planner="think", mode="sequence", max_children=5)), "succeeded"),
    "repeated": (
        steps(
            scope(
                "again",
                task("a", "goes, then hangs", gives="${has(variables.n) ? variables.n + 1 : 1}", set_variable="n"),
                repeat_until="variables.n > 1",
            ),
            task("b"),
        ),
        "succeeded",
    ),
    # What people did.
    "kept-signal": (steps(APPROVAL, SIGNAL, task("b")), "succeeded"),
    "resumed": (steps(task("a"), APPROVAL, task("b")), "succeeded"),
    "terminated": (steps(payment("pay", "hangs", finds=False), task("b")), "canceled"),
    "deprecated": (steps(task("a"), APPROVAL, task("b")), "succeeded"),
    # Rollbacks that stopped before their end.
    "undo-stopped": (steps(task("a", undo="ok"), task("b", undo="refuses"), task("c", "refuses")), "failed"),
    "breaker-open": (
        steps(
            task("a", undo="ok"),
            task("b", undo="refuses", compensation_critical=True),
            task("c", "refuses", idempotency_strategy=UNSAFE, compensation_policy="manual", retry_policy=ONCE),
            compensation="CIRCUIT_BREAKER",
        ),
        "failed",
    ),
}
