"""Finds options that have no effect where they are written.

Only what an author writes is checked. A definition that an earlier release stored keeps its meaning, so reading one
checks nothing here.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from tenuto.errors import Problem
from tenuto.kernel.definition import Definition, Policies, Scope, Step
from tenuto.kernel.validation import Tree
from tenuto.kernel.validation.tree import Place


class _Rule(NamedTuple):
    fields: tuple[str, ...]
    applies: bool
    text: str


def find_inapplicable(definition: Definition) -> list[Problem]:
    """Returns the options that have no effect, in document order."""
    tree = Tree(definition)
    found = list(_ineffective(definition.policies, Policies(), "/policies", _of_policies(definition, tree)))
    for place in tree.places:
        node = place.node
        if isinstance(node, Scope):
            found += _ineffective(node, Scope(id=node.id), place.pointer, _of_scope(node, place))
        else:
            found += _ineffective(node, Step(id=node.id), place.pointer, _of_step(node, place))
    return found


def _ineffective(
    spec: msgspec.Struct, defaults: msgspec.Struct, pointer: str, rules: Iterator[_Rule]
) -> Iterator[Problem]:
    for fields, applies, text in rules:
        for field in fields:
            if not applies and getattr(spec, field) != getattr(defaults, field):
                yield Problem(f"{pointer}/{field}", "not_allowed", f"it has no effect: {text}, or leave it out")


_ROUNDS = 'only `"failure_mode": "retry"` has rounds. For a loop, set `max_visits`'
_PLANNED = "only a `planner` adds children. Name one"


def _of_policies(definition: Definition, tree: Tree) -> Iterator[_Rule]:
    policies = definition.policies
    scopes = [place.node for place in (tree.root, *tree.places) if isinstance(place.node, Scope)]
    yield _Rule(("max_rounds",), policies.failure_mode == "retry", _ROUNDS)
    any_retry = any(scope.failure_mode == "retry" for scope in scopes)
    yield _Rule(("retry_budget",), any_retry, 'no scope has `"failure_mode": "retry"`. Set it')
    yield _Rule(("max_children", "max_replans"), policies.planner is not None, _PLANNED)


def _of_scope(scope: Scope, place: Place) -> Iterator[_Rule]:
    yield _Rule(("max_rounds",), scope.failure_mode == "retry", _ROUNDS)
    visited = scope.repeat_until is not None or place.scope.mode == "flow"
    yield _Rule(("max_visits",), visited, "only a loop has visits. Set `repeat_until`")
    yield _Rule(("max_children", "max_replans"), scope.planner is not None, _PLANNED)


def _of_step(step: Step, place: Place) -> Iterator[_Rule]:
    in_flow = place.scope.mode == "flow"
    yield _Rule(("max_visits",), in_flow, "only a step of a `flow` can be visited again. Put the step into one")
    unsafe = step.safety == "NOT_SAFE_TO_RETRY"
    yield _Rule(
        ("reconcile_handler",), unsafe, f"{step.safety} never asks it. Declare NOT_SAFE_TO_RETRY if it must be asked"
    )
    looked_up = step.guard_handler is not None or step.reconcile_handler is not None
    yield _Rule(("reconcile_timeout_ms",), looked_up, "no handler looks the effect up. Name a `reconcile_handler`")
    undone = step.compensation_handler is not None
    yield _Rule(("partial_effect",), undone, "nothing compensates the step. Add a `compensation_handler`")
