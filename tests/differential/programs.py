"""Random programs whose history does not depend on how fast a machine is: the simulation's, in times of two kinds.

What is short is alike everywhere, and is over as soon as there is nothing else to do. What is long, time-outs and
deadlines, is over when the seed says that time passes; no two of them are a multiple of one another, so that none ends
in the same moment as another.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec
from msgspec import to_builtins

from tenuto.kernel.definition import JSON, Definition, Node, Policies, Scope, Step, node_from_document, to_document
from tenuto.kernel.validation import problems
from tests.simulation import programs as simulated
from tests.simulation.programs import FEATURES, Builder, Ids

DELAY_MS = 2  # of every wait and every retry: what is set together is due together
ATTEMPT_MS = 607_003
PROBING_MS = 1_409_007
STEP_MS = (907_019, 1_511_029)
SCOPE_MS = (1_201_033, 2_411_041)
EXECUTION_MS = (1_807_051, 5_413_057)
PAUSE_MS = 2_105_063
ACK_MS = (701_009, 1_103_017)
RESULT_MS = (809_023, 2_003_027)
FEWEST_STEPS = 3

# What is left out needs somebody else: who pays, who is before it in a line, who gives each step its input.
LEFT_OUT = frozenset({"credits", "admission", "unowned", "each"})


@dataclass(frozen=True)
class Program:
    seed: int
    document: dict[str, Any]
    input: dict[str, Any]
    features: frozenset[str]
    ids: int  # how many were given to nodes

    def drafts(self) -> "Drafts":
        return Drafts(Random(f"planner {self.seed}"), self.features, Ids(self.ids))


class Drafts(simulated.Drafts):
    """What planners propose, in times of the two kinds."""

    def propose(self) -> tuple[JSON, ...]:
        return tuple(to_builtins(_node(node_from_document(node))) for node in super().propose())


def draw(seed: int) -> Program:
    rng = Random(f"differential {seed}")
    builder, drawn = _draw(rng)
    while builder.steps < FEWEST_STEPS and drawn.policies.planner is None:
        builder, drawn = _draw(rng)
    definition = _timed(drawn)
    wrong = problems(definition)
    assert not wrong, f"the generator made an invalid definition: {wrong}"
    items = [{"name": f"i{number}"} for number in range(rng.randrange(5))]
    document = to_document(definition)
    assert isinstance(document, dict)
    input = {"n": rng.randrange(4), "items": items}
    return Program(seed, document, input, builder.features, builder.ids.count)


def _draw(rng: Random) -> tuple[Builder, Definition]:
    share = rng.choice((0.2, 0.4, 0.7))
    features = frozenset(name for name in FEATURES if name not in LEFT_OUT and rng.random() < share)
    builder = Builder(rng, features, Ids())
    return builder, builder.definition()


def _timed(definition: Definition) -> Definition:
    policies: Policies = definition.policies
    changed = msgspec.structs.replace(
        policies,
        timeout_ms=_one_of(EXECUTION_MS, policies.timeout_ms),
        pause_limit_ms=None if policies.pause_limit_ms is None else PAUSE_MS,
    )
    steps = tuple(_node(node) for node in definition.steps)
    return msgspec.structs.replace(definition, name="differential", steps=steps, policies=changed)


def _one_of(times: tuple[int, int], drawn: int | None) -> int | None:
    """By whether the seconds that were drawn are even or odd."""
    return None if drawn is None else times[drawn // 1_000 % 2]


def _node(node: Node) -> Node:
    if isinstance(node, Scope):
        children = tuple(_node(child) for child in node.children)
        return msgspec.structs.replace(node, children=children, timeout_ms=_one_of(SCOPE_MS, node.timeout_ms))
    return _step(node)


def _step(step: Step) -> Step:
    step = msgspec.structs.replace(step, timeout_ms=_one_of(STEP_MS, step.timeout_ms))
    if step.type == "wait" and isinstance(step.with_, dict) and "signal" not in step.with_:
        return msgspec.structs.replace(step, with_={"duration_ms": DELAY_MS})
    if step.type not in ("task", "external_call"):
        return step
    retry = msgspec.structs.replace(
        step.retry_policy,
        backoff_strategy="fixed",
        initial_delay_ms=DELAY_MS,
        max_delay_ms=None,
        jitter=0.0,
        timeout_ms=ATTEMPT_MS,
    )
    sent: dict[str, Any] = {}
    if step.completion == "callback":
        sent = {"ack_timeout_ms": _one_of(ACK_MS, step.ack_timeout_ms), "handler": "send"}
        sent["result_timeout_ms"] = _one_of(RESULT_MS, step.result_timeout_ms)
    undo = {} if step.compensation_handler is None else {"compensation_backoff_ms": DELAY_MS}
    undo |= {} if step.compensation_timeout_ms is None else {"compensation_timeout_ms": ATTEMPT_MS}
    return msgspec.structs.replace(step, retry_policy=retry, reconcile_timeout_ms=PROBING_MS, **sent, **undo)
