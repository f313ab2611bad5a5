"""What expressions may cost: one budget for all of a turn, and a bound on the size of what they make."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest

from benchmarks import bounds
from tenuto.errors import ExpressionError
from tenuto.kernel.definition import FAN_OUT_LIMIT, GATHERED_LIMIT, JSON, PAYLOAD_LIMIT
from tenuto.kernel.expression import (
    MAX_WORK,
    Budget,
    compile_expression,
    compile_template,
    evaluate,
    pattern_of,
)

from .build import decision, pause_for, scope, step
from .driver import Driver, given

COSTLY = "input.all(x, x + 0.5 > 0)"  # some 25 units for each item


def numbers(count: int) -> JSON:
    return list(range(count))


def code_of(source: str, value: JSON, limit: int = PAYLOAD_LIMIT) -> str:
    with pytest.raises(ExpressionError) as caught:
        evaluate(compile_expression(source), {"input": value}, limit=limit)
    assert repr(source) in caught.value.message
    return caught.value.code


# -- One budget for a turn ---------------------------------------------------------------------------------------------


def test_the_branches_of_a_decision_share_one_budget() -> None:
    branches = [(f"input.exists(x, x + {n}.5 < 0)", "a") for n in range(300)]
    run = given(decision("size", *branches), step("a"), mode="flow")
    run.start(numbers(2_000))
    run.expect("""
        started
        refused size@1 expression_too_costly -> fail
        closing . failed expression_too_costly
        review dead_letter size@1 (expression_too_costly)
        finished failed expression_too_costly
    """)
    failure = run.state.failure
    assert failure is not None
    assert failure.error_class == "NON_RETRYABLE"
    assert "input.exists(x, x + " in failure.summary


def test_a_loop_of_decisions_shares_one_budget() -> None:
    run = given(
        decision("a", ("input.exists(x, x + 0.5 < 0)", "$succeed"), default="b"),
        decision("b", ("false", "a"), default="a"),
        mode="flow",
    )
    run.start(numbers(1_000))
    assert run.state.failure is not None
    assert run.state.failure.code == "expression_too_costly"


def test_conditions_of_many_steps_share_one_budget_and_the_next_turn_has_its_own() -> None:
    run = given(
        step("first"),
        *(step(f"s{n}", when=COSTLY, failure_mode="continue") for n in range(60)),
        step("last", after=("first",), when=COSTLY),
        mode="dag",
    )
    run.start(numbers(1_000))
    refused = [line for line in run.lines() if line.startswith("refused")]
    assert 0 < len(refused) < 60
    assert all("expression_too_costly -> skip" in line for line in refused)
    run.succeed("first")
    assert "last/1" in run.lines()[-1]


def test_few_branches_over_a_long_list_are_affordable() -> None:
    run = given(
        decision("size", *[(f"size(input) < {n}", "a") for n in range(100)], ("true", "b")),
        step("a"),
        step("b"),
        mode="flow",
    )
    run.start([1] * 100_000)
    assert "branch size@1 -> b" in run.lines()[1]


def test_reading_is_charged_once_and_by_size() -> None:
    text = "x" * (MAX_WORK * 16 + 100)
    run = given(decision("size", ("input == ''", "a")), step("a"), mode="flow")
    run.start(text)
    assert run.lines()[1] == "refused size@1 expression_too_costly -> fail"
    run = given(decision("size", *[("input == ''", "a")] * 100, ("true", "a")), step("a"), mode="flow")
    run.start("x" * (MAX_WORK * 16 // 50))
    assert run.lines()[1].startswith("branch size@1 -> a")


def test_what_a_step_reads_is_read_again_when_it_changed() -> None:
    run = given(
        step("count", set_variable="n", on_success="more"),
        decision("more", ("variables.n > 1 && steps.count.result > 1", "$succeed"), default="count"),
        mode="flow",
    )
    run.start()
    run.succeed("count@1", result=1)
    run.succeed("count@2", result=2)
    assert run.state.status == "succeeded"


def test_the_results_of_a_fan_out_are_read_once_for_all_branches() -> None:
    branches = [(f"size(steps.n.result) < {n} || steps.n.result[0] == {n}", "a") for n in range(100)]
    run = given(
        step("n", foreach="input", on_success="size"),
        decision("size", *branches, ("true", "b")),
        step("a"),
        step("b"),
        mode="flow",
    )
    run.start(numbers(100))
    run.succeed(*(f"n@1#{index}" for index in range(100)), result="x" * 1_000)
    assert "branch size@1 -> b" in "\n".join(run.lines())


def test_the_key_that_a_step_leaves_has_a_budget_of_its_own() -> None:
    """Without it, another step with the same key would run as well."""
    after = [step(f"s{n}", after=("pay",), when=COSTLY, failure_mode="continue") for n in range(60)]
    run = given(step("pay", idempotency_key="${string(size(input))}"), *after, mode="dag")
    run.start(numbers(1_000))
    run.succeed("pay")
    assert run.state.marks


# -- Timers that are due together --------------------------------------------------------------------------------------


def waits(count: int) -> Driver:
    steps = [(pause_for(f"w{n}", 10), step(f"s{n}", after=(f"w{n}",), when=COSTLY)) for n in range(count)]
    return given(*(each for pair in steps for each in pair), mode="dag")


@pytest.mark.parametrize("late", ["tick", "taken"])
def test_timers_that_are_due_together_are_not_failed_for_the_work_of_all(late: str) -> None:
    run = waits(100)
    run.start(numbers(1_000))
    if late == "tick":
        run.tick_to(60_000)
    else:
        run.now += 60_000
        run.crash()
    turns = 1
    while run.state.timers:
        run.tick()
        turns += 1
    assert 2 < turns < 60
    assert not any("refused" in line for line in run.lines())
    assert sum(node.status == "running" for node in run.state.nodes.values() if node.path.startswith("s")) == 100


# -- Large fan-outs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "foreach", "suffix"),
    [
        (FAN_OUT_LIMIT, "input", None),
        (FAN_OUT_LIMIT, "input", "index"),
        (FAN_OUT_LIMIT, "input.filter(x, x > 0)", None),
        (FAN_OUT_LIMIT, "input.map(x, x)", "index"),
        (20_000, "input.filter(x, x > 0).map(x, x + 1)", "'c' + string(index)"),
    ],
)
def test_a_large_fan_out_is_affordable(count: int, foreach: str, suffix: str | None) -> None:
    run = given(step("n", foreach=foreach, suffix=suffix))
    run.start([1] * count)
    assert run.fan("n").count == count


def test_the_results_of_a_large_fan_out_are_an_output() -> None:
    run = given(step("n", foreach="input"), output="${steps.n.result}")
    run.start([1] * 100)
    run.succeed(*(f"n#{index}" for index in range(100)), result={"sent": True})
    assert run.state.status == "succeeded"


# -- Sizes -------------------------------------------------------------------------------------------------------------

TEXT = "x" * 3_000
LARGE: list[tuple[str, JSON]] = [
    ("input.map(a, input.map(b, input))", [TEXT] * 100),
    ("input.map(a, input)", ["x" * 10] * 1_000),
    ("[input, input].map(a, [a, a]).map(a, [a, a, a, a, a, a, a, a, a, a, a])", [TEXT, TEXT]),
    ("input + input", "x" * (PAYLOAD_LIMIT // 2 + 1)),
    ("input + input", [1] * (PAYLOAD_LIMIT // 2 + 1)),
    ("{'a': input, 'b': input}", "x" * (PAYLOAD_LIMIT // 2)),
    ("[[input]].map(a, {'k': a, 'l': a})", "x" * (PAYLOAD_LIMIT // 2)),
    ("input.map(x, {x: x})", ["k" * 200] * 1_000),
]


@pytest.mark.parametrize(("source", "value"), LARGE, ids=[source for source, _ in LARGE])
def test_what_an_expression_makes_is_bounded(source: str, value: JSON) -> None:
    assert code_of(source, value) == "expression_too_large"


def test_a_value_of_the_limit_can_be_made() -> None:
    source = compile_expression("[input]")
    assert evaluate(source, {"input": "x" * (PAYLOAD_LIMIT - 10)})
    assert code_of("[input]", "x" * PAYLOAD_LIMIT) == "expression_too_large"


def test_the_parts_of_a_template_are_bounded_together() -> None:
    part = "x" * 1_000
    many: JSON = {f"k{n}": "${input}" for n in range(300)}
    for value in (many, "${input} " * 300, ["${input}", many]):
        with pytest.raises(ExpressionError) as caught:
            compile_template(value).render({"input": part})
        assert caught.value.code == "expression_too_large"
        assert "'input'" in caught.value.message
    assert compile_template({"a": "${input}", "b": ["and ${input}"]}).render({"input": 1}) == {"a": 1, "b": ["and 1"]}
    assert compile_template("${input}").render({"input": part * 1_000}) == part * 1_000  # as it is: nothing is made


def test_a_template_shares_one_budget() -> None:
    budget = Budget()
    template = compile_template(["${input.map(x, x + 0.5)[0]}"] * 60)
    with pytest.raises(ExpressionError) as caught:
        template.render({"input": [1] * 1_000}, budget)
    assert caught.value.code == "expression_too_costly"
    assert budget.left == 0
    budget.left = 3
    with pytest.raises(ExpressionError) as caught:
        compile_template(["${input}", "${input}"]).render({"input": [1] * 100}, budget)
    assert caught.value.code == "expression_too_costly"


def test_the_items_of_a_fan_out_are_bounded() -> None:
    run = given(step("n", foreach="input.map(x, input)"))
    run.start([TEXT] * 100)
    assert run.lines()[1] == "refused n expression_too_large -> fail"
    run = given(step("n", foreach="[input]"))
    run.start("é" * (GATHERED_LIMIT - 100))
    assert run.lines()[1] == "refused n expression_too_large -> fail"


def test_an_output_is_bounded() -> None:
    run = given(step("a"), output=["${steps.a.result}", "${steps.a.result}"])
    run.start()
    run.succeed("a", result="x" * (GATHERED_LIMIT // 2))
    assert run.state.failure is not None
    assert run.state.failure.code == "expression_too_large"
    run = given(step("a"), output="${steps.a.result}")
    run.start()
    run.succeed("a", result="x" * GATHERED_LIMIT)
    assert run.state.failure is not None
    assert run.state.failure.code == "expression_too_large"
    run = given(step("a"), output=["${steps.a.result}", "${steps.a.result}"])
    run.start()
    run.succeed("a", result="x" * (PAYLOAD_LIMIT - 10))
    assert run.state.status == "succeeded"


# -- Units of work -----------------------------------------------------------------------------------------------------


def _half(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _half(each) if isinstance(each, list) else each
            for key, each in list(value.items())[: len(value) // 2 + 1]
        }
    return value[: len(value) // 2]


@pytest.mark.parametrize("source", [source for source, value in bounds.EXPRESSIONS.items() if len(value) > 3])  # type: ignore[arg-type]
def test_work_grows_with_what_is_read(source: str) -> None:
    value = bounds.EXPRESSIONS[source]
    assert bounds.work_of(source, value) > 1.8 * (bounds.work_of(source, _half(value)) - 50)


@pytest.mark.parametrize(
    ("light", "heavy"),
    [
        ("input.all(x, x > 0)", "input.all(x, x > 0 && x > 0)"),
        ("input.all(x, x + 1 > 0)", "input.all(x, x + 1 + 1 > 0)"),
        ("input.map(x, 1)", "input.map(x, [1])"),
        ("input.map(x, 1)", "input.map(x, {'a': 1})"),
        ("input.map(x, x)", "input.map(x, string(x))"),
        ("input.all(x, true)", "input.all(x, input[0] > 0)"),
        ("input.all(x, 'a'.matches('a'))", "input.all(x, 'a'.matches('a|[0-9]{5}'))"),
        ("input.all(x, x == 1)", "input.all(x, [x] == [1])"),
    ],
)
def test_an_operation_more_is_work_more_in_every_round(light: str, heavy: str) -> None:
    value: list[JSON] = [1] * 100
    assert bounds.work_of(heavy, value) > bounds.work_of(light, value) + 100


@pytest.mark.parametrize(
    ("light", "heavy"),
    [
        ("a", "[ab]"),
        ("[ab]", "[^a]"),
        (".", r"\d"),
        (r"[\d]", r"[a\w]"),
        (r"\d{2}", r"\d{3}"),
        (r"\d{2,3}", r"(\d{2}){2}"),
        ("a{10}", "(a{10}){10}"),
        (r"\w{3}", r"\w{11}"),
        (r"\w", r"\p{L}{2}"),
    ],
)
def test_a_pattern_that_takes_longer_to_compile_is_charged_more(light: str, heavy: str) -> None:
    assert pattern_of(heavy).compiling > pattern_of(light).compiling


@pytest.mark.parametrize(
    ("pattern", "is_ambiguous"),
    [
        ("^[ab]{30}$", False),
        ("[ab]{30}$", True),
        ("^[ab]{30,}$", True),
        ("^[ab]*[ab]{30}", True),
        ("^x|[ab]{30}", True),
        ("[ab]{5}", False),
        ("([ab]{4}x){3}c?", False),
        ("([ab]{4}x){4}c?", True),
        ("(((a)))).", False),
        ("a{0}[ab]{0}", False),
    ],
)
def test_a_pattern_that_must_be_simulated_is_known(pattern: str, is_ambiguous: bool) -> None:
    assert pattern_of(pattern).is_ambiguous is is_ambiguous


def test_a_costly_pattern_is_charged_by_the_text() -> None:
    assert code_of("input.matches('[ab]*a[ab]{16}[xc]y')", "ab" * 10_000) == "expression_too_costly"
    assert evaluate(compile_expression("input.matches('y')"), {"input": "ab" * 10_000}) is False


@pytest.mark.parametrize(
    "source",
    [
        "input.all(x, x == x)",
        "input.all(x, x <= x)",
        "input.all(x, x.startsWith(x))",
        "input.all(x, x.endsWith(x))",
        "input.all(x, double(x) > 0)",
    ],
)
def test_long_texts_are_charged_by_their_length(source: str) -> None:
    long: list[JSON] = ["1" * 100_000] * 1_000
    short: list[JSON] = ["1"] * 50
    assert code_of(source, long) in ("expression_too_costly", "expression_failed")
    assert bounds.work_of("input.all(x, x == x)", long[:50]) > 10 * bounds.work_of("input.all(x, x == x)", short)


@pytest.mark.parametrize("source", ["input.map(x, x + x - x)", "input.all(x, x * x > 0)", "input.map(x, string(x))"])
def test_integers_of_many_digits_are_charged(source: str) -> None:
    huge, small = 10**4000, 10
    work: list[int] = []
    for number in (huge, small):
        budget = Budget()
        with suppress(ExpressionError):
            evaluate(compile_expression(source), {"input": [number]}, budget)
        work.append(MAX_WORK - budget.left)
    assert work[0] > work[1] + 400


def test_a_turn_that_evaluates_nothing_has_no_budget_to_use_up() -> None:
    run = given(scope("inner", step("a")))
    run.start()
    run.succeed("inner/a")
    assert run.state.status == "succeeded"
    assert msgspec.json.decode(run.state.input) is None


def test_a_fact_between_waits_that_are_due_has_a_budget_of_its_own() -> None:
    run = given(
        *(pause_for(f"w{n}", 10) for n in range(60)),
        *(step(f"s{n}", after=(f"w{n}",), when=COSTLY) for n in range(60)),
        step("a"),
        *(step(f"b{n}", after=("a",), when=COSTLY) for n in range(20)),
        mode="dag",
    )
    run.start(numbers(1_000))
    run.now += 60_000
    run.succeed("a")  # some waits end before it, the others later
    while run.state.timers:
        run.tick()
    assert not any("refused" in line for line in run.lines())
    assert len(run.open()) == 80


def test_deadlines_fire_though_waits_are_left_for_the_next_turn() -> None:
    run = given(
        *(pause_for(f"w{n}", 10) for n in range(60)),
        *(step(f"s{n}", after=(f"w{n}",), when=COSTLY) for n in range(60)),
        step("t", timeout=20, timeout_ms=20, failure_mode="continue"),
        mode="dag",
    )
    run.start(numbers(1_000))
    run.tick_to(30)
    assert run.state.timers
    assert run.statuses()["t"] == "skipped"
    run.pause()
    run.tick_to(60_000)
    assert len(run.open()) < 60
    run.resume()
    while run.state.timers:
        run.tick()
    assert len(run.open()) == 60
