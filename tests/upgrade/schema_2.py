"""States that are in fixtures of schema 2 and later: what waits for a person in a rollback, loops, rounds, scopes."""

from typing import Any

from tests.crash.scenario import GUARDED, UNSAFE, Document
from tests.crash.scenarios.structure import scope

from .states import APPROVAL, SIGNAL, task

ONCE = {"max_attempts": 1, "jitter": 0}


def steps(*given: Document, mode: str = "sequence", **policies: Any) -> Document:
    """What stays paused stays so for long."""
    return {"mode": mode, "steps": list(given), "policies": {"pause_limit_ms": None, **policies}}


LATER: dict[str, tuple[Document, str]] = {
    # Reviews of every kind that the first fixture has none of.
    "asks-to-undo": (
        steps(
            task("a", undo="ok", idempotency_strategy=UNSAFE, compensation_policy="manual"),
            task("b", "refuses"),
        ),
        "failed",
    ),
    "undo-failed": (steps(task("a", undo="refuses"), task("b", "refuses")), "failed"),
    "escalated": (steps(task("a", "stumbles"), task("b"), escalation={"errors": 1}), "succeeded"),
    # Nobody could go on with it.
    "set-aside": (steps(task("a"), SIGNAL, task("b")), "succeeded"),
    # Ends of steps that are neither success nor failure, and what follows them.
    # The quarter of an hour that a guard has to answer in is long over: what was done is not known.
    "guard": (
        steps(task("a", "stumbles", idempotency_strategy=GUARDED, guard_handler="guard"), task("b")),
        "failed",
    ),
    "timed-out": (
        steps(
            task("a", "hangs", retry_policy={**ONCE, "timeout_ms": 100}, on_success="$succeed", on_timeout="ok"),
            APPROVAL,
            mode="flow",
        ),
        "succeeded",
    ),
    "skipped": (steps(task("a"), task("b", when="false"), APPROVAL, task("c")), "succeeded"),
    # Structure: two scopes deep, the second visit of a loop, the second round of a scope.
    "nested": (
        steps(
            scope("outer", task("a"), scope("inner", task("b", "hangs"), mode="parallel"), mode="sequence"), task("c")
        ),
        "succeeded",
    ),
    "loop": (
        steps(
            {**APPROVAL, "on_success": "count"},
            task("count", gives="${has(variables.n) ? variables.n + 1 : 1}", set_variable="n", on_success="more"),
            {
                "step_id": "more",
                "type": "decision",
                "branches": [{"when": "variables.n > 1", "next": "$succeed"}],
                "default": "ok",
            },
            mode="flow",
        ),
        "succeeded",
    ),
    "round": (
        steps(
            scope(
                "again",
                task("a"),
                task("b", "stumbles, then hangs", retry_policy=ONCE),
                mode="sequence",
                failure_mode="retry",
                max_rounds=4,
            ),
            task("c"),
        ),
        "succeeded",
    ),
    "canceled-in-rollback": (steps(task("a", undo="hangs"), task("b", "refuses")), "failed"),
}
