"""An independent model of one execution, built only from its recorded history.

The checker does not use the kernel's state, because an error of the kernel would then be on both sides. `model_updates`
applies entries to the model; the invariants read it.
"""

from collections import Counter
from dataclasses import dataclass, field

from tenuto.kernel import events as e
from tenuto.kernel.address import ROOT, Phase, Ref, clone_path, fan_of, parent_of, step_id
from tenuto.kernel.definition import RetryPolicy, Step
from tenuto.kernel.plan import Node, Plan
from tenuto.kernel.step_override import StepOverride

from .dues import Dues

AUTOMATIC = "automatic retry"  # the reason of a run that no person requested


def effective(step: Step, override: StepOverride | None) -> Step:
    return step if override is None else override.apply(step)


@dataclass(eq=False, slots=True)
class ModelStep:
    """One step, or one clone of a fan-out."""

    path: str
    node: Node
    numbers: dict[Phase, int] = field(default_factory=dict)
    open: Ref | None = None
    epoch: int = 0
    since: int = 0  # when the open attempt was granted, or recorded to begin
    begun: bool = False
    returned: bool = False
    sent: bool = False  # a directive that was sent: its receiver has it
    acked: bool = False  # by the worker that runs it
    late: Ref | None = None
    generation: int = 1
    # Since the start of the last round or run
    failures: frozenset[int] = frozenset()
    losses: int = 0
    refusals: int = 0
    not_before: int = 0
    last: str = ""
    guarded: bool = False
    override: StepOverride | None = None  # recorded with the last attempt that failed or was looked up
    human: int = 0
    done: bool = False
    # Of the effect, over all rounds and runs
    unsafe: bool = False  # begun, and no later entry allows another attempt
    was_unsafe: bool = False  # before the open attempt was granted
    made_seq: int = 0
    half_seq: int = 0
    undone_generation: int = 0
    undo: str = ""
    spared: bool = False  # a person decided to leave the effect in place
    undo_failures: int = 0
    undo_losses: int = 0
    undo_human: int = 0
    rounds_ago: int = 0  # rounds that began after the effect was made

    @property
    def retry_policy(self) -> RetryPolicy:
        """The policy that the last verdict followed."""
        return effective(self.node.step, self.override).retry_policy

    def number(self, phase: Phase) -> int:
        return self.numbers.get(phase, 0)

    def forget_round(self, *, keep: bool) -> None:
        self.failures = frozenset()
        self.losses = self.refusals = self.not_before = self.human = 0
        self.undo_failures = self.undo_losses = self.undo_human = 0
        self.last = ""
        self.guarded = False
        self.late = None
        self.done = self.done and keep
        self.rounds_ago += 1
        if self.undo in ("done", "skipped"):
            self.undo = ""

    def made(self, seq: int) -> None:
        self.done = True
        self.made_seq = seq
        self.half_seq = 0
        self.late = None
        self.rounds_ago = 0
        self.spared = False
        if fan_of(self.path) is not None:  # a completed clone is one byte, which does not record how it was completed
            self.failures = frozenset()
            self.losses = self.refusals = 0

    def half_made(self, seq: int) -> None:
        self.half_seq = seq
        self.spared = False

    @property
    def is_unsafe(self) -> bool:
        return self.node.step.safety == "NOT_SAFE_TO_RETRY"

    @property
    def never_begins(self) -> bool:
        """Whether the open attempt had to be recorded before it begins, and was not."""
        return self.is_unsafe and not self.node.outside and not self.begun

    @property
    def is_unowned(self) -> bool:
        """Whether no worker can have begun the open attempt: it was returned, or granted while there was no owner.

        A queue can return a task that no worker has acknowledged, because a cancel withdrew it.
        """
        if self.open is None or self.open.phase != "forward":
            return False
        if self.sent:
            return self.returned and self.node.queue is not None and not self.acked
        is_fetched = self.node.outside and (self.node.queue is not None or self.node.step.handler is None)
        return self.returned or (self.epoch == 0 and not is_fetched and not self.begun)

    @property
    def to_undo(self) -> int:
        """The event after which this step has something to compensate, or 0."""
        return max(self.made_seq, self.half_seq) if self.node.compensable and not self.spared else 0


@dataclass(eq=False, slots=True)
class ModelScope:
    """A scope or a fan-out, reduced to the facts about its children."""

    path: str
    node: Node
    status: str = "open"
    closed: dict[str, str] = field(default_factory=dict)
    active: dict[str, None] = field(default_factory=dict)
    running: dict[str, None] = field(default_factory=dict)
    not_before: int = 0
    round: int = 1
    planning: Ref | None = None
    unasked: bool = False  # its planner was granted, but no owner can have called it
    plan_number: int = 0
    plan_losses: int = 0
    plan_not_before: int = 0
    count: int = 0  # clones of a fan-out
    # Of a flow: its start, the child that closed last, and the edge taken from there
    start: str | None = None
    last: str = ""
    taken: str | None = None

    def begin_round(self) -> None:
        self.status = "open"
        self.closed, self.active, self.running = {}, {}, {}
        self.plan_losses = self.plan_not_before = 0
        self.last, self.taken = "", None


