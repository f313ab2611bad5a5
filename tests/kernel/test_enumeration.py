"""Small worlds, completely: every tree and dag of up to four steps x what becomes of each step x how failures move.

What must be true of each is computed apart from the kernel, from the shape and the fates alone.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import product

import pytest

from tenuto.kernel.definition import FailureMode, Scheduling
from tenuto.kernel.plan import Plan

from .worlds import (
    FATES,
    GOOD,
    MAX_ATTEMPTS,
    MAX_ROUNDS,
    Edges,
    Fate,
    Tree,
    World,
    dag_definition,
    dags,
    tree_definition,
    trees,
)

MODES: tuple[FailureMode, ...] = ("fail_fast", "continue", "retry")
FEW: tuple[Fate, ...] = ("ok", "refused", "lost")


def leaves_of(tree: Tree) -> list[str]:
    return [tree] if isinstance(tree, str) else [name for child in tree[1] for name in leaves_of(child)]


# -- What must come of a world -----------------------------------------------------------------------------------------


def succeeds(tree: Tree, fates: dict[str, Fate]) -> bool:
    """Without a mode that forgives: everything in it is good. (What is never reached comes after something bad.)"""
    return all(fates[name] in GOOD for name in leaves_of(tree))


def does_something(tree: Tree, fates: dict[str, Fate]) -> bool:
    return any(fates[name] in GOOD for name in leaves_of(tree))


def expected_end(tree: Tree, fates: dict[str, Fate], mode: FailureMode) -> tuple[str, str]:
    """Status and outcome of the execution."""
    if mode != "continue":
        return ("succeeded" if succeeds(tree, fates) else "failed"), ""
    children = (tree,) if isinstance(tree, str) else tree[1]
    done = [does_something(child, fates) for child in children]
    if not any(done):
        return "succeeded", "skipped"
    return "succeeded", "" if all(done) else "partial"


def check_order(tree: Tree, granted: list[str]) -> None:
    """In a sequence nothing starts before what stands before it, in every round anew."""
    if isinstance(tree, str):
        return
    for child in tree[1]:
        check_order(child, granted)
    if tree[0] == "sequence":
        first = [
            min((granted.index(name) for name in leaves_of(child) if name in granted), default=99) for child in tree[1]
        ]
        assert first == sorted(first), granted


def check_attempts(world: World, rounds: int) -> None:
    attempts = Counter(world.granted())
    for name, fate in world.fates.items():
        most = MAX_ATTEMPTS if fate in ("flaky", "slow") else 1
        assert attempts[name] <= most * rounds + world.losses.get(name, 0), (name, fate, attempts)


def check_undo(world: World, *, undo: bool) -> None:
    """Exactly what was made is undone, once, last made first; and only if the execution failed."""
    if world.state.finished == "succeeded" or not undo:
        assert world.undone() == []
        return
    made = world.completions()
    assert world.undone() == made[::-1]
    assert world.groups() == tuple((path,) for path in made[::-1])


def check_tree(tree: Tree, fates: dict[str, Fate], mode: FailureMode, undo: bool, world: World) -> None:
    state = world.state
    assert (state.finished, state.outcome) == expected_end(tree, fates, mode)
    check_undo(world, undo=undo)
    check_order(tree, world.granted())
    depth = 1 if mode != "retry" else MAX_ROUNDS**3
    check_attempts(world, depth)
    statuses = {name: status for name, status in world.statuses().items() if name in fates}
    if mode == "continue":
        assert statuses == {name: "succeeded" if fate in GOOD else "skipped" for name, fate in fates.items()}
    if state.finished == "succeeded" and mode != "continue":
        assert set(statuses.values()) == {"succeeded"}
    assert not any(
        scope.active for scope in state.nodes.values() if hasattr(scope, "active") and hasattr(scope, "ready")
    )


def tree_worlds(
    size: int, fates: tuple[Fate, ...], modes: tuple[FailureMode, ...], *, both: bool
) -> Iterator[tuple[Tree, dict[str, Fate], FailureMode, bool, World]]:
    """`both`: also without compensations, and with the newest attempt answered first."""
    names = tuple("abcd"[:size])
    variants = [(True, False), (False, False), (True, True)] if both else [(True, False)]
    for tree, mode in product(trees(names), modes):
        for undo, newest in variants:
            plan = Plan(tree_definition(tree, mode, undo=undo))
            for chosen in product(fates, repeat=size):
                by_name = dict(zip(names, chosen, strict=True))
                yield tree, by_name, mode, undo, World(plan, by_name, newest)


@pytest.mark.parametrize(
    ("size", "shapes", "count"), [(1, 1, 45), (2, 2, 450), pytest.param(3, 10, 11_250, marks=pytest.mark.prove)]
)
def test_all_trees_of_up_to_three_steps_with_all_fates(size: int, shapes: int, count: int) -> None:
    assert len(list(trees(tuple("abcd"[:size])))) == shapes
    played = 0
    for tree, fates, mode, undo, world in tree_worlds(size, FATES, MODES, both=True):
        check_tree(tree, fates, mode, undo, world.play())
        played += 1
    assert played == shapes * len(FATES) ** size * len(MODES) * 3 == count


@pytest.mark.prove
@pytest.mark.parametrize(
    ("mode", "fates", "count"), [("fail_fast", FATES, 38_750), ("continue", FEW, 5_022), ("retry", FEW, 5_022)]
)
def test_all_trees_of_four_steps(mode: FailureMode, fates: tuple[Fate, ...], count: int) -> None:
    played = 0
    for tree, by_name, _, undo, world in tree_worlds(4, fates, (mode,), both=False):
        check_tree(tree, by_name, mode, undo, world.play())
        played += 1
    assert played == 62 * len(fates) ** 4 == count


# -- Dags --------------------------------------------------------------------------------------------------------------


def ancestors(edges: Edges, index: int) -> set[int]:
    direct = {a for a, b in edges if b == index}
    return direct.union(*(ancestors(edges, a) for a in direct))


def layer(edges: Edges, index: int) -> int:
    return 1 + max((layer(edges, a) for a, b in edges if b == index), default=-1)


def check_dag(size: int, edges: Edges, fates: dict[str, Fate], mode: FailureMode, world: World) -> None:
    state = world.state
    names = "abcd"[:size]
    bad = {index for index, name in enumerate(names) if fates[name] not in GOOD}
    doomed = {index for index in range(size) if bad & (ancestors(edges, index) | {index})}
    if mode == "continue":
        assert world.statuses() == {names[i]: "skipped" if i in doomed else "succeeded" for i in range(size)}
        outcome = "skipped" if len(doomed) == size else "partial" if doomed else ""
        assert (state.finished, state.outcome) == ("succeeded", outcome)
    else:
        assert state.finished == ("failed" if bad else "succeeded")
    granted = world.granted()
    for a, b in edges:
        if names[b] in granted:
            assert granted.index(names[a]) < granted.index(names[b]), "what is needed comes first"
            assert a not in bad, "what needs something that failed is never started"
    check_attempts(world, MAX_ROUNDS if mode == "retry" else 1)
    if state.finished == "succeeded":
        assert world.undone() == []
        return
    made = world.completions()
    layers = sorted({layer(edges, names.index(path)) for path in made}, reverse=True)
    expected = [{path for path in made if layer(edges, names.index(path)) == at} for at in layers]
    assert [set(group) for group in world.groups()] == expected
    done = [layer(edges, names.index(path)) for path in world.undone()]
    assert done == sorted(done, reverse=True), "one layer after another"
    assert sorted(world.undone()) == sorted(made)


def dag_worlds(
    size: int, fates: tuple[Fate, ...], modes: tuple[FailureMode, ...]
) -> Iterator[tuple[Edges, dict[str, Fate], FailureMode, World]]:
    names = "abcd"[:size]
    schedulings: tuple[Scheduling, ...] = ("layered", "eager")
    for edges, mode, scheduling in product(dags(size), modes, schedulings):
        plan = Plan(dag_definition(size, edges, mode, scheduling))
        for chosen in product(fates, repeat=size):
            by_name = dict(zip(names, chosen, strict=True))
            yield edges, by_name, mode, World(plan, by_name)


@pytest.mark.parametrize(
    ("size", "shapes", "count"), [(1, 1, 30), (2, 2, 300), pytest.param(3, 8, 6_000, marks=pytest.mark.prove)]
)
def test_all_dags_of_up_to_three_steps_with_all_fates(size: int, shapes: int, count: int) -> None:
    assert len(list(dags(size))) == shapes
    played = 0
    for edges, fates, mode, world in dag_worlds(size, FATES, MODES):
        check_dag(size, edges, fates, mode, world.play())
        played += 1
    assert played == shapes * len(FATES) ** size * len(MODES) * 2 == count


@pytest.mark.prove
@pytest.mark.parametrize("mode", ["fail_fast", "continue"])
def test_all_dags_of_four_steps(mode: FailureMode) -> None:
    played = 0
    for edges, fates, _, world in dag_worlds(4, FEW, (mode,)):
        check_dag(4, edges, fates, mode, world.play())
        played += 1
    assert played == 64 * 3**4 * 2 == 10_368
