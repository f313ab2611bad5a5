"""Plans (A10): edges counted, layers numbered, expressions at hand."""

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from tenuto.kernel.plan import Plan, handler_name

from .build import definition, guarded, pause_for, scope, step, unsafe


def layers(plan: Plan) -> dict[str, int]:
    return {node.id: node.layer for node in plan.root.children}


@pytest.mark.requirement("A10")
def test_layers_are_topological() -> None:
    plan = Plan(
        definition(
            step("init"),
            step("funds", after=("init",)),
            step("stock", after=("init",)),
            step("order", after=("funds", "stock")),
            step("notify", after=("order", "init")),
            mode="dag",
            scheduling="layered",
        )
    )
    assert layers(plan) == {"init": 0, "funds": 1, "stock": 1, "order": 2, "notify": 3}
    assert plan.root.layers == ((0,), (1, 2), (3,), (4,))


@pytest.mark.requirement("A10")
@for_all(st.integers(1, 8), st.data())
def test_a_layer_is_one_more_than_the_highest_it_depends_on(size: int, data: st.DataObject) -> None:
    edges = [data.draw(st.sets(st.integers(0, index - 1)) if index else st.just(set())) for index in range(size)]
    nodes = [step(f"s{i}", after=tuple(f"s{j}" for j in sorted(before))) for i, before in enumerate(edges)]
    found = layers(Plan(definition(*nodes, mode="dag")))
    for index, before in enumerate(edges):
        assert found[f"s{index}"] == 1 + max((found[f"s{j}"] for j in before), default=-1)


def test_a_sequence_is_a_chain_and_parallel_children_wait_for_nobody() -> None:
    chain = Plan(definition(step("a"), step("b"), step("c"))).root
    assert [child.unmet for child in chain.children] == [0, 1, 1]
    assert [child.dependents for child in chain.children] == [((1, False),), ((2, False),), ()]
    parallel = Plan(definition(step("a"), step("b"), mode="parallel")).root
    assert [child.unmet for child in parallel.children] == [0, 0]


def test_only_what_expressions_read_is_watched() -> None:
    plan = Plan(
        definition(
            step("a"),
            step("b", when="steps.a.result > 1 && input.x"),
            scope("s", step("c"), repeat_until="steps.c.result == 1"),
            step("d", foreach="steps.b.result", suffix="item", idempotency_key="${variables.k}"),
            pause_for("e", "${steps.d.result[0]}"),
            output={"of": "${steps.e.result}"},
        )
    )
    assert plan.watched == {"a", "b", "c", "d", "e"}
    assert plan.reads_input
    assert not plan.watches_all
    assert Plan(definition(step("a"))).watched == frozenset()
    assert not Plan(definition(step("a"))).reads_input


def test_a_reader_of_all_steps_watches_all_of_them() -> None:
    assert Plan(definition(step("a"), step("b", when="size(steps) > 0"))).watches_all


def test_a_queue_is_inherited_from_the_scope() -> None:
    plan = Plan(definition(scope("s", step("a"), step("b", queue="own"), queue="gpu"), step("c")))
    [work, c] = plan.root.children
    assert [(child.queue, child.outside) for child in work.children] == [("gpu", True), ("own", True)]
    assert (c.queue, c.outside) == (None, False)


def test_what_a_planner_adds_may_have_a_queue() -> None:
    assert Plan(definition(scope("s", step("a"), planner="p"))).has_queues
    assert not Plan(definition(scope("s", step("a")))).has_queues


def test_each_phase_has_its_handler() -> None:
    plan = Plan(definition(guarded("a", undo=True), unsafe("b", reconcile=True), scope("s", step("c"), planner="p")))
    [a, b, s] = plan.root.children
    assert [handler_name(a.spec, phase) for phase in ("forward", "guard", "compensate", "reconcile", "plan")] == [
        a.step.handler,
        a.step.guard_handler,
        a.step.compensation_handler,
        None,
        None,
    ]
    assert handler_name(b.spec, "reconcile") == b.step.reconcile_handler
    assert handler_name(s.spec, "plan") == "p"
