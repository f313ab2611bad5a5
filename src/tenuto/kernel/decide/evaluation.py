"""Evaluates the expressions of one turn: the state they may read, and their shared budget.

A turn blocks the event loop, so its expressions share one budget. Reading counts as well: payloads are decoded once per
turn and charged by size.
"""

import msgspec
from msgspec import Raw

from tenuto.kernel.address import ROOT, parent_of
from tenuto.kernel.definition import GATHERED_LIMIT, JSON, plain_name
from tenuto.kernel.events import NULL
from tenuto.kernel.evolve import find_step, last_completed, latest_key
from tenuto.kernel.expression import (
    Budget,
    Exhausted,
    Expression,
    Template,
    evaluate_bool,
    evaluate_keys,
    evaluate_list,
    too_costly,
    too_large,
)
from tenuto.kernel.state import CLONE_SUCCEEDED, Execution, FanState, ScopeState, StepState

_BYTES = 16  # bytes of a payload decoded per unit of work
_ITEMS = 2  # items of a fan-out encoded and expanded per unit


class Evaluation:
    """The expressions of one turn."""

    __slots__ = ("_decoded", "_seq", "_steps", "budget", "state")

    def __init__(self, state: Execution) -> None:
        self.state = state
        self.budget = Budget()
        self._decoded: dict[int | str, tuple[Raw, JSON]] = {}  # by the number of its entry, or by name
        self._steps: dict[str, JSON] = {}
        self._seq = state.seq

    def true(self, condition: Expression, at: str) -> bool:
        """Evaluates a condition. `at`: the scope in which it stands, where the steps that it names are sought first."""
        return evaluate_bool(condition, self._scope(condition, at), self.budget)

    def items(self, source: Expression, at: str) -> tuple[list[JSON], Raw]:
        """Returns the items of a fan-out and their JSON."""
        values = evaluate_list(source, self._scope(source, at), self.budget, limit=GATHERED_LIMIT)
        self._spend(source, len(values) // _ITEMS)
        encoded = msgspec.json.encode(values)
        if len(encoded) > GATHERED_LIMIT:
            raise too_large(source.source, GATHERED_LIMIT)
        return values, Raw(encoded)

    def labels(self, suffix: Expression, items: list[JSON], at: str) -> tuple[str, ...]:
        return tuple(evaluate_keys(suffix, self._scope(suffix, at), items, self.budget))

    def render(self, template: Template, at: str) -> JSON:
        return template.render(self._scope(template, at), self.budget)

    def output(self, template: Template) -> tuple[JSON, Raw]:
        """Returns the output of an execution and its JSON."""
        value = template.render(self._scope(template, ROOT), self.budget, limit=GATHERED_LIMIT)
        encoded = msgspec.json.encode(value)
        if len(encoded) > GATHERED_LIMIT:
            raise too_large(template.source, GATHERED_LIMIT)
        return value, Raw(encoded)

    def _scope(self, reader: Expression | Template, at: str) -> dict[str, JSON]:
        """Returns the values that an expression reads, and no others."""
        state = self.state
        if self._seq != state.seq:
            self._seq = state.seq
            self._steps.clear()
        scope: dict[str, JSON] = {}
        roots = reader.roots
        if "input" in roots:
            scope["input"] = self._decode(reader, "input", state.input)
        if "variables" in roots:
            scope["variables"] = {
                name: self._decode(reader, f"variable {name}", value) for name, value in state.variables.items()
            }
        if "context" in roots:
            scope["context"] = {
                "execution_id": state.id,
                "tenant": state.tenant,
                "correlation_id": state.correlation_id,
                "saga": plain_name(state.plan.definition.name),
                "version": state.plan.definition.version,
                "run": state.run,
            }
        if "steps" in roots:
            ids = [key for key in state.latest if ":" not in key] if reader.reads_all_steps else reader.steps
            scope["steps"] = {id: self._step(reader, id, at) for id in ids}
        return scope

    def _step(self, reader: Expression | Template, id: str, at: str) -> JSON:
        key = self._nearest(id, at)
        known = self._steps.get(key)
        if known is None:
            self._spend(reader, 1)
            known = self._steps[key] = self._view(reader, key)
        return known

    def _nearest(self, id: str, at: str) -> str:
        """Returns the key in `state.latest` of a step: that of the innermost scope around `at` that contains it."""
        nodes = self.state.nodes
        while at != ROOT:
            scope = nodes.get(at)
            if isinstance(scope, ScopeState) and any(id in child.ids for child in scope.children):
                return latest_key(at, id)
            at = parent_of(at)
        return id

    def _view(self, reader: Expression | Template, key: str) -> JSON:
        state = self.state
        path = state.latest.get(key)
        node = state.nodes.get(path) if path is not None else None
        if path is None or node is None:
            found = find_step(state, path) if path is not None else None
            return {"result": None, "status": found.status if found is not None else "pending"}
        assert isinstance(node, FanState | StepState)
        return {"result": self._result(reader, node), "status": node.status}

    def _result(self, reader: Expression | Template, node: StepState | FanState) -> JSON:
        payloads = self.state.payloads
        if isinstance(node, StepState):
            seq = node.done_seq
            return self._decode(reader, seq, payloads.get(seq, NULL)) if node.status == "succeeded" else None
        self._spend(reader, len(node.marks))
        return [
            self._decode(reader, seq, payloads.get(seq, NULL)) if mark == CLONE_SUCCEEDED else None
            for mark, seq in zip(node.marks, node.done_seq, strict=True)
        ]

    def _decode(self, reader: Expression | Template, key: int | str, payload: Raw) -> JSON:
        known = self._decoded.get(key)
        if known is None or known[0] is not payload:
            self._spend(reader, len(memoryview(payload)) // _BYTES)
            known = self._decoded[key] = payload, msgspec.json.decode(payload)
        return known[1]

    def _spend(self, reader: Expression | Template, work: int) -> None:
        try:
            self.budget.spend(work)
        except Exhausted:
            raise too_costly(reader.source) from None


def last_result(state: Execution) -> JSON:
    """Returns the result of the step that was completed last, for plans that watch all steps."""
    last = last_completed(state)
    return None if last is None else _decoded(state, last)


def _decoded(state: Execution, node: StepState | FanState) -> JSON:
    """Decodes a result without a budget, because it is the execution's output."""
    value: JSON
    if isinstance(node, StepState):
        value = msgspec.json.decode(state.payloads.get(node.done_seq, NULL))
        return value if node.status == "succeeded" else None
    return [
        msgspec.json.decode(state.payloads.get(seq, NULL)) if mark == CLONE_SUCCEEDED else None
        for mark, seq in zip(node.marks, node.done_seq, strict=True)
    ]