@dataclass(eq=False, slots=True)
class Rollback:
    cause: str
    groups: tuple[tuple[str, ...], ...]
    stopped: str = ""
    open: dict[str, None] = field(default_factory=dict)
    failed: dict[str, None] = field(default_factory=dict)
    group_of: dict[str, int] = field(default_factory=dict)
    over: int = 0  # groups before this one are complete, so that each is checked once

    def __post_init__(self) -> None:
        self.group_of = {path: number for number, group in enumerate(self.groups) for path in group}


class Model:
    """The recorded history of one execution, without the kernel's own state."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.steps: dict[str, ModelStep] = {}
        self.scopes: dict[str, ModelScope] = {}
        self.nodes: dict[str, dict[str, Node]] = {}  # children added by planners, by scope
        # (scope, child) -> the ids that were added together with it
        self.batches: dict[tuple[str, str], tuple[str, ...]] = {}
        self.superseded: dict[str, None] = {}
        self.layers: dict[str, dict[str, int]] = {}  # of layered scopes, computed once
        self.reviews: dict[str, e.ReviewOpened] = {}
        self.paused_at: int | None = None
        self.dues = Dues()
        self.cancel: str = ""
        self.finished: str = ""
        self.admitted = True
        self.undo: Rollback | None = None
        self.run = 1
        self.hold = self.charged = 0
        self.budget = plan.definition.policies.retry_budget
        self.touched: dict[str, ModelStep] = {}
        self.clearances: Counter[str] = Counter()  # entries that allow an unsafe effect to be made once more, by path
        self.cut_off: list[Ref] = []  # unsafe attempts that were terminated
        self.asked: dict[str, None] = {}  # paths for which a person was asked about the outcome
        self.kept: list[str] = []  # signals that no step has waited for yet
        self.used: dict[str, None] = {}  # the latest signals that ended a wait
        self.open_refs: dict[Ref, None] = {}  # attempts that may still report
        self.finishes = 0
        self.dead_letters = 0  # opened in this run
        self.failure: e.Failure | None = None
        self.started: e.ExecutionStarted | None = None
        self.seq = self.at = self.epoch = 0

    def node(self, path: str) -> Node:
        clone = fan_of(path)
        at = clone[0] if clone is not None else path
        return self.child(parent_of(at), step_id(at))

    def child(self, scope: str, id: str) -> Node:
        added = self.nodes.get(scope, {})
        return added[id] if id in added else self.scopes[scope].node.by_id[id]

    def children(self, scope: str) -> list[Node]:
        return [*self.scopes[scope].node.children, *self.nodes.get(scope, {}).values()]

    def replaced(self, scope: str) -> set[str]:
        """Returns the ids of children that a planner has replaced."""
        return {step_id(path) for path in self.superseded if parent_of(path) == scope}

    def step(self, path: str) -> ModelStep:
        step = self.steps.get(path)
        if step is None:
            step = self.steps[path] = ModelStep(path, self.node(path))
        self.touched[path] = step
        return step

    def status_of(self, path: str) -> str:
        """Returns how a step or a clone was closed, or `open`."""
        clone = fan_of(path)
        if clone is not None:
            return self.scopes[clone[0]].closed.get(str(clone[1]), "open")
        return self.scopes[parent_of(path)].closed.get(step_id(path), "open")

    def ancestors(self, path: str) -> list[ModelScope]:
        """Returns the enclosing fan-out and scopes, innermost first."""
        clone = fan_of(path)
        found = [self.scopes[clone[0]]] if clone is not None else []
        while path != ROOT:
            path = parent_of(path)
            found.append(self.scopes[path])
        return found

    def to_undo(self) -> dict[str, int]:
        return {path: seq for path, step in self.steps.items() if (seq := step.to_undo)}

    def decides(self, event: e.BranchTaken) -> bool:
        """Returns whether the event is a decision's branch.

        The edge for a failure is taken from a closed step instead.
        """
        node = self.node(event.path)
        is_decision = not node.is_scope and node.step.type == "decision"
        return is_decision and self.scopes[parent_of(event.path)].last != event.path


def refs_of(grant: e.Grant) -> list[Ref]:
    if grant.first < 0:
        return [Ref(grant.path, grant.phase, grant.number)]
    clones = range(grant.first, grant.last + 1)
    return [Ref(clone_path(grant.path, index), grant.phase, grant.number) for index in clones]
