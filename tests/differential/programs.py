"""Random programs whose history does not depend on time: the simulation's, with all delays alike, without deadlines."""

from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from tenuto.kernel.definition import Definition, Node, Policies, Scope, Step, to_document
from tenuto.kernel.validation import problems
from tests.simulation.programs import FEATURES, Builder, Ids

DELAY_MS = 2  # of every wait and every retry: what is set together is due together
LONG_MS = 3_600_000
FEWEST_STEPS = 3

# What is left out needs somebody outside, or its outcome is a matter of time.
LEFT_OUT = frozenset(
    {
        "callbacks", "planners", "credits", "admission", "unowned", "pause_limit", "step_deadlines", "scope_deadlines",
        "execution_deadline", "each",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    seed: int
    document: dict[str, Any]
    input: dict[str, Any]


def draw(seed: int) -> Program:
    rng = Random(f"differential {seed}")
    builder, drawn = _draw(rng)
    while builder.steps < FEWEST_STEPS:
        builder, drawn = _draw(rng)
    definition = _without_time(drawn)
    wrong = problems(definition)
    assert not wrong, f"the generator made an invalid definition: {wrong}"
    items = [{"name": f"i{number}"} for number in range(rng.randrange(5))]
    document = to_document(definition)
    assert isinstance(document, dict)
    return Program(seed, document, {"n": rng.randrange(4), "items": items})


def _draw(rng: Random) -> tuple[Builder, Definition]:
    share = rng.choice((0.2, 0.4, 0.7))
    features = frozenset(name for name in FEATURES if name not in LEFT_OUT and rng.random() < share)
    builder = Builder(rng, features, Ids())
    return builder, builder.definition()


def _without_time(definition: Definition) -> Definition:
    policies: Policies = definition.policies
    return msgspec.structs.replace(
        definition,
        name="differential",
        steps=tuple(_node(node) for node in definition.steps),
        policies=msgspec.structs.replace(policies, timeout_ms=None),
    )


def _node(node: Node) -> Node:
    if isinstance(node, Scope):
        return msgspec.structs.replace(node, children=tuple(_node(child) for child in node.children))
    return _step(node)


def _step(step: Step) -> Step:
    if step.type == "wait" and isinstance(step.with_, dict) and "signal" not in step.with_:
        return msgspec.structs.replace(step, timeout_ms=None, with_={"duration_ms": DELAY_MS})
    if step.type != "task":
        return msgspec.structs.replace(step, timeout_ms=None)
    retry = msgspec.structs.replace(
        step.retry_policy,
        backoff_strategy="fixed",
        initial_delay_ms=DELAY_MS,
        max_delay_ms=None,
        jitter=0.0,
        timeout_ms=LONG_MS,
    )
    undo = {} if step.compensation_handler is None else {"compensation_backoff_ms": DELAY_MS}
    undo |= {} if step.compensation_timeout_ms is None else {"compensation_timeout_ms": LONG_MS}
    return msgspec.structs.replace(step, retry_policy=retry, timeout_ms=None, reconcile_timeout_ms=LONG_MS, **undo)
