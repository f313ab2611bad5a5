"""Fan-outs, scopes, rounds, loops."""

from typing import Any

from tests.crash.scenario import Document, scenario, task


def scope(id: str, *children: Document, **fields: Any) -> Document:
    return {"step_id": id, "type": "scope", "children": list(children), **fields}


ITEMS = [1, 2, 3]

scenario("fan-out", task("a", gives=ITEMS), task("each", foreach="steps.a.result.more", max_concurrency=2), task("b"))

scenario(
    "fan-out rolled back",
    task("a", gives=ITEMS, undo="ok"),
    task("each", foreach="steps.a.result.more", undo="ok"),
    task("b", "refused"),
    compensation="GROUPED_PARALLEL",
    ends="failed",
)

scenario(
    "fan-out that may not be repeated",
    task("a", gives=[1, 2]),
    task(
        "each",
        foreach="steps.a.result.more",
        safety="NOT_SAFE_TO_RETRY",
        reconcile_handler="find",
        timeout=200,
    ),
)

scenario(
    "scopes",
    scope("left", task("a"), task("b", undo="ok"), mode="sequence"),
    scope("right", task("c", "refused"), task("d"), mode="sequence", failure_mode="continue"),
    mode="parallel",
)

scenario(
    "rounds",
    task("a", reusable=True),
    scope(
        "again",
        task("b"),
        task("c", "transient", "transient", "ok", tries=1),
        mode="sequence",
        failure_mode="retry",
        max_rounds=4,
    ),
)

scenario(
    "loop",
    task("a", on_success="more", on_failure="$fail"),
    {
        "step_id": "more",
        "type": "decision",
        "branches": [{"when": "has(variables.n)", "next": "$succeed"}],
        "default": "count",
    },
    task("count", on_success="more", set_variable="n"),
    mode="flow",
)

for ends in ("succeeded", "failed"):
    scenario(
        f"planned, and {ends}",
        task("a", undo="ok"),
        scope("p", planner="plan", mode="sequence", max_children=5),
        task("b", "ok" if ends == "succeeded" else "refused"),
        ends=ends,
    )

scenario(
    "a clone is passed over",
    task("a", gives=ITEMS),
    task("each", "refused", foreach="steps.a.result.more", max_concurrency=1),
    task("b"),
    failure_mode="continue",
)
