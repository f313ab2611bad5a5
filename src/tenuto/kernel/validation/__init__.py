"""Validates a definition before it is published, and reports all problems at once.

A problem has a JSON pointer, a code, and a sentence that says what to do. Nothing here raises, so that one problem does
not hide another. `plan` compiles a valid definition without checking again.
"""

from collections.abc import Iterator

from tenuto.errors import Problem
from tenuto.kernel.address import is_identifier
from tenuto.kernel.definition import Definition, Escalation, Policies, Scope, plain_name, run_policies
from tenuto.kernel.expression import NODE_ROOTS, START_ROOTS

from .graph import check_children, check_edges
from .ranges import (
    ESCALATION_RANGES,
    MOST,
    POLICY_RANGES,
    RETRY_RANGES,
    RUN_RANGES,
    SCOPE_RANGES,
    check_ranges,
)
from .reads import check_expression, check_template
from .steps import check_step
from .tree import MAX_NESTING as MAX_NESTING
from .tree import MAX_NODES as MAX_NODES
from .tree import Place
from .tree import Tree as Tree

RESERVED_IDS = frozenset({"true", "false", "null", "in"})
NAMES = "letters, digits, `_`, `-` and `.`, beginning with a letter or `_`, at most 128"


def problems(definition: Definition, *, are_agents: bool = False) -> list[Problem]:
    """Returns all problems of a definition, in document order. `are_agents`: its steps are what a planner proposed."""
    tree = Tree(definition, are_agents=are_agents)
    found = list(_of_definition(definition, tree))
    for place in tree.places:
        found += _of_node(place, tree)
    for place in (tree.root, *tree.places):
        if isinstance(place.node, Scope):
            found += check_children(place)
    return found


# -- The definition ----------------------------------------------------------------------------------------------------


def _of_definition(definition: Definition, tree: Tree) -> Iterator[Problem]:
    if not is_identifier(plain_name(definition.name)):
        yield Problem("/name", "bad_name", f"{definition.name!r} is not a name: {NAMES}")
    if not 1 <= definition.version <= MOST:
        yield Problem("/version", "out_of_range", f"a version is a whole number from 1, not {definition.version}")
    if not definition.steps and definition.policies.planner is None:
        yield Problem("/steps", "empty", "there are no steps: a definition needs at least one")
    if len(tree.places) > MAX_NODES:
        yield Problem("/steps", "too_large", f"there are more than {MAX_NODES} steps and scopes: use a fan-out")
    if definition.scheduling == "layered" and definition.mode != "dag":
        yield Problem("/scheduling", "misplaced", "only a `dag` has layers: leave `scheduling` out")
    yield from check_ranges(definition.policies, "/policies", POLICY_RANGES)
    yield from _of_escalation(definition.policies.escalation)
    yield from _of_run(definition)
    yield from check_expression(
        definition.policies.concurrency_key, "/policies/concurrency_key", START_ROOTS, None, tree
    )
    yield from _of_planner(definition.policies, definition.mode, "/policies")
    yield from check_template(definition.output, "/output", NODE_ROOTS, None, tree)


def _of_escalation(escalation: Escalation | None) -> Iterator[Problem]:
    if escalation is not None:
        yield from check_ranges(escalation, "/policies/escalation", ESCALATION_RANGES)


def _of_run(definition: Definition) -> Iterator[Problem]:
    run = run_policies(definition)
    if run is not None:
        yield from check_ranges(run, "/policies/run", RUN_RANGES)
        yield from check_ranges(run.planner_retry, "/policies/run/planner_retry", RETRY_RANGES)


def _of_planner(spec: Policies | Scope, mode: str, pointer: str) -> Iterator[Problem]:
    if spec.planner is not None and mode == "flow":
        text = "a planner adds children, and in a `flow` nothing would lead to them: use sequence, parallel or dag"
        yield Problem(f"{pointer}/planner", "misplaced", text)


# -- Steps and scopes --------------------------------------------------------------------------------------------------


def _of_node(place: Place, tree: Tree) -> Iterator[Problem]:
    yield from _of_id(place, tree)
    yield from check_edges(place, tree)
    yield from check_expression(place.node.when, f"{place.pointer}/when", NODE_ROOTS, place, tree)
    if isinstance(place.node, Scope):
        yield from _of_scope(place, place.node, tree)
    else:
        yield from check_step(place, place.node, tree)


def _of_id(place: Place, tree: Tree) -> Iterator[Problem]:
    id, pointer = place.node.id, f"{place.pointer}/step_id"
    if not is_identifier(id):
        yield Problem(pointer, "bad_id", f"{id!r} is not an id: {NAMES}")
    elif id in RESERVED_IDS:
        yield Problem(pointer, "reserved_id", f"{id!r} means something in expressions: choose another id")
    if place.pointer in tree.first_of:
        first = tree.first_of[place.pointer].pointer
        text = f"{id!r} is also the id of {first}: ids are unique in the whole definition, scopes included"
        yield Problem(pointer, "duplicate_id", text)


def _of_scope(place: Place, scope: Scope, tree: Tree) -> Iterator[Problem]:
    pointer = place.pointer
    if not scope.children and scope.planner is None:
        yield Problem(f"{pointer}/children", "empty", "the scope has no children: it needs at least one, or a planner")
    if place in tree.too_deep:
        yield Problem(pointer, "too_deep", f"scopes are nested deeper than {MAX_NESTING} levels")
    if scope.scheduling == "layered" and scope.mode != "dag":
        yield Problem(f"{pointer}/scheduling", "misplaced", "only a `dag` has layers: leave `scheduling` out")
    yield from check_ranges(scope, pointer, SCOPE_RANGES)
    yield from _of_planner(scope, scope.mode, pointer)
    yield from check_expression(scope.repeat_until, f"{pointer}/repeat_until", NODE_ROOTS, place, tree)
