"""Scopes within scopes: how their steps follow one another, what a failure means at each level, what is skipped."""

from typing import Annotated, Any

import pytest

from tenuto import Engine, ExpandEach, FromStep, SagaBuilder, SagaContext, StepInputs
from tenuto.errors import DefinitionError, NonRetryableError, TransientError

from .conftest import MakeHarness
from .doubles import Stage, until
from .sagas import FAST

REFUSED = NonRetryableError("refused")


# -- Modes -------------------------------------------------------------------------------------------------------------


async def test_a_sequence_runs_one_after_another(engine: Engine) -> None:
    stage = Stage()
    first = stage.gate("first")
    builder = SagaBuilder("s").step("first", first.pass_through).step("second", stage.does("second"))
    engine.register(builder.group("work", "first", "second", mode="sequence").build())
    handle = await engine.start("s")
    await first.reached.wait()
    assert stage.log == []
    first.open()
    assert (await handle.result()).succeeded
    assert stage.log == ["first", "second"]


@pytest.mark.parametrize(("limit", "most"), [(0, 3), (2, 2), (1, 1)])
async def test_parallel_runs_all_at_once_within_its_bound(engine: Engine, limit: int, most: int) -> None:
    stage = Stage()
    gates = [stage.gate(str(n)) for n in range(3)]
    builder = SagaBuilder("s")
    for n, gate in enumerate(gates):
        builder.step(f"s{n}", gate.pass_through)
    engine.register(builder.group("work", "s0", "s1", "s2", mode="parallel", max_concurrency=limit).build())
    handle = await engine.start("s")
    for gate in gates[:most]:
        await gate.reached.wait()
    assert [gate.reached.is_set() for gate in gates] == [n < most for n in range(3)]
    for gate in gates:
        gate.open()
    assert (await handle.result()).succeeded


async def test_a_dag_in_a_group_follows_its_dependencies(engine: Engine) -> None:
    stage = Stage()

    async def last(first: Annotated[str, FromStep("first")]) -> None:
        stage.log.append(f"last after {first}")

    builder = SagaBuilder("s").step("last", last).step("first", stage.does("first"))
    engine.register(builder.group("work", "last", "first", mode="dag").build())
    assert (await engine.execute("s")).succeeded
    assert stage.log == ["first", "last after first"]


async def test_groups_that_cannot_be_are_refused(engine: Engine) -> None:
    stage = Stage()

    def builder() -> SagaBuilder:
        return SagaBuilder("s").step("a", stage.does("a")).step("b", stage.does("b"), depends_on=["a"])

    wrong = {
        "unknown_step": builder().group("g", "a", "nobody"),
        "two_groups": builder().group("g", "a").group("h", "a"),
        "not_before": builder().group("g", "b", "a"),
        "empty": builder().group("g"),
    }
    for code, bad in wrong.items():
        with pytest.raises(DefinitionError) as refused:
            engine.register(bad)
        assert code in [problem.code for problem in refused.value.problems]
    with pytest.raises(DefinitionError):
        engine.register(builder().group("g", "a", "b", mode="parallel"))


# -- Loops -------------------------------------------------------------------------------------------------------------


async def test_a_group_repeats_itself_until_its_condition_holds(engine: Engine) -> None:
    stage = Stage()
    drafts = stage.does("draft", 1, 2, 3)
    builder = (
        SagaBuilder("s", output="review").step("draft", drafts).step("review", stage.does("review", "no", "no", "yes"))
    )
    builder.group("work", "draft", "review", repeat_until="steps.review.result == 'yes'", max_visits=5)
    engine.register(builder.build())
    result = await engine.execute("s")

    assert (result.output, stage.log) == ("yes", ["draft", "review"] * 3)
    assert (result.result_of("draft"), result.steps["draft"].status) == (3, "succeeded")
    rows = await engine.get(result.execution_id).history()
    assert [row["path"] for row in rows][:3] == ["work@1/draft", "work@1/review", "work@2/draft"]


async def test_each_visit_has_a_key_of_its_own(engine: Engine) -> None:
    keys: list[str] = []

    async def draft(ctx: SagaContext) -> int:
        keys.append(ctx.idempotency_key)
        return len(keys)

    builder = SagaBuilder("s").step("draft", draft).group("work", "draft", repeat_until="steps.draft.result >= 3")
    engine.register(builder.build())
    assert (await engine.execute("s")).succeeded
    assert len(set(keys)) == 3


