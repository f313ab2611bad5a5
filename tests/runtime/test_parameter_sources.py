"""Where a handler's values come from: other steps, in whatever scope, loop or fan-out they stand."""

from typing import Annotated, Any

import pytest

from tenuto import (
    ExpandEach,
    FromCompensationError,
    FromCompensationResult,
    FromStep,
    Input,
    Result,
    Saga,
    SagaBuilder,
    SagaContext,
    StepInputs,
    Variable,
    group,
    saga,
    step,
)
from tenuto.errors import NonRetryableError
from tenuto.testing import Harness


@saga("nested", output="after")
class Nested(Saga[int, str]):
    @step
    async def first(self, n: int) -> int:
        return n

    @step
    async def inner(self, first: Annotated[int, FromStep(first)]) -> str:
        return f"inner {first}"

    @step
    async def beside(self, inner: Annotated[str, FromStep(inner)]) -> str:
        return f"beside {inner}"

    work = group(inner, beside, mode="sequence", depends_on=[first])

    @step(depends_on=[work])
    async def after(self, inner: Annotated[str, FromStep(inner)], ctx: SagaContext) -> str:
        return f"{inner}, {ctx.result_of('beside')}, {ctx.result_of(Nested.first)}"


async def test_results_are_found_in_scopes_beside_above_and_below() -> None:
    async with Harness(Nested()) as t:
        result = await t.execute(Nested, 3)
        assert result.output == "inner 3, beside inner 3, 3"
        assert list(result.steps) == ["first", "inner", "beside", "after"]


@saga("repeated", output="last")
class Repeated(Saga[int, int]):
    def __init__(self) -> None:
        self.rounds = 0

    @step
    async def count(self) -> int:
        self.rounds += 1
        return self.rounds

    loop = group(count, repeat_until="steps.count.result >= 3")

    @step(depends_on=[loop])
    async def last(self, count: Annotated[int, FromStep(count)]) -> int:
        return count


async def test_of_a_loop_the_latest_visit_counts() -> None:
    async with Harness(Repeated()) as t:
        result = await t.execute(Repeated, 0)
        assert result.output == 3
        assert result.result_of(Repeated.count) == 3
        rows = await t.get(result.execution_id).history()
        assert [row["path"] for row in rows] == ["loop@1/count", "loop@2/count", "loop@3/count", "last"]


def _handled(id: str, **more: Any) -> dict[str, Any]:
    return {"step_id": id, "type": "task", "handler": "echo", "idempotency_strategy": "SAFE_TO_RETRY", **more}


async def echo(value: Any) -> Any:
    return value


async def test_of_a_flow_the_latest_visit_counts() -> None:
    document = {
        "name": "flow",
        "steps": [
            _handled("draft", **{"with": {"n": "${input.n}"}}, on_success="again"),
            {
                "step_id": "again",
                "type": "decision",
                "branches": [{"when": "has(variables.seen)", "next": "end"}],
                "default": "mark",
            },
            _handled("mark", **{"with": "${steps.draft.result.n}"}, set_variable="seen", on_success="draft"),
            _handled("end", **{"with": "${string(steps.draft.result.n)} ${variables.seen} ${context.step_id}"}),
        ],
    }
    async with Harness() as t:
        t.handler("echo", echo)
        await t.apply(document)
        result = await t.execute("flow", {"n": 4})
        assert result.output == "4 4 end"
        rows = await t.get(result.execution_id).history()
        assert [row["path"] for row in rows] == ["draft@1", "again@1", "mark@1", "draft@2", "again@2", "end@1"]


async def test_items_and_indexes_reach_templates() -> None:
    document = {
        "name": "fan",
        "mode": "dag",
        "steps": [
            _handled("list", **{"with": ["a", "b"]}),
            _handled("each", **{"with": "${item}${index}"}, foreach="steps.list.result", depends_on=["list"]),
        ],
        "output": "${steps.each.result}",
    }
    async with Harness() as t:
        t.handler("echo", echo)
        await t.apply(document)
        assert (await t.execute("fan", {})).output == ["a0", "b1"]


