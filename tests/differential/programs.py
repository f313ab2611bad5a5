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

from tenuto import ExpandEach, StepInputs
from tenuto.authoring.applicability import find_inapplicable
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

LEFT_OUT = frozenset({"credits"})  # somebody would have to pay
AROUND = frozenset({"admission", "unowned"})  # not of the definition, but of how it is started
EACH = 0.5  # of those that could have an input for each step: then there is none for all of them
READS_INPUT = frozenset({"conditions", "marks", "fans", "flow"})


@dataclass(frozen=True)
class Program:
    seed: int
    document: dict[str, Any]
    input: dict[str, Any]
    features: frozenset[str]
    ids: int  # how many were given to nodes
    each: dict[str, int]  # steps that run once for each item, and how many there are

    @property
    def is_keyed(self) -> bool:
        """Whether others have its concurrency key before it."""
        return "admission" in self.features

    @property
    def is_unowned(self) -> bool:
        """Whether whoever starts it, and speaks to it, is not who runs it, where there can be two."""
        return "unowned" in self.features

    def given(self) -> object:
        """Every other step has labels, some of them with what paths have to escape."""
        if not self.each:
            return self.input
        steps = {
            id: ExpandEach([{"name": f"i/{n}#"} for n in range(count)], suffix=_name if number % 2 else None)
            for number, (id, count) in enumerate(self.each.items())
        }
        return StepInputs(steps)

    def drafts(self) -> "Drafts":
        return Drafts(Random(f"planner {self.seed}"), self.features, Ids(self.ids))


def _name(item: dict[str, str]) -> str:
    return item["name"]


class Drafts(simulated.Drafts):
    """What planners propose, in times of the two kinds."""

    def propose(self) -> tuple[JSON, ...]:
        return tuple(to_builtins(_node(node_from_document(node))) for node in super().propose())


def _as_written(definition: Definition) -> Any:
    """The document of a definition, without the options that have no effect: an author's would be refused."""
    document: Any = to_document(definition)
    for problem in find_inapplicable(definition):
        *above, field = problem.path.strip("/").split("/")
        place = document
        for part in above:
            place = place[int(part) if isinstance(place, list) else part]
        place.pop(field, None)
    return document


def draw(seed: int) -> Program:
    rng = Random(f"differential {seed}")
    features = _features(rng)
    builder, drawn = _draw(rng, features)
    while builder.steps < FEWEST_STEPS and drawn.policies.planner is None:
        features = _features(rng)
        builder, drawn = _draw(rng, features)
    definition = _timed(drawn)
    wrong = problems(definition)
    assert not wrong, f"the generator made an invalid definition: {wrong}"
    items = [{"name": f"i{number}"} for number in range(rng.randrange(5))]
    document = _as_written(definition)
    assert isinstance(document, dict)
    input = {"n": rng.randrange(4), "items": items}
    return Program(seed, document, input, features, builder.ids.count, builder.each)


def _features(rng: Random) -> frozenset[str]:
    share = rng.choice((0.2, 0.4, 0.7))
    features = {name for name in FEATURES if name not in LEFT_OUT and rng.random() < share}
    if "each" in features:
        features -= READS_INPUT if rng.random() < EACH else {"each"}
    if "admission" in features:  # who is before it in line is paused, for as long as it takes
        features -= {"pause_limit"}
    return frozenset(features)


def _draw(rng: Random, features: frozenset[str]) -> tuple[Builder, Definition]:
    builder = Builder(rng, features - AROUND, Ids())
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
