"""The compiled definition: a tree with counted edges, numbered layers and compiled expressions.

Authors have four modes; the plan has two. `sequence`, `parallel` and layers become edges and barriers of a `dag`; a
`flow` keeps its named transitions. A plan never changes. Children that a planner adds at run time are compiled to
separate nodes (`compile_children`) and stored in the execution's state.
"""

from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from .address import Phase
from .definition import FAN_OUT_CONCURRENCY, JSON, Definition, Scope, Step, content_hash, root_scope, run_policies
from .definition import Node as Spec
from .expression import NODE_ROOTS, Expression, Template, compile_expression, compile_template
from .step_override import StepOverrides, override_nodes

NO_OVERRIDES: Final[StepOverrides] = MappingProxyType({})


class Node:
    """One step or scope of the plan, with the precomputed values that `decide` uses."""

    __slots__ = (
        "branches",
        "by_id",
        "children",
        "compensable",
        "dependents",
        "foreach",
        "has_planner",
        "id",
        "ids",
        "index",
        "is_fan",
        "is_flow",
        "is_scope",
        "key",
        "layer",
        "layers",
        "limit",
        "outside",
        "parent",
        "payload",
        "queue",
        "repeat_until",
        "scope",
        "spec",
        "step",
        "suffix",
        "unmet",
        "when",
    )

    def __init__(self, spec: Spec, parent: "Node | None", index: int) -> None:
        self.spec = spec
        self.parent = parent
        self.index = index
        self.id = spec.id
        self.is_scope = isinstance(spec, Scope)
        self.when = _expression(spec.when)
        self.queue: str | None = spec.queue or (parent.queue if parent is not None else None)
        self.ids: frozenset[str] = frozenset((spec.id,))  # of itself and everything in it
        self.layer = 0
        self.unmet = 0
        # (index of the dependent child, whether it needs this result and is skipped with it)
        self.dependents: tuple[tuple[int, bool], ...] = ()
        if isinstance(spec, Scope):
            self._init_scope(spec)
        else:
            self._init_step(spec)

    def _init_step(self, step: Step) -> None:
        self.step = step
        self.is_fan = step.foreach is not None
        self.is_flow = False
        self.children: tuple[Node, ...] = ()
        self.foreach = _expression(step.foreach)
        self.suffix = compile_expression(step.suffix) if step.suffix is not None else None
        self.branches = tuple((compile_expression(b.when, NODE_ROOTS), b.next) for b in step.branches)
        self.payload: Template | None = compile_template(step.with_) if step.type == "wait" else None
        self.key = compile_template(step.idempotency_key) if step.idempotency_key is not None else None
        self.compensable = step.compensation_handler is not None
        self.limit = step.max_concurrency or FAN_OUT_CONCURRENCY
        self.outside = self.queue is not None or step.completion == "callback"
        self.repeat_until: Expression | None = None

    def _init_scope(self, scope: Scope) -> None:
        self.scope = scope
        self.is_fan = False
        self.is_flow = scope.mode == "flow"
        self.has_planner = scope.planner is not None
        self.limit = scope.max_concurrency
        self.outside = self.queue is not None
        self.compensable = False
        self.repeat_until = _expression(scope.repeat_until)
        self.children = compile_children(self, scope.children)
        self.ids = self.ids.union(*(child.ids for child in self.children))
        self.by_id = {child.id: child for child in self.children}
        self.layers: tuple[tuple[int, ...], ...] = _layers(self.children) if scope.scheduling == "layered" else ()

    def walk(self) -> Iterator["Node"]:
        yield self
        for child in self.children:
            yield from child.walk()