async def test_a_loop_is_bounded(engine: Engine) -> None:
    stage = Stage()
    builder = SagaBuilder("s").step("a", stage.does("a")).group("work", "a", repeat_until="false", max_visits=4)
    engine.register(builder.build())
    result = await engine.execute("s")
    assert (result.status, result.error and result.error["code"], stage.count("a")) == ("failed", "loop_limit", 4)


# -- What a failure means ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("C15")
async def test_fail_fast_closes_the_scope_and_all_above_it(engine: Engine) -> None:
    stage = Stage()
    slow = stage.gate("slow")

    async def fails() -> None:
        await slow.reached.wait()
        raise REFUSED

    builder = SagaBuilder("s").step("fails", fails).step("slow", slow.pass_through).step("next", stage.does("next"))
    builder.group("task", "slow", "next").group("agent", "task", "fails", mode="parallel")
    engine.register(builder.build())
    handle = await engine.start("s")
    await slow.reached.wait()
    slow.open()
    result = await handle.result()
    assert (result.status, stage.log) == ("failed", ["slow"]), "what ran was awaited, nothing was begun"
    assert {step["step_id"]: step["status"] for step in (await handle.status())["steps"]} == {
        "fails": "failed",
        "slow": "succeeded",
        "next": "skipped",
        "task": "canceled",
        "agent": "failed",
    }


@pytest.mark.requirement("C15")
@pytest.mark.parametrize("level", ["step", "task", "agent"])
async def test_continue_passes_over_what_failed_at_its_level(engine: Engine, level: str) -> None:
    """step → task → agent → run: the level that says `continue` stops the failure."""
    stage = Stage()

    def mode(of: str) -> Any:
        return "continue" if of == level else "fail_fast"

    builder = SagaBuilder("s").step("fails", stage.fails("fails", REFUSED), failure_mode=mode("step"))
    builder.step("beside", stage.does("beside")).step("other", stage.does("other")).step("last", stage.does("last"))
    builder.group("task", "fails", "beside", failure_mode=mode("task"))
    builder.group("agent", "task", "other", failure_mode=mode("agent"))
    builder.group("run", "agent", "last")
    engine.register(builder.build())
    result = await engine.execute("s")

    went_on = {
        "step": ["fails", "beside", "other", "last"],
        "task": ["fails", "beside", "other", "last"],
        "agent": ["fails", "other", "last"],
    }
    assert (result.status, stage.log) == ("succeeded", went_on[level])


@pytest.mark.requirement("C15")
async def test_retry_runs_the_scope_again_and_keeps_the_earlier_attempts(make_harness: MakeHarness) -> None:
    stage = Stage()
    builder = (
        SagaBuilder("s")
        .step("a", stage.does("a"))
        .step("b", stage.does("b", TransientError(), TransientError()), retry=0)
    )
    t = await make_harness(builder.group("task", "a", "b", failure_mode="retry", max_rounds=3).build())
    result = await t.execute("s")
    assert (result.status, stage.log) == ("succeeded", ["a", "b"] * 3)
    rows = await t.get(result.execution_id).history()
    assert [(row["step_id"], row["attempt_number"], row["status"]) for row in rows] == [
        ("a", 1, "succeeded"),
        ("b", 1, "failed"),
        ("a", 2, "succeeded"),
        ("b", 2, "failed"),
        ("a", 3, "succeeded"),
        ("b", 3, "succeeded"),
    ]


@pytest.mark.requirement("C15")
async def test_retry_is_for_retryable_classes_only(make_harness: MakeHarness) -> None:
    stage = Stage()
    builder = SagaBuilder("s").step("a", stage.fails("a", REFUSED))
    t = await make_harness(builder.group("task", "a", failure_mode="retry").build())
    assert (await t.execute("s")).status == "failed"
    assert stage.log == ["a"]


@pytest.mark.requirement("C15")
async def test_one_budget_caps_the_retries_of_all_levels(make_harness: MakeHarness) -> None:
    """Three levels of three rounds would be 27 executions; the execution has 20 retries, or what it says."""
    stage = Stage()
    t = await make_harness()
    t.handler("a", stage.fails("a", TransientError()))
    task: dict[str, Any] = {"step_id": "a", "handler": "a", "idempotency_strategy": "SAFE_TO_RETRY"}
    task["retry_policy"] = {"max_attempts": 1}
    node = task
    for level in ("task", "agent", "team", "run"):
        node = {"step_id": level, "type": "scope", "children": [node], "failure_mode": "retry"}
    for version, (policies, most) in enumerate([({}, 21), ({"retry_budget": 5}, 6)], 1):
        stage.log.clear()
        await t.apply({"name": "doc", "version": version, "mode": "sequence", "steps": [node], "policies": policies})
        assert (await t.execute("doc")).status == "failed"
        assert stage.count("a") == most


