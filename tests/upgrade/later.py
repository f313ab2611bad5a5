"""States that are in fixtures of schema 2 and later: what waits for a person in a rollback, loops, rounds, scopes."""

from typing import Any

from tests.crash.scenario import GUARDED, UNSAFE, Document
from tests.crash.scenarios.structure import scope

from .states import APPROVAL, SIGNAL, STATES, task

LATER_SINCE = 2
ONCE = {"max_attempts": 1, "jitter": 0}


def _steps(*steps: Document, mode: str = "sequence", **policies: Any) -> Document:
    return {"mode": mode, "steps": list(steps), "policies": {"pause_limit_ms": None, **policies}}


LATER: dict[str, tuple[Document, str]] = {
    # Reviews of every kind that the first fixture has none of.
    "asks-to-undo": (
        _steps(
            task("a", undo="ok", idempotency_strategy=UNSAFE, compensation_policy="manual"),
            task("b", "refuses"),
        ),
        "failed",
    ),
    "undo-failed": (_steps(task("a", undo="refuses"), task("b", "refuses")), "failed"),
    "escalated": (_steps(task("a", "stumbles"), task("b"), escalation={"errors": 1}), "succeeded"),
    # Nobody could go on with it.
    "set-aside": (_steps(task("a"), SIGNAL, task("b")), "succeeded"),
    # Ends of steps that are neither success nor failure, and what follows them.
    # The quarter of an hour that a guard has to answer in is long over: what was done is not known.
    "guard": (
        _steps(task("a", "stumbles", idempotency_strategy=GUARDED, guard_handler="guard"), task("b")),
        "failed",
    ),
    "timed-out": (
        _steps(
            task("a", "hangs", retry_policy={**ONCE, "timeout_ms": 100}, on_success="$succeed", on_timeout="ok"),
            APPROVAL,
            mode="flow",
        ),
        "succeeded",
    ),
    "skipped": (_steps(task("a"), task("b", when="false"), APPROVAL, task("c")), "succeeded"),
    # Structure: two scopes deep, the second visit of a loop, the second round of a scope.
    "nested": (
        _steps(
            scope("outer", task("a"), scope("inner", task("b", "hangs"), mode="parallel"), mode="sequence"), task("c")
        ),
        "succeeded",
    ),
    "loop": (
        _steps(
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
        _steps(
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
    "canceled-in-rollback": (_steps(task("a", undo="hangs"), task("b", "refuses")), "failed"),
}


def documents(schema: int) -> list[Document]:
    """The definitions of a fixture of that schema. What stays paused stays so for long."""
    found = {name: _steps(*steps) for name, (steps, _) in STATES.items()}
    if schema >= LATER_SINCE:
        found |= {name: document for name, (document, _) in LATER.items()}
    return [{"name": name, **document} for name, document in found.items()]


def ends(schema: int) -> dict[str, str]:
    """How its executions end, by the names of their definitions."""
    found = {name: end for name, (_, end) in STATES.items()}
    return found | ({name: end for name, (_, end) in LATER.items()} if schema >= LATER_SINCE else {})