async def test_compensations_read_input_result_and_each_other() -> None:
    seen: list[Any] = []

    async def work(n: int) -> str:
        return f"made {n}"

    async def undo_first(
        given: Annotated[int, Input],
        made: Annotated[str | None, Result],
        other: Annotated[int | None, FromCompensationResult("second")],
        error: Annotated[Exception | None, FromCompensationError("third")],
    ) -> None:
        seen.append((given, made, other, str(error)))

    async def undo_second(made: Annotated[str | None, Result]) -> int:
        return len(made or "")

    async def undo_third() -> None:
        raise NonRetryableError("cannot be undone")

    async def refuse() -> None:
        raise NonRetryableError("no")

    saga = (
        SagaBuilder("s", compensation="best_effort_parallel", scheduling="eager")
        .step("first", work, compensate=undo_first)
        .step("second", work, compensate=undo_second, depends_on=["first"])
        .step("third", work, compensate=undo_third, depends_on=["second"])
        .step("fourth", refuse, depends_on=["third"])
    )
    async with Harness(saga) as t:
        result = await t.execute("s", 7)
        assert result.status == "waiting_approval"
        assert result.steps["third"].compensation_error == "cannot be undone"
    assert seen == [(7, "made 7", 6, "cannot be undone")]


async def test_clones_are_undone_one_by_one_with_their_own_items() -> None:
    undone: list[tuple[str, str | None]] = []

    async def send(to: str) -> str:
        return f"sent to {to}"

    async def unsend(to: Annotated[str, Input], sent: Annotated[str | None, Result]) -> str:
        undone.append((to, sent))
        return f"unsent {to}"

    async def refuse() -> None:
        raise NonRetryableError("no")

    saga = SagaBuilder("s").step("send", send, compensate=unsend).step("end", refuse, depends_on=["send"])
    async with Harness(saga) as t:
        result = await t.execute("s", StepInputs({"send": ExpandEach(["ann", "bob"])}))
        assert sorted(undone) == [("ann", "sent to ann"), ("bob", "sent to bob")]
        assert sorted(result.compensated_steps) == ["send#0", "send#1"]
        assert result.steps["send"].compensated
        assert [clone.compensation_result for clone in result.steps["send"].clones] == ["unsent ann", "unsent bob"]
        assert [clone.result for clone in result.steps["send"].clones] == ["sent to ann", "sent to bob"]


async def test_a_variable_is_set_by_one_step_and_read_by_another() -> None:
    async def make() -> int:
        return 5

    async def read(n: Annotated[int | None, Variable("n")]) -> int | None:
        return n

    saga = SagaBuilder("s", output="b").step("a", make, set_variable="n").step("b", read, depends_on=["a"])
    async with Harness(saga) as t:
        assert (await t.execute("s")).output == 5


async def test_steps_without_an_input_of_their_own_have_none() -> None:
    async def take(value: int | None) -> int | None:
        return value

    saga = SagaBuilder("s").step("a", take).step("b", take)
    async with Harness(saga) as t:
        result = await t.execute("s", StepInputs({"a": 1}))
        assert (result.result_of("a"), result.result_of("b")) == (1, None)
        both = await t.execute("s", 2)
        assert (both.result_of("a"), both.result_of("b")) == (2, 2)


PLANNED = {
    "name": "planned",
    "mode": "dag",
    "policies": {"planner": "plan"},
    "steps": [],
}


async def test_children_that_a_planner_added_run_and_are_shown() -> None:
    async def plan() -> list[dict[str, Any]]:
        return [_handled("a", **{"with": 1}), _handled("b", **{"with": "${steps.a.result + 1}"}, depends_on=["a"])]

    async with Harness() as t:
        t.handler("echo", echo)
        t.handler("plan", plan)
        await t.apply(PLANNED)
        result = await t.execute("planned", {})
        assert result.status == "succeeded", result.report()
        assert {id: step.result for id, step in result.steps.items()} == {"a": 1, "b": 2}
        rows = await t.get(result.execution_id).history()
        assert [(row["kind"], row["path"]) for row in rows] == [("plan", ""), ("forward", "a"), ("forward", "b")]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_lost_worker_of_a_queue_is_a_timeout(when: Any) -> None:
    async def work() -> str:
        return "done"

    async with Harness(SagaBuilder("s").step("a", work, queue="gpu"), queues=["gpu"]) as t:
        t.crash("a", when=when)
        result = await t.execute("s")
        assert result.succeeded
        assert result.steps["a"].attempts == 2