@pytest.mark.requirement("C15")
async def test_a_failure_that_is_passed_over_undoes_nothing(engine: Engine) -> None:
    stage = Stage()
    builder = SagaBuilder("s").step("a", stage.does("a"), compensate=stage.does("undo a"))
    builder.step("b", stage.fails("b", REFUSED), failure_mode="continue", depends_on=["a"])
    engine.register(builder.build())
    assert (await engine.execute("s")).status == "succeeded"
    assert stage.log == ["a", "b"]


@pytest.mark.requirement("C15")
async def test_undoing_reaches_into_scopes(engine: Engine) -> None:
    stage = Stage()
    builder = SagaBuilder("s")
    for id in ("a", "b"):
        builder.step(id, stage.does(id), compensate=stage.does(f"undo {id}"))
    builder.step("c", stage.fails("c", REFUSED), depends_on=["work"]).group("work", "a", "b")
    engine.register(builder.build())
    result = await engine.execute("s")
    assert (result.status, stage.log) == ("failed", ["a", "b", "c", "undo b", "undo a"])
    assert result.compensated_steps == ["b", "a"]


# -- Skipping ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("C16")
async def test_what_its_condition_does_not_want_is_skipped_and_its_dependents_run_with_none(engine: Engine) -> None:
    seen: list[Any] = []

    async def use(given: Annotated[str | None, FromStep("maybe")]) -> None:
        seen.append(given)

    builder = SagaBuilder("s").step("maybe", Stage().does("maybe"), when="input.wanted").step("use", use)
    engine.register(builder.build())
    skipped = await engine.execute("s", {"wanted": False})
    done = await engine.execute("s", {"wanted": True})

    assert seen == [None, "maybe"]
    assert (skipped.status, skipped.steps["maybe"].status, skipped.result_of("maybe")) == ("succeeded", "skipped", None)
    assert done.steps["maybe"].status == "succeeded"


@pytest.mark.requirement("C16")
async def test_conditions_read_input_steps_variables_and_context(engine: Engine) -> None:
    stage = Stage()
    conditions = {
        "by_input": "input.amount > 1000",
        "by_step": "steps.first.result == 'x'",
        "by_status": "steps.first.status == 'succeeded'",
        "by_variable": "variables.v == 3",
        "by_context": "context.tenant == 'acme'",
        "not_wanted": "size(input.list) > 5",
    }
    builder = SagaBuilder("s").step("first", stage.does("first", "x"))
    for id, condition in conditions.items():
        builder.step(id, stage.does(id), when=condition, depends_on=["first"])
    engine.register(builder.build())
    result = await engine.execute("s", {"amount": 1001, "list": [1]}, variables={"v": 3}, tenant="acme")
    assert sorted(stage.log[1:]) == sorted(set(conditions) - {"not_wanted"})
    assert result.steps["not_wanted"].status == "skipped"


@pytest.mark.requirement("C16")
async def test_a_condition_that_cannot_be_evaluated_fails_its_step(engine: Engine) -> None:
    stage = Stage()
    engine.register(SagaBuilder("s").step("a", stage.does("a"), when="input.nothing.here > 1").build())
    result = await engine.execute("s", {})
    assert (result.status, result.steps["a"].error_class, stage.log) == ("failed", "NON_RETRYABLE", [])


@pytest.mark.requirement("C16")
async def test_a_group_and_all_in_it_can_be_skipped(engine: Engine) -> None:
    stage = Stage()
    builder = (
        SagaBuilder("s")
        .step("a", stage.does("a"))
        .step("b", stage.does("b"))
        .step("then", stage.does("then"), depends_on=["work"])
    )
    engine.register(builder.group("work", "a", "b", when="false").build())
    result = await engine.execute("s")
    assert (result.status, stage.log) == ("succeeded", ["then"])
    assert [result.steps[id].status for id in "ab"] == ["skipped", "skipped"]


