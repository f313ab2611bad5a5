"""What a definition must obey: every rule broken once, with the place and the code that are told for it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.errors import Problem
from tenuto.kernel.definition import (
    Branch,
    Definition,
    Escalation,
    Mode,
    Node,
    Policies,
    RetryPolicy,
    Scope,
    Step,
)
from tenuto.kernel.plan import Plan
from tenuto.kernel.validation import MAX_NESTING, MAX_NODES, problems


def task(id: str, **fields: Any) -> Step:
    return Step(id=id, handler="h", **fields)


def dag(*steps: Node, **fields: Any) -> Definition:
    return Definition(name="d", mode="dag", steps=steps, **fields)


def flow(*steps: Node, **fields: Any) -> Definition:
    return Definition(name="d", mode="flow", steps=steps, **fields)


def found(definition: Definition) -> list[tuple[str, str]]:
    return [(problem.path, problem.code) for problem in problems(definition)]


def message(definition: Definition) -> str:
    (problem,) = problems(definition)
    return problem.message


# -- What is right -----------------------------------------------------------------------------------------------------

DECISION = Step(id="a", type="decision", branches=(Branch(when="input.x > 1", next="b"),), default="$succeed")


@pytest.mark.parametrize(
    "definition",
    [
        dag(task("a"), task("b", depends_on=("a",), when="steps.a.result > 1")),
        dag(task("a"), task("b"), task("c", depends_on=("a", "b"))),
        flow(DECISION, task("b", on_success="$succeed", on_failure="a", on_timeout="$fail")),
        flow(Step(id="a", type="decision", branches=DECISION.branches), task("b")),
        dag(Step(id="w", type="wait", with_={"duration_ms": 5})),
        dag(Step(id="w", type="wait", with_={"duration_ms": "${input.pause}"})),
        dag(Step(id="w", type="wait", with_={"until": 1_700_000_000_000})),
        dag(Step(id="w", type="wait", with_={"until": "${input.at}"}, timeout_ms=5, set_variable="x")),
        dag(Step(id="w", type="wait", with_={"signal": "paid"}, timeout_ms=5)),
        dag(Step(id="ok", type="human_approval", timeout_ms=5, permission="p", with_={"amount": "${input.amount}"})),
        dag(task("a", foreach="input.list", suffix="item.id", with_={"n": "${index}"}, failure_mode="continue")),
        dag(task("a", safety="SAFE_TO_RETRY_WITH_GUARD", guard_handler="g")),
        dag(
            task(
                "a", safety="NOT_SAFE_TO_RETRY", compensation_handler="c", compensation_with={"x": "${steps.a.result}"}
            )
        ),
        dag(task("a", safety="NOT_SAFE_TO_RETRY", reconcile_handler="r")),
        dag(task("a", safety="NOT_SAFE_TO_RETRY", compensation_policy="manual")),
        dag(Step(id="a", type="external_call", completion="callback", ack_timeout_ms=5)),
        dag(Step(id="a", type="external_call", handler="http", completion="callback", result_timeout_ms=5)),
        dag(Scope(id="s", mode="parallel", planner="p")),
        Definition(name="d", mode="parallel", policies=Policies(planner="p")),
        dag(task("a", when="steps.later.result == 1"), policies=Policies(planner="p")),
        dag(Scope(id="s", children=(task("a"), task("b", when="steps.a.result == 1")))),
        dag(Scope(id="s", children=(task("a"),)), task("b", depends_on=("s",), when="steps.a.result == 1")),
        dag(task("a"), Scope(id="s", depends_on=("a",), children=(task("b", when="steps.a.result == 1"),))),
        dag(task("a"), task("b", depends_on=("a",)), task("c", depends_on=("b",), when="steps.a.result == 1")),
        dag(Scope(id="s", repeat_until="steps.b.result", children=(task("a", when="steps.b.result != 1"), task("b")))),
        flow(task("a", when="steps.b.result == 1", on_success="b"), task("b")),
        dag(task("a"), policies=Policies(concurrency_key="input.id", escalation=Escalation())),
        dag(task("a"), output={"x": "${steps.a.result}"}),
        dag(task("a", with_={"own": "${steps.a.status}"})),
        dag(task("a"), scheduling="layered"),
        dag(Scope(id="s", mode="dag", scheduling="layered", children=(task("a"),))),
        dag(task("a.b-c"), task("z", depends_on=("a.b-c",), when='steps["a.b-c"].result == 1')),
    ],
)
def test_what_is_right_has_no_problems_and_compiles(definition: Definition) -> None:
    assert problems(definition) == []
    Plan(definition)


# -- What is wrong -----------------------------------------------------------------------------------------------------


def expect(id: str, definition: Definition, *wrong: tuple[str, str]) -> Any:
    return pytest.param(definition, list(wrong), id=id)


def retry(**fields: Any) -> RetryPolicy:
    return RetryPolicy(**fields)


A, B = task("a"), task("b")

WRONG = [
    expect("name", Definition(name="a b", steps=(A,)), ("/name", "bad_name")),
    expect("version", dag(A, version=0), ("/version", "out_of_range")),
    expect("version-large", dag(A, version=1 << 31), ("/version", "out_of_range")),
    expect("empty", dag(), ("/steps", "empty")),
    expect(
        "layers", Definition(name="d", mode="parallel", scheduling="layered", steps=(A,)), ("/scheduling", "misplaced")
    ),
    expect("timeout", dag(A, policies=Policies(timeout_ms=0)), ("/policies/timeout_ms", "out_of_range")),
    expect("budget", dag(A, policies=Policies(retry_budget=-1)), ("/policies/retry_budget", "out_of_range")),
    expect(
        "escalation",
        dag(A, policies=Policies(escalation=Escalation(error_rate=1.5))),
        ("/policies/escalation/error_rate", "out_of_range"),
    ),
    expect("key", dag(A, policies=Policies(concurrency_key="input.")), ("/policies/concurrency_key", "expression")),
    expect(
        "key-of-steps",
        dag(A, policies=Policies(concurrency_key="steps.a.result")),
        ("/policies/concurrency_key", "expression"),
    ),
    expect("planner-in-flow", Definition(name="d", policies=Policies(planner="p")), ("/policies/planner", "misplaced")),
    expect("output", dag(A, output={"x": ["${steps.b.result}"]}), ("/output", "unknown_step")),
    expect("output-syntax", dag(A, output={"x": ["${1 +}"]}), ("/output/x/0", "expression")),
    expect("output-of-scope", dag(Scope(id="s", children=(A,)), output="${steps.s}"), ("/output", "unknown_step")),
    # Ids
    expect("id", dag(task("a b")), ("/steps/0/step_id", "bad_id")),
    expect("id-empty", dag(task("")), ("/steps/0/step_id", "bad_id")),
    expect("id-of-flow-end", dag(task("$succeed")), ("/steps/0/step_id", "bad_id")),
    expect("id-reserved", dag(task("true")), ("/steps/0/step_id", "reserved_id")),
    expect("id-twice", dag(A, A), ("/steps/1/step_id", "duplicate_id")),
    expect("id-twice-deep", dag(A, Scope(id="s", children=(A,))), ("/steps/1/children/0/step_id", "duplicate_id")),
    # Edges
    expect("self", dag(task("a", depends_on=("a",))), ("/steps/0/depends_on/0", "cycle")),
    expect("unknown", dag(task("a", depends_on=("x",))), ("/steps/0/depends_on/0", "unknown_step")),
    expect("twice", dag(A, task("b", depends_on=("a", "a"))), ("/steps/1/depends_on/1", "repeated")),
    expect(
        "in-another-scope",
        dag(Scope(id="s", children=(A,)), task("b", depends_on=("a",))),
        ("/steps/1/depends_on/0", "unknown_step"),
    ),
    expect("depends-in-flow", flow(task("a", depends_on=("a",))), ("/steps/0/depends_on", "misplaced")),
    expect("next-in-dag", dag(task("a", on_success="a")), ("/steps/0/on_success", "misplaced")),
    expect("unknown-next", flow(task("a", on_failure="x")), ("/steps/0/on_failure", "unknown_step")),
    expect(
        "cycle",
        dag(task("a", depends_on=("c",)), task("b", depends_on=("a",)), task("c", depends_on=("b",))),
        ("/steps/0/depends_on", "cycle"),
    ),
    expect(
        "two-cycles",
        dag(
            task("a", depends_on=("b",)),
            task("b", depends_on=("a",)),
            task("c", depends_on=("b", "d")),
            task("d", depends_on=("c",)),
            task("e", depends_on=("a",)),
            task("f", depends_on=("e",)),
            task("g"),
        ),
        ("/steps/0/depends_on", "cycle"),
        ("/steps/2/depends_on", "cycle"),
    ),
    expect("unreachable", flow(A, B), ("/steps/1", "unreachable")),
    expect("endless", flow(task("a", on_success="b"), task("b", on_success="a")), ("/steps", "endless")),
    expect(
        "endless-decision",
        flow(Step(id="a", type="decision", branches=(Branch(when="true", next="a"),), default="a")),
        ("/steps", "endless"),
    ),
    expect(
        "endless-inside",
        dag(Scope(id="s", mode="flow", children=(task("a", on_success="a"),))),
        ("/steps/0/children", "endless"),
    ),
    # Scopes
    expect("no-children", dag(Scope(id="s")), ("/steps/0/children", "empty")),
    expect(
        "scope-layers",
        dag(Scope(id="s", mode="sequence", scheduling="layered", children=(A,))),
        ("/steps/0/scheduling", "misplaced"),
    ),
    expect("rounds", dag(Scope(id="s", max_rounds=0, children=(A,))), ("/steps/0/max_rounds", "out_of_range")),
    expect("visits", dag(Scope(id="s", max_visits=10_001, children=(A,))), ("/steps/0/max_visits", "out_of_range")),
    expect("repeat", dag(Scope(id="s", repeat_until="1 +", children=(A,))), ("/steps/0/repeat_until", "expression")),
    expect("plan", dag(Scope(id="s", mode="flow", planner="p", children=(A,))), ("/steps/0/planner", "misplaced")),
    # Types
    expect("handler", dag(Step(id="a")), ("/steps/0/handler", "missing")),
    expect("task-branches", dag(task("a", branches=DECISION.branches)), ("/steps/0/branches", "not_allowed")),
    expect("task-default", flow(task("a", default="x")), ("/steps/0/default", "not_allowed")),
    expect(
        "task-callback",
        dag(task("a", completion="callback", ack_timeout_ms=5)),
        ("/steps/0/completion", "not_allowed"),
        ("/steps/0/ack_timeout_ms", "not_allowed"),
    ),
    expect(
        "callback-without-time",
        dag(Step(id="a", type="external_call", completion="callback")),
        ("/steps/0/completion", "timeout_missing"),
    ),
    expect(
        "time-without-callback",
        dag(Step(id="a", type="external_call", handler="h", ack_timeout_ms=5)),
        ("/steps/0/ack_timeout_ms", "not_allowed"),
    ),
    expect(
        "decision-in-dag",
        dag(Step(id="a", type="decision", branches=(Branch(when="true", next="$fail"),))),
        ("/steps/0/branches/0/next", "misplaced"),
        ("/steps/0/type", "misplaced"),
    ),
    expect("no-branches", flow(Step(id="a", type="decision")), ("/steps/0/branches", "missing")),
    expect(
        "branches",
        flow(Step(id="a", type="decision", branches=(Branch(when="1 +", next="x"),), default="y")),
        ("/steps/0/branches/0/next", "unknown_step"),
        ("/steps/0/default", "unknown_step"),
        ("/steps/0/branches/0/when", "expression"),
    ),
    expect(
        "decision-handler",
        flow(Step(id="a", type="decision", handler="h", branches=(Branch(when="true", next="$succeed"),))),
        ("/steps/0/handler", "not_allowed"),
    ),
    expect("wait-nothing", dag(Step(id="w", type="wait")), ("/steps/0/with", "ambiguous_wait")),
    expect(
        "wait-two",
        dag(Step(id="w", type="wait", with_={"signal": "s", "duration_ms": 5})),
        ("/steps/0/with", "ambiguous_wait"),
    ),
    expect(
        "wait-else", dag(Step(id="w", type="wait", with_={"signal": "s", "x": 5})), ("/steps/0/with/x", "not_allowed")
    ),
    expect(
        "wait-0",
        dag(Step(id="w", type="wait", with_={"duration_ms": 0})),
        ("/steps/0/with/duration_ms", "out_of_range"),
    ),
    expect(
        "wait-null",
        dag(Step(id="w", type="wait", with_={"duration_ms": None})),
        ("/steps/0/with/duration_ms", "out_of_range"),
    ),
    expect("wait-until", dag(Step(id="w", type="wait", with_={"until": True})), ("/steps/0/with/until", "bad_time")),
    expect(
        "wait-until-blank", dag(Step(id="w", type="wait", with_={"until": ""})), ("/steps/0/with/until", "bad_time")
    ),
    expect("wait-signal", dag(Step(id="w", type="wait", with_={"signal": " "})), ("/steps/0/with/signal", "blank")),
    expect(
        "wait-retry",
        dag(Step(id="w", type="wait", with_={"signal": "s"}, foreach="input.x")),
        ("/steps/0/foreach", "not_allowed"),
    ),
    expect(
        "approval-handler", dag(Step(id="w", type="human_approval", handler="h")), ("/steps/0/handler", "not_allowed")
    ),
    expect(
        "approval-time",
        dag(Step(id="w", type="human_approval", timeout_ms=-1)),
        ("/steps/0/timeout_ms", "out_of_range"),
    ),
    # Safety, retries, undo
    expect("guard", dag(task("a", safety="SAFE_TO_RETRY_WITH_GUARD")), ("/steps/0/guard_handler", "missing")),
    expect("guard-idle", dag(task("a", guard_handler="g")), ("/steps/0/guard_handler", "not_allowed")),
    expect("unsafe", dag(task("a", safety="NOT_SAFE_TO_RETRY")), ("/steps/0/idempotency_strategy", "unsafe")),
    expect(
        "undo-settings",
        dag(task("a", compensation_critical=True, compensation_max_attempts=2)),
        ("/steps/0/compensation_max_attempts", "not_allowed"),
        ("/steps/0/compensation_critical", "not_allowed"),
    ),
    expect(
        "undo-attempts",
        dag(task("a", compensation_handler="c", compensation_max_attempts=0, compensation_backoff_ms=-1)),
        ("/steps/0/compensation_max_attempts", "out_of_range"),
        ("/steps/0/compensation_backoff_ms", "out_of_range"),
    ),
    expect(
        "attempts",
        dag(task("a", retry_policy=retry(max_attempts=0))),
        ("/steps/0/retry_policy/max_attempts", "out_of_range"),
    ),
    expect("jitter", dag(task("a", retry_policy=retry(jitter=1.1))), ("/steps/0/retry_policy/jitter", "out_of_range")),
    expect(
        "jitter-nan",
        dag(task("a", retry_policy=retry(jitter=float("nan")))),
        ("/steps/0/retry_policy/jitter", "out_of_range"),
    ),
    expect(
        "attempt-time",
        dag(task("a", retry_policy=retry(timeout_ms=0))),
        ("/steps/0/retry_policy/timeout_ms", "out_of_range"),
    ),
    expect("attempt-longer", dag(task("a", timeout_ms=29_999)), ("/steps/0/retry_policy/timeout_ms", "timeout_order")),
    expect(
        "delays",
        dag(task("a", retry_policy=retry(initial_delay_ms=5, max_delay_ms=4))),
        ("/steps/0/retry_policy/initial_delay_ms", "out_of_range"),
    ),
    expect(
        "classes",
        dag(
            task(
                "a",
                retry_policy=retry(
                    retry_on_classes=("TRANSIENT", "NON_RETRYABLE", "COMPENSATION_REQUIRED", "INDETERMINATE")
                ),
            )
        ),
        ("/steps/0/retry_policy/retry_on_classes/1", "forbidden_class"),
        ("/steps/0/retry_policy/retry_on_classes/2", "forbidden_class"),
        ("/steps/0/retry_policy/retry_on_classes/3", "forbidden_class"),
    ),
    # Expressions
    expect("when", dag(task("a", when="foo.bar")), ("/steps/0/when", "expression")),
    expect("when-item", dag(task("a", when="item.x")), ("/steps/0/when", "expression")),
    expect("foreach", dag(task("a", foreach="steps.b.result")), ("/steps/0/foreach", "unknown_step")),
    expect("suffix", dag(task("a", foreach="input.x", suffix="itm.x")), ("/steps/0/suffix", "expression")),
    expect("suffix-idle", dag(task("a", suffix="item.x")), ("/steps/0/suffix", "not_allowed")),
    expect("with", dag(task("a", with_={"x": "${item.y}"})), ("/steps/0/with/x", "expression")),
    expect("with-unknown", dag(task("a", with_={"x": "${steps.b}"})), ("/steps/0/with", "unknown_step")),
    expect("key-template", dag(task("a", idempotency_key="k-${input")), ("/steps/0/idempotency_key", "expression")),
    expect(
        "undo-with",
        dag(task("a", compensation_handler="c", compensation_with="${x}")),
        ("/steps/0/compensation_with", "expression"),
    ),
    expect("not-before", dag(A, task("b", when="steps.a.result == 1")), ("/steps/1/when", "not_before")),
    expect(
        "not-before-in-parallel",
        dag(Scope(id="s", mode="parallel", children=(A, task("b", when="steps.a.result == 1")))),
        ("/steps/0/children/1/when", "not_before"),
    ),
    expect(
        "not-before-in-sequence",
        dag(Scope(id="s", children=(task("a", when="steps.b.result == 1"), B))),
        ("/steps/0/children/0/when", "not_before"),
    ),
    expect(
        "not-before-across",
        dag(
            Scope(id="s", children=(A,)),
            Scope(id="t", depends_on=("x",), children=(task("b", when="steps.a.result == 1"),)),
        ),
        ("/steps/1/depends_on/0", "unknown_step"),
        ("/steps/1/children/0/when", "not_before"),
    ),
    # Names and numbers
    expect("queue", dag(task("a", queue=" ")), ("/steps/0/queue", "blank")),
    expect("limits", dag(task("a", limits=("x", ""))), ("/steps/0/limits/1", "blank")),
    expect("classify", dag(task("a", classify={"": "TRANSIENT"})), ("/steps/0/classify/", "blank")),
    expect("estimate", dag(task("a", estimate=-1)), ("/steps/0/estimate", "out_of_range")),
    expect("concurrency", dag(task("a", max_concurrency=-1)), ("/steps/0/max_concurrency", "out_of_range")),
]


@pytest.mark.parametrize(("definition", "wrong"), WRONG)
def test_every_rule_tells_its_place(definition: Definition, wrong: list[tuple[str, str]]) -> None:
    assert found(definition) == wrong


def test_all_problems_are_told_at_once() -> None:
    definition = dag(task("a b"), task("c", depends_on=("x",), when="1 +", timeout_ms=1), version=0)
    assert {code for _, code in found(definition)} == {
        "out_of_range",
        "bad_id",
        "unknown_step",
        "expression",
        "timeout_order",
    }


# -- What is said ------------------------------------------------------------------------------------------------------


def test_a_cycle_is_named() -> None:
    definition = dag(
        task("a", depends_on=("c",)),
        task("b", depends_on=("a",)),
        task("c", depends_on=("b",)),
        task("z", depends_on=("a",)),
    )
    assert "a → c → b → a" in message(definition)


def test_a_likely_name_is_suggested() -> None:
    assert "did you mean 'charge'?" in message(dag(task("charge"), task("b", depends_on=("chrage",))))


def test_what_there_is_is_listed() -> None:
    assert "there are a, b" in message(dag(A, task("b", depends_on=("zzz",))))


def test_a_step_elsewhere_is_pointed_at() -> None:
    definition = dag(Scope(id="s", children=(A,)), task("b", depends_on=("a",)))
    assert "/steps/0/children/0" in message(definition)


def test_flow_ends_are_offered() -> None:
    assert "`$succeed`" in message(flow(task("a", on_success="x")))


def test_a_problem_reads_as_a_sentence() -> None:
    (problem,) = problems(dag(task("a", safety="NOT_SAFE_TO_RETRY")))
    assert isinstance(problem, Problem)
    assert str(problem).startswith("/steps/0/idempotency_strategy: a step that is NOT_SAFE_TO_RETRY needs")


# -- Bounds ------------------------------------------------------------------------------------------------------------


def nested(depth: int) -> Node:
    node: Node = A
    for level in range(depth):
        node = Scope(id=f"s{level}", children=(node,))
    return node


def test_nesting_is_bounded() -> None:
    assert found(dag(nested(MAX_NESTING))) == []
    assert [code for _, code in found(dag(nested(MAX_NESTING + 1)))] == ["too_deep"]
    assert [code for _, code in found(dag(nested(5_000)))] == ["too_deep"]


def test_size_is_bounded() -> None:
    assert found(dag(*(task(f"s{n}") for n in range(1_000)))) == []
    assert ("/steps", "too_large") in found(dag(*(task(f"s{n}") for n in range(MAX_NODES + 5))))


def test_long_chains_and_long_cycles_take_no_time() -> None:
    chain = [task(f"s{n}", depends_on=(f"s{n - 1}",) if n else ()) for n in range(5_000)]
    assert found(dag(*chain)) == []
    cycle = [task(f"s{n}", depends_on=(f"s{(n + 1) % 5_000}",)) for n in range(5_000)]
    assert [code for _, code in found(dag(*cycle))] == ["cycle"]


# -- Total -------------------------------------------------------------------------------------------------------------

ids = st.sampled_from(["a", "b", "c", "d", "", "a b", "true", "$succeed"])
targets = st.none() | ids
sources = st.none() | st.sampled_from(["steps.a.result", "1 +", "item", "input.x", "steps.b", "steps[input.x]", ""])
steps = st.builds(
    Step,
    id=ids,
    type=st.sampled_from(["task", "decision", "wait", "external_call", "notify", "human_approval"]),
    handler=st.none() | st.just("h"),
    depends_on=st.lists(ids, max_size=3).map(tuple),
    when=sources,
    foreach=sources,
    suffix=sources,
    with_=st.none() | st.sampled_from([{}, [], 1, {"signal": 3}, {"until": []}, {"duration_ms": "${"}, "${steps.c}"]),
    on_success=targets,
    on_failure=targets,
    branches=st.lists(st.builds(Branch, when=sources.map(str), next=ids), max_size=2).map(tuple),
    default=targets,
)
modes: list[Mode] = ["sequence", "parallel", "dag", "flow"]
nodes = st.recursive(
    steps,
    lambda inner: st.builds(
        Scope,
        id=ids,
        mode=st.sampled_from(modes),
        children=st.lists(inner, max_size=3).map(tuple),
        depends_on=st.lists(ids, max_size=2).map(tuple),
        repeat_until=sources,
        on_success=targets,
    ),
    max_leaves=8,
)
definitions = st.builds(
    Definition,
    name=st.sampled_from(["d", "", "a b"]),
    mode=st.sampled_from(modes),
    steps=st.lists(nodes, max_size=4).map(tuple),
    output=sources,
)


@given(definitions)
@settings(max_examples=150, deadline=None)
def test_whatever_passes_compiles_and_nothing_raises(definition: Definition) -> None:
    if not problems(definition):
        Plan(definition)