class Plan:
    """A validated and compiled definition. `overrides` change its steps, but neither `definition` nor `hash`.

    `watched` are the steps whose results an expression of the plan reads.

    `check_output` returns what is wrong with an execution's output, or None. It is a parameter, because JSON Schemas
    need a library that the kernel does not import.
    """

    __slots__ = (
        "check_output",
        "concurrency_key",
        "definition",
        "has_queues",
        "hash",
        "output",
        "overrides",
        "reads_input",
        "root",
        "run",
        "watched",
        "watches_all",
    )

    def __init__(
        self,
        definition: Definition,
        check_output: "Callable[[JSON], str | None] | None" = None,
        overrides: StepOverrides = NO_OVERRIDES,
    ) -> None:
        self.definition = definition
        self.check_output = check_output
        self.hash = content_hash(definition)
        self.run = run_policies(definition)
        self.overrides = overrides
        scope = root_scope(definition)
        if overrides:
            scope = replace(scope, children=override_nodes(scope.children, overrides))
        self.root = Node(scope, None, 0)
        self.has_queues = any(_may_queue(node) for node in self.root.walk())
        key = definition.policies.concurrency_key
        self.concurrency_key = _expression(key)
        self.output = compile_template(definition.output) if definition.output is not None else None
        readers = [reader for node in self.root.walk() for reader in _readers(node)]
        if self.output is not None:
            readers.append(self.output)
        self.watched = frozenset(step for reader in readers for step in reader.steps)
        # Without a template the output is the last result, and only a run can tell which step is last.
        checks_last = definition.output_schema is not None and self.output is None
        self.watches_all = checks_last or any(reader.reads_all_steps for reader in readers)
        self.reads_input = any("input" in reader.roots for reader in readers)

    def override(self, overrides: StepOverrides) -> "Plan":
        return Plan(self.definition, self.check_output, overrides)


def _may_queue(node: Node) -> bool:
    return node.queue is not None or (
        node.is_scope and node.scope.planner is not None
    )  # its children are not known yet


def handler_name(spec: Spec, phase: Phase) -> str | None:
    """Returns the handler for this phase of a step, or the planner of a scope."""
    if isinstance(spec, Scope):
        return spec.planner
    match phase:
        case "forward":
            return spec.handler
        case "compensate":
            return spec.compensation_handler
        case "guard":
            return spec.guard_handler
        case "reconcile":
            return spec.reconcile_handler
        case "plan":
            return None


def compile_children(parent: Node, specs: tuple[Spec, ...]) -> tuple[Node, ...]:
    """Compiles children with edges and layers. An edge that is only an order is not broken by a skipped child."""
    children = tuple(Node(spec, parent, index) for index, spec in enumerate(specs))
    by_id = {child.id: child for child in children}
    dependents: list[list[tuple[int, bool]]] = [[] for _ in children]
    for child in children:
        if parent.scope.mode == "sequence" and child.index > 0:
            edges = {child.index - 1: False}
        elif parent.scope.mode == "dag":
            edges = {by_id[name].index: True for name in child.spec.depends_on}
        else:
            edges = {}
        child.unmet = len(edges)
        for source, needs_result in edges.items():
            dependents[source].append((child.index, needs_result))
    for child, edges_out in zip(children, dependents, strict=True):
        child.dependents = tuple(edges_out)
    _number_layers(children)
    return children


def _number_layers(children: tuple[Node, ...]) -> None:
    unmet = [child.unmet for child in children]
    ready = [child for child in children if child.unmet == 0]
    for child in ready:  # `ready` grows during the loop: Kahn's algorithm
        for index, _ in child.dependents:
            unmet[index] -= 1
            children[index].layer = max(children[index].layer, child.layer + 1)
            if unmet[index] == 0:
                ready.append(children[index])


def _layers(children: tuple[Node, ...]) -> tuple[tuple[int, ...], ...]:
    layers: list[list[int]] = [[] for _ in range(1 + max((child.layer for child in children), default=-1))]
    for child in children:
        layers[child.layer].append(child.index)
    return tuple(tuple(layer) for layer in layers)


def _expression(source: str | None) -> Expression | None:
    return compile_expression(source, NODE_ROOTS) if source is not None else None


def _readers(node: Node) -> Iterator[Expression | Template]:
    if node.when is not None:
        yield node.when
    if node.repeat_until is not None:
        yield node.repeat_until
    if not node.is_scope:
        yield from (condition for condition, _ in node.branches)
        yield from (reader for reader in (node.foreach, node.suffix, node.payload, node.key) if reader is not None)
