"""Random programs: definitions that the validator accepts, and the facts they are started with.

Swarm testing: a seed first draws which features its program may use, so that a program is often made of few features in
unusual proportions. A uniform mix would hide whatever needs much of one thing and nothing of another.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar, get_args

import msgspec

from tenuto.kernel.definition import (
    JSON,
    Branch,
    CompensationOrder,
    Definition,
    Escalation,
    Node,
    Policies,
    RetryPolicy,
    Scope,
    Step,
    content_hash,
)
from tenuto.kernel.plan import Plan
from tenuto.kernel.validation import problems

T = TypeVar("T")

MAX_DEPTH = 2
MAX_STEPS = 14
ROLLBACKS = 0.2  # of all programs: they have much to undo, and end in undoing it
SPARE_OF_EFFECTS = frozenset(  # such a program does without
    {"flow", "planners", "conditions", "waits", "approvals", "execution_deadline", "scope_deadlines", "each", "credits"}
)

FEATURES = (
    "flow",
    "nested",
    "fans",
    "each",
    "conditions",
    "waits",
    "signals",
    "approvals",
    "callbacks",
    "queues",
    "guards",
    "not_safe",
    "compensations",
    "manual",
    "critical",
    "partial",
    "continue",
    "rounds",
    "concurrency",
    "step_deadlines",
    "scope_deadlines",
    "execution_deadline",
    "planners",
    "credits",
    "escalation",
    "variables",
    "marks",
    "repeat",
    "layered",
    "admission",
    "unowned",
    "pause_limit",
    "output",
)


@dataclass(frozen=True)
class Program:
    """A plan, and how one execution of it is started."""

    plan: Plan
    features: frozenset[str]
    input: JSON
    each: dict[str, int]
    hold: int
    admitted: bool
    owned: bool
    signals: tuple[str, ...]
    planned: "Drafts"

    def describe(self) -> str:
        return msgspec.json.encode(self.plan.definition).decode()


@dataclass
class Drafts:
    """What a planner proposes, one list of node documents for each time it is asked."""

    rng: Random
    features: frozenset[str]
    ids: "Ids"

    def propose(self) -> tuple[JSON, ...]:
        builder = Builder(self.rng, self.features - {"planners", "flow", "signals"}, self.ids)
        count = self.rng.choice((0, 1, 1, 2, 2, 3))
        nodes = [builder.step() for _ in range(count)]
        return tuple(msgspec.to_builtins(node) for node in nodes)


@dataclass
class Ids:
    """Ids are unique in a definition, and stay so when a planner adds to it."""

    count: int = 0

    def next(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"


def draw_program(seed: int) -> Program:
    rng = Random(f"program {seed}")
    share = rng.choice((0.15, 0.3, 0.5, 0.7))
    features = frozenset(name for name in FEATURES if rng.random() < share)
    if Random(f"rollback {seed}").random() < ROLLBACKS:
        features = (features - SPARE_OF_EFFECTS) | {"compensations", "rollback"}
    ids = Ids()
    builder = Builder(rng, features, ids)
    definition = builder.definition()
    wrong = problems(definition)
    assert not wrong, f"the generator made an invalid definition: {wrong}"
    return Program(
        plan=Plan(definition),
        features=features,
        input={"n": rng.randrange(4), "items": [{"name": f"i{rng.randrange(20)}"} for _ in range(rng.randrange(5))]},
        each=builder.each,
        hold=rng.choice((5, 20, 60, 200)) if "credits" in features else 0,
        admitted=not ("admission" in features and rng.random() < 0.7),
        owned=not ("unowned" in features and rng.random() < 0.7),
        signals=tuple(builder.signals),
        planned=Drafts(Random(f"planner {seed} {content_hash(definition)}"), features, ids),
    )


@dataclass
class Builder:
    rng: Random
    features: frozenset[str]
    ids: Ids
    each: dict[str, int] = field(default_factory=dict)
    signals: list[str] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)
    steps: int = 0

    # -- Chance --------------------------------------------------------------------------------------------------------

    def has(self, feature: str, chance: float = 0.4) -> bool:
        return feature in self.features and self.rng.random() < chance

    def pick(self, options: Sequence[T]) -> T:
        return self.rng.choice(options)

    # -- The definition ------------------------------------------------------------------------------------------------

    def definition(self) -> Definition:
        mode, scheduling = self.mode()
        planner = mode != "flow" and self.has("planners")
        steps = () if planner else self.children(mode, depth=0)
        return Definition(
            name="simulated",
            mode=mode,  # type: ignore[arg-type]  # drawn from the literals
            scheduling=scheduling,  # type: ignore[arg-type]
            steps=steps,
            output=self.output(steps),
            policies=self.policies(planner=planner),
        )

    def mode(self) -> tuple[str, str]:
        if self.has("flow", 0.6):
            return "flow", "eager"
        if self.has("rollback", 0.8):  # undos stand beside one another, and behind others
            return "dag", "eager"
        mode = self.pick(("dag", "dag", "sequence", "parallel"))
        return mode, "layered" if mode == "dag" and self.has("layered", 0.7) else "eager"

    def policies(self, *, planner: bool) -> Policies:
        rounds = self.has("rounds", 0.5)
        return Policies(
            timeout_ms=self.pick((3_000, 10_000, 60_000)) if self.has("execution_deadline", 0.8) else None,
            pending_timeout_ms=self.pick((500, 5_000)) if self.has("unowned", 0.6) else None,
            pause_limit_ms=self.pick((500, 3_000, 20_000)) if self.has("pause_limit", 0.8) else None,
            compensation=self.compensation(),
            cancel=self.pick(("drain", "terminate", "compensate")),
            max_concurrency=self.concurrency(),
            failure_mode="retry" if rounds else self.pick(("fail_fast", self.lenient())),
            max_rounds=self.pick((2, 3)),
            retry_budget=self.pick((0, 1, 3, 20)),
            fail_if_empty=self.rng.random() < 0.2,
            concurrency_key="input.n" if "admission" in self.features else None,
            planner="plan" if planner else None,
            max_children=self.pick((2, 4, 10)),
            max_replans=self.pick((0, 1, 2)),
            escalation=self.escalation(),
        )

    def output(self, steps: tuple[Node, ...]) -> JSON:
        """What is left in the end; a step that was skipped or fanned out has no `n`, and makes it fail."""
        readable = [step.id for step in steps if isinstance(step, Step) and step.type == "task"]
        if readable and "rollback" in self.features:
            return {"n": f"${{steps.{self.pick(readable)}.result.never}}"}
        if not readable or not self.has("output", 0.5):
            return None
        return {"n": f"${{steps.{self.pick(readable)}.result.n}}"}

    def compensation(self) -> CompensationOrder:
        if self.has("rollback", 0.8):
            return "GROUPED_PARALLEL"
        if self.has("critical", 0.5):
            return "CIRCUIT_BREAKER"
        return self.pick(get_args(CompensationOrder))

    def escalation(self) -> Escalation | None:
        if not self.has("escalation", 0.8):
            return None
        return Escalation(
            errors=self.pick((1, 3)), window_ms=60_000, error_rate=self.pick((0.3, 0.9)), min_sample=self.pick((2, 5))
        )

    def lenient(self) -> Any:
        return "continue" if "continue" in self.features else "fail_fast"

    def concurrency(self) -> int:
        return self.pick((1, 2, 3)) if self.has("concurrency", 0.5) else 0

    # -- Nodes ---------------------------------------------------------------------------------------------------------

    def children(self, mode: str, depth: int) -> tuple[Node, ...]:
        count = self.pick((1, 2, 3, 4, 5) if depth == 0 else (1, 2, 3))
        if depth == 0 and "rollback" in self.features:
            count += 2
        nodes: list[Node] = []
        for _ in range(count):
            if self.steps >= MAX_STEPS and nodes:
                break
            depends = self.depends(nodes, mode)
            nodes.append(self.node(mode, depth, self.readable(nodes, mode, depends), depends))
        return tuple(self.connect(nodes)) if mode == "flow" else tuple(nodes)

    def depends(self, nodes: list[Node], mode: str) -> tuple[str, ...]:
        if mode != "dag" or not nodes:
            return ()
        if self.has("rollback", 0.7):
            return (nodes[0].id,)
        return tuple(node.id for node in nodes if self.rng.random() < 0.45)

    def readable(self, nodes: list[Node], mode: str, depends: tuple[str, ...]) -> tuple[str, ...]:
        """The steps whose results a next child may read without the validator's objection."""
        if mode == "parallel":
            return ()
        steps = [node.id for node in nodes if isinstance(node, Step) and node.type != "decision"]
        return tuple(id for id in steps if mode != "dag" or id in depends)

    def node(self, mode: str, depth: int, earlier: tuple[str, ...], depends: tuple[str, ...]) -> Node:
        if depth < MAX_DEPTH and self.has("nested", 0.3):
            return self.scope(mode, depth, earlier, depends)
        if mode == "flow" and self.rng.random() < 0.2:
            return self.decision(earlier)
        kinds = [self.step]
        if "waits" in self.features:
            kinds.append(self.wait)
        if "approvals" in self.features:
            kinds.append(self.approval)
        kind = self.pick(kinds) if self.rng.random() < 0.5 else self.step
        return msgspec.structs.replace(kind(earlier), depends_on=depends)

    def scope(self, outer: str, depth: int, earlier: tuple[str, ...], depends: tuple[str, ...]) -> Scope:
        mode, scheduling = self.mode()
        planner = mode != "flow" and self.has("planners", 0.3)
        id = self.ids.next("scope")
        children = () if planner else self.children(mode, depth + 1)
        readable = [child.id for child in children if isinstance(child, Step) and child.type == "task"]
        repeat = None
        if readable and self.has("repeat", 0.5):
            step = self.pick(readable)
            repeat = f"steps.{step}.status == 'skipped' || (has(steps.{step}.result.n) && steps.{step}.result.n > 1)"
        return Scope(
            id=id,
            mode=mode,  # type: ignore[arg-type]
            scheduling=scheduling,  # type: ignore[arg-type]
            children=children,
            depends_on=depends,
            when=self.condition(earlier),
            max_concurrency=self.concurrency(),
            failure_mode="retry" if self.has("rounds", 0.5) else self.pick(("fail_fast", self.lenient())),
            max_rounds=self.pick((2, 3)),
            fail_if_empty=self.rng.random() < 0.2,
            timeout_ms=self.pick((1_000, 5_000)) if self.has("scope_deadlines", 0.6) else None,
            repeat_until=repeat,
            max_visits=self.pick((1, 2, 3)),
            queue="side" if self.has("queues", 0.2) else None,
            planner="plan" if planner else None,
            max_children=self.pick((1, 3, 10)),
            max_replans=self.pick((0, 1, 2)),
        )

    def step(self, earlier: tuple[str, ...] = ()) -> Step:
        self.steps += 1
        id = self.ids.next("s")
        safety = self.safety()
        callback = self.has("callbacks", 0.4)
        compensated = self.has("compensations", 1.0 if "rollback" in self.features else 0.7)
        unprotected = safety == "NOT_SAFE_TO_RETRY" and not compensated
        reconciled = safety == "NOT_SAFE_TO_RETRY" and self.rng.random() < 0.6
        manual = self.has("manual", 0.4) or (unprotected and not reconciled)
        retry = self.retry()
        foreach = self.foreach(earlier)
        if foreach is None and self.has("each", 0.3):
            self.each[id] = self.rng.randrange(4)
        ack = self.pick((None, 300, 1_000)) if callback else None
        result = self.pick((None, 500, 3_000)) if callback and ack else 2_000 if callback else None
        return Step(
            id=id,
            type="external_call" if callback else "task",
            handler=None if callback else "work",
            when=self.condition(earlier),
            foreach=foreach,
            suffix="item.name" if foreach is not None and self.rng.random() < 0.2 else None,
            max_concurrency=self.concurrency(),
            failure_mode=self.lenient() if self.rng.random() < 0.4 else "fail_fast",
            timeout_ms=retry.timeout_ms + self.pick((0, 500, 5_000)) if self.has("step_deadlines", 0.5) else None,
            retry_policy=retry,
            safety=safety,  # type: ignore[arg-type]
            guard_handler="guard" if safety == "SAFE_TO_RETRY_WITH_GUARD" else None,
            reconcile_handler="find" if reconciled else None,
            reconcile_timeout_ms=self.pick((500, 5_000, 60_000)),
            compensation_handler="undo" if compensated else None,
            compensation_policy="manual" if manual else "auto",
            compensation_max_attempts=self.pick((None, None, 1, 2, 3)) if compensated else None,
            compensation_backoff_ms=self.pick((None, 20, 200)) if compensated else None,
            compensation_timeout_ms=self.pick((None, 500)) if compensated else None,
            compensation_critical=compensated and self.has("critical", 0.7),
            partial_effect=self.has("partial", 0.4),
            reusable=self.rng.random() < 0.15,
            completion="callback" if callback else "handler",
            ack_timeout_ms=ack,
            result_timeout_ms=result,
            queue="side" if self.has("queues", 0.3) else None,
            idempotency_key=self.pick(("a", "k-${input.n}")) if self.has("marks", 0.3) else None,
            set_variable=self.variable(),
            estimate=self.pick((0, 1, 10)) if "credits" in self.features else 0,
        )

    def safety(self) -> str:
        options = ["SAFE_TO_RETRY"]
        if "guards" in self.features:
            options.append("SAFE_TO_RETRY_WITH_GUARD")
        if "not_safe" in self.features:
            options += ["NOT_SAFE_TO_RETRY"] * 2
        return self.pick(options)

    def retry(self) -> RetryPolicy:
        initial = self.pick((None, 0, 20, 200, 1_000))
        return RetryPolicy(
            max_attempts=self.pick((1, 2, 3, 4)),
            backoff_strategy=self.pick(("fixed", "exponential")),
            initial_delay_ms=initial,
            max_delay_ms=self.pick((None, 1_000, 20_000)),
            jitter=self.pick((0.0, 0.1, 0.5)),
            timeout_ms=self.pick((200, 500, 2_000)),
            retry_on_classes=self.pick(
                (
                    ("TRANSIENT", "RETRYABLE", "RATE_LIMITED", "DEPENDENCY_FAILED"),
                    ("TRANSIENT",),
                    ("RATE_LIMITED", "RETRYABLE"),
                    (),
                )
            ),
        )

    def foreach(self, earlier: tuple[str, ...]) -> str | None:
        if not self.has("fans", 0.4):
            return None
        sources = ["input.items", "[{'name': 'a'}, {'name': 'b'}, {'name': 'c'}]"]
        sources += [f"steps.{id}.result.items" for id in earlier]
        return self.pick(sources)

    def condition(self, earlier: tuple[str, ...]) -> str | None:
        if not self.has("conditions", 0.3):
            return None
        conditions = ["input.n > 0", "input.n < 2", "true"]
        conditions += [f"steps.{id}.status == 'succeeded'" for id in earlier]
        conditions += [f"has(variables.{name}) && variables.{name} != null" for name in self.variables]
        conditions += [f"steps.{id}.result.ok" for id in earlier]  # fails where there is no result: that is meant
        return self.pick(conditions)

    def variable(self) -> str | None:
        if not self.has("variables", 0.3):
            return None
        name = self.pick(("v1", "v2"))
        if name not in self.variables:
            self.variables.append(name)
        return name

    def wait(self, earlier: tuple[str, ...] = ()) -> Step:
        self.steps += 1
        timeout = self.pick((None, 300, 2_000)) if "step_deadlines" in self.features else None
        config: JSON
        if "signals" in self.features and self.rng.random() < 0.6:
            name = self.pick(("go", "go", "paid"))
            self.signals.append(name)
            config = {"signal": name}
        elif self.rng.random() < 0.7:
            config = {"duration_ms": self.pick((1, 50, 1_000))}
        else:
            config = {"until": self.pick((1_000_500, 1_003_000, "1970-01-01T00:16:42Z"))}
        return Step(
            id=self.ids.next("w"),
            type="wait",
            with_=config,
            when=self.condition(earlier),
            timeout_ms=timeout,
            set_variable=self.variable(),
        )

    def approval(self, earlier: tuple[str, ...] = ()) -> Step:
        self.steps += 1
        return Step(
            id=self.ids.next("ok"),
            type="human_approval",
            when=self.condition(earlier),
            timeout_ms=self.pick((None, 300, 2_000)),
            set_variable=self.variable(),
        )

    # -- Flows ---------------------------------------------------------------------------------------------------------

    def decision(self, earlier: tuple[str, ...]) -> Step:
        self.steps += 1
        condition = self.pick(("input.n > 1", "input.n == 0", *(f"steps.{id}.status == 'succeeded'" for id in earlier)))
        return Step(id=self.ids.next("d"), type="decision", branches=(Branch(when=condition, next="$succeed"),))

    def connect(self, nodes: list[Node]) -> list[Node]:
        """Gives the children of a flow their edges. Each leads to the next, so that every one is reached."""
        ids = [node.id for node in nodes]
        connected: list[Node] = []
        for index, node in enumerate(nodes):
            following = ids[index + 1] if index + 1 < len(ids) else None
            anywhere = [*ids, "$succeed", "$fail"]
            if isinstance(node, Step) and node.type == "decision":
                branches = tuple(Branch(when=branch.when, next=self.pick(anywhere)) for branch in node.branches)
                connected.append(msgspec.structs.replace(node, branches=branches, default=following))
                continue
            back = self.pick(ids) if self.rng.random() < 0.2 and following is None and index > 0 else None
            connected.append(
                msgspec.structs.replace(
                    node,
                    on_success=following if following is not None else back,
                    on_failure=self.pick(anywhere) if self.rng.random() < 0.4 else None,
                    on_timeout=self.pick(anywhere) if self.rng.random() < 0.3 else None,
                    max_visits=self.pick((1, 2, 3)),
                )
            )
        if not any(self._may_end(node) for node in connected):
            last = connected[-1]
            changes = {"default": None} if isinstance(last, Step) and last.type == "decision" else {"on_success": None}
            connected[-1] = msgspec.structs.replace(last, **changes)
        return connected

    def _may_end(self, node: Node) -> bool:
        if isinstance(node, Step) and node.type == "decision":
            return node.default is None
        return node.on_success is None