def needs_a(stage: Stage, **options: Any) -> SagaBuilder:
    """`a` fails; `reads` takes its result, `other` does not."""

    async def reads(a: Annotated[str | None, FromStep("a")]) -> None:
        stage.log.append(f"reads {a}")

    builder = SagaBuilder("s").step("a", stage.fails("a", REFUSED), **options).step("reads", reads)
    return builder.step("other", stage.does("other"))


@pytest.mark.requirement("C16")
async def test_what_needs_a_result_is_skipped_with_what_its_scope_passed_over(engine: Engine) -> None:
    stage = Stage()
    builder = needs_a(stage).group("work", "a", "reads", "other", mode="dag", failure_mode="continue")
    engine.register(builder.build())
    result = await engine.execute("s")
    assert (result.status, sorted(stage.log)) == ("succeeded", ["a", "other"])
    assert [result.steps[id].status for id in ("a", "reads", "other")] == ["skipped", "skipped", "succeeded"]
    assert result.steps["a"].error == "refused"


@pytest.mark.requirement("C16")
async def test_a_step_that_says_continue_is_optional_and_its_dependents_run_with_none(engine: Engine) -> None:
    stage = Stage()
    engine.register(needs_a(stage, failure_mode="continue").build())
    result = await engine.execute("s")
    assert (result.status, result.outcome) == ("succeeded", "partial")
    assert sorted(stage.log) == ["a", "other", "reads None"]
    assert [result.steps[id].status for id in ("a", "reads")] == ["skipped", "succeeded"]


@pytest.mark.requirement("C16")
async def test_a_scope_whose_children_are_all_skipped_is_skipped(engine: Engine) -> None:
    stage = Stage()
    for name, fail_if_empty, status in (("may", False, "succeeded"), ("must", True, "failed")):
        engine.handler("a", stage.does("a"))
        task = {"step_id": "a", "handler": "a", "idempotency_strategy": "SAFE_TO_RETRY", "when": "false"}
        scope = {"step_id": "work", "type": "scope", "children": [task], "fail_if_empty": fail_if_empty}
        await engine.apply({"name": name, "mode": "sequence", "steps": [scope]})
        result = await engine.execute(name)
        assert result.status == status
        if not fail_if_empty:
            assert result.outcome == "skipped"


# -- The tree ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("B17")
async def test_every_step_knows_its_place_and_counts_add_up(engine: Engine) -> None:
    """run → agent → task → step: no orphans, and a fan-out is one entry with its counts."""
    stage = Stage()

    async def items() -> list[int]:
        return [1, 2, 3]

    async def work(item: int) -> int:
        if item == 2:
            raise REFUSED
        return item

    builder = SagaBuilder("s").step("items", items)
    builder.step("work", work, foreach="steps.items.result", failure_mode="continue", retry=FAST)
    builder.step("note", stage.does("note"))
    builder.group("task", "items", "work").group("other", "note").group("agent", "task", "other", mode="parallel")
    engine.register(builder.build())
    result = await engine.execute("s")
    document = await engine.get(result.execution_id).status()

    places = {step["step_id"]: step["path"] for step in document["steps"]}
    assert places == {
        "agent": "agent",
        "task": "agent/task",
        "items": "agent/task/items",
        "work": "agent/task/work",
        "other": "agent/other",
        "note": "agent/other/note",
    }
    parents = {path.rpartition("/")[0] for path in places.values()} - {""}
    assert parents <= set(places.values()), "no orphans"
    clones = next(step["clones"] for step in document["steps"] if step["step_id"] == "work")
    assert clones == {"total": 3, "pending": 0, "running": 0, "succeeded": 2, "failed": 0, "skipped": 1}
    assert {step["status"] for step in document["steps"]} == {"succeeded"}


@pytest.mark.requirement("B17")
async def test_counts_follow_what_happens(engine: Engine) -> None:
    gate = Stage().gate("work")

    async def work(item: int) -> None:
        if item:
            await gate.pass_through()

    engine.register(SagaBuilder("s").step("work", work, max_concurrency=2).build())
    handle = await engine.start("s", StepInputs({"work": ExpandEach([0, 1, 2, 3])}))
    await gate.reached.wait()
    document = await until(handle, lambda found: found["steps"][0]["clones"]["succeeded"] == 1)
    assert document["steps"][0]["clones"] == {
        "total": 4,
        "pending": 1,
        "running": 2,
        "succeeded": 1,
        "failed": 0,
        "skipped": 0,
    }
    gate.open()
    result = await handle.result()
    assert sum(clone.status == "succeeded" for clone in result.steps["work"].clones) == 4
