"""What a scenario is, and the few words that scenarios are written in."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from .client import Client

Script = Callable[[Client], Awaitable[None]]
Document = dict[str, Any]

SAFE, GUARDED, UNSAFE = "SAFE_TO_RETRY", "SAFE_TO_RETRY_WITH_GUARD", "NOT_SAFE_TO_RETRY"


@dataclass(frozen=True)
class Scenario:
    """`statuses`: how its executions may end, whatever crashed. `repeats`: times that a person had an effect made anew.

    `lost`: an effect may be left that the record does not know, because a person gave it up (`terminate`). `actor`: in
    whose name it is all done. `pruned`: what is not recorded any more is not asked for.
    """

    name: str
    script: Script
    document: Document
    statuses: frozenset[str]
    options: dict[str, Any] = field(default_factory=dict)
    repeats: int = 0
    lost: bool = False
    actor: str = ""
    pruned: bool = False


SCENARIOS: dict[str, Scenario] = {}


async def run_one(client: Client) -> None:
    """One execution, to its end; people help as they can."""
    await client.finish(await client.start())


def scenario(
    name: str,
    *steps: Document,
    ends: str = "succeeded",
    script: Script = run_one,
    repeats: int = 0,
    lost: bool = False,
    actor: str = "",
    pruned: bool = False,
    options: dict[str, Any] | None = None,
    mode: str = "sequence",
    scheduling: str | None = None,
    **policies: Any,
) -> None:
    document = {
        "name": "".join(letter for letter in name.replace(" ", "-") if letter not in ",'"),
        "mode": mode,
        "steps": list(steps),
        "policies": policies,
    }
    if scheduling is not None:
        document["scheduling"] = scheduling
    assert name not in SCENARIOS, name
    SCENARIOS[name] = Scenario(
        name, script, document, frozenset(ends.split()), options or {}, repeats, lost, actor, pruned
    )


def task(
    id: str,
    *script: str,
    safety: str = SAFE,
    undo: "str | list[str] | None" = None,
    tries: int = 3,
    timeout: int = 20_000,
    classes: list[str] | None = None,
    gives: Any = None,
    **fields: Any,
) -> Document:
    """A step that acts by its script. `undo` gives it a compensation, and that a script."""
    retry: dict[str, Any] = {"max_attempts": tries, "initial_delay_ms": 5, "jitter": 0, "timeout_ms": timeout}
    if classes is not None:
        retry["retry_on_classes"] = classes
    step: Document = {
        "step_id": id,
        "type": "task",
        "handler": "act",
        "with": {"script": list(script) or ["ok"], "gives": gives},
        "idempotency_strategy": safety,
        "retry_policy": retry,
        **fields,
    }
    if safety == GUARDED:
        step["guard_handler"] = "guard"
    if undo is not None:
        words = [undo] if isinstance(undo, str) else undo
        step |= {"compensation_handler": "undo", "compensation_with": {"script": words}, "compensation_backoff_ms": 5}
    return step


def unsafe(id: str, *script: str, finds: bool = True, **fields: Any) -> Document:
    """Not safe to retry, with a reconcile handler, or with nothing but people."""
    how: dict[str, Any] = {"reconcile_handler": "find"} if finds else {}
    if not finds and "undo" not in fields:
        how["compensation_policy"] = "manual"
    return task(id, *script, safety=UNSAFE, **how, **fields)
