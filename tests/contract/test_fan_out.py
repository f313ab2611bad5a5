"""Fan-outs: a step once for each item, given with the input or found by an earlier step."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from tenuto import (
    Engine,
    ExpandEach,
    FromStep,
    Result,
    Saga,
    SagaBuilder,
    SagaContext,
    StepInputs,
    saga,
    step,
)
from tenuto.errors import DefinitionError, InvalidInput, NonRetryableError

from .conftest import MakeEngine
from .doubles import Stage
from .sagas import FAST


@dataclass(frozen=True)
class Person:
    email: str


PEOPLE = [Person("ann@x"), Person("bob@x"), Person("cid@x")]


@saga("mailing", output="report")
class Mailing(Saga[Any, int]):
    """Prepares, sends to each, and reports. Who is called `bad…` cannot be sent to."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def tear_down(self) -> None:
        self.log.append("tear down")

    async def recall(self, receipt: Annotated[str, Result]) -> str:
        self.log.append(f"recall {receipt}")
        return f"recalled {receipt}"

    @step(compensate=tear_down)
    async def prepare(self) -> dict[str, list[Person]]:
        return {"people": PEOPLE}

    @step(depends_on=[prepare], compensate=recall, retry=0, max_concurrency=1)
    async def notify(self, person: Person) -> str:
        if person.email.startswith("bad"):
            raise NonRetryableError(f"no such address: {person.email[:3]}")
        self.log.append(f"notify {person.email}")
        return person.email

    @step
    async def report(self, sent: Annotated[list[str | None], FromStep(notify)]) -> int:
        self.log.append("report")
        return len(sent)


@pytest.mark.requirement("E12")
async def test_a_step_is_run_once_for_each_item_that_is_given(make_engine: MakeEngine) -> None:
    """Clones are named by their index. What depends on the step waits for all of them, and gets the list."""
    mailing = Mailing()
    engine = await make_engine(mailing)

    result = await engine.execute(Mailing, StepInputs({Mailing.notify: ExpandEach(PEOPLE)}))

    assert mailing.log == ["notify ann@x", "notify bob@x", "notify cid@x", "report"]
    assert [clone.id for clone in result.steps["notify"].clones] == ["notify#0", "notify#1", "notify#2"]
    assert result.results_of(Mailing.notify) == result.steps["notify"].result == ["ann@x", "bob@x", "cid@x"]
    assert result.steps["notify#1"].result == "bob@x"
    assert result.output == 3


@pytest.mark.requirement("E12")
async def test_clones_are_named_by_a_suffix(engine: Engine) -> None:
    engine.register(Mailing())
    people = ExpandEach(PEOPLE, suffix=lambda person: person.email)
    result = await engine.execute(Mailing, StepInputs({"notify": people}))

    assert [clone.id for clone in result.steps["notify"].clones] == ["notify#ann@x", "notify#bob@x", "notify#cid@x"]
    assert result.steps["notify#bob@x"].result == "bob@x"
    rows = await engine.get(result.execution_id).history()
    assert [row["step_id"] for row in rows] == ["prepare", "notify#ann@x", "notify#bob@x", "notify#cid@x", "report"]


@pytest.mark.requirement("E12")
@pytest.mark.parametrize("suffix", ["", " ", "same"])
async def test_a_blank_or_repeated_suffix_is_refused(engine: Engine, suffix: str) -> None:
    engine.register(Mailing())
    with pytest.raises(InvalidInput, match="item"):
        await engine.start(Mailing, StepInputs({"notify": ExpandEach(PEOPLE, suffix=lambda _: suffix)}))
    assert await engine.count() == {}


FROM_STEP: dict[str, dict[str, Any]] = {
    "expression": {"foreach": "steps.prepare.result.people"},
    "ExpandEach": {"foreach": ExpandEach.from_step("prepare", "result.people")},
    "suffix": {"foreach": "steps.prepare.result.people", "suffix": "item.email"},
}


@pytest.mark.requirement("E12")
@pytest.mark.parametrize("form", FROM_STEP)
async def test_a_step_is_run_once_for_each_item_of_an_earlier_result(engine: Engine, form: str) -> None:
    mailing = Mailing()
    builder = SagaBuilder("s", output="report").step("prepare", mailing.prepare)
    builder.step("notify", mailing.notify, **FROM_STEP[form])

    async def report(sent: Annotated[list[str], FromStep("notify")]) -> list[str]:
        return sent

    engine.register(builder.step("report", report).build())
    result = await engine.execute("s")

    assert result.output == ["ann@x", "bob@x", "cid@x"]
    names = ["ann@x", "bob@x", "cid@x"] if form == "suffix" else ["0", "1", "2"]
    assert [clone.id for clone in result.steps["notify"].clones] == [f"notify#{name}" for name in names]


@pytest.mark.requirement("E12")
async def test_an_empty_list_skips_the_step_and_its_dependents_run_with_an_empty_list(engine: Engine) -> None:
    mailing = Mailing()
    engine.register(mailing)
    result = await engine.execute(Mailing, StepInputs({"notify": ExpandEach([])}))

    assert (result.status, result.steps["notify"].status) == ("succeeded", "skipped")
    assert (result.output, mailing.log, result.results_of("notify")) == (0, ["report"], [])


@pytest.mark.requirement("E12")
async def test_one_clone_can_be_read_alone(engine: Engine) -> None:
    async def items() -> list[int]:
        return [10, 20, 30]

    async def double(item: int) -> int:
        return 2 * item

    async def second(value: Annotated[int, FromStep("double#1")], ctx: SagaContext) -> list[Any]:
        return [value, ctx.result_of("double")]

    builder = (
        SagaBuilder("s", output="second").step("items", items).step("double", double, foreach="steps.items.result")
    )
    engine.register(builder.step("second", second).build())
    assert (await engine.execute("s")).output == [40, [20, 40, 60]]


@pytest.mark.requirement("E12")
async def test_each_clone_has_a_key_and_attempts_of_its_own(engine: Engine) -> None:
    keys: dict[int, list[str]] = {0: [], 1: []}

    async def work(item: int, ctx: SagaContext) -> None:
        keys[item].append(ctx.idempotency_key)
        if item == 1 and ctx.attempt < 3:
            raise ConnectionError

    engine.register(SagaBuilder("s").step("work", work, retry=FAST).build())
    result = await engine.execute("s", StepInputs({"work": ExpandEach([0, 1])}))

    assert [clone.attempts for clone in result.steps["work"].clones] == [1, 3]
    assert [len(found) for found in keys.values()] == [1, 3]
    assert [len(set(found)) for found in keys.values()] == [1, 1]
    assert keys[0][0] != keys[1][0]


@pytest.mark.requirement("E12")
async def test_a_fan_out_that_cannot_be_is_refused(engine: Engine) -> None:
    stage = Stage()
    wrong: list[dict[str, Any]] = [
        {"foreach": ExpandEach([1, 2])},  # items are given when it is started
        {"foreach": "steps.nobody.result"},
        {"suffix": "item.email"},  # names the clones of nothing
    ]
    for options in wrong:
        with pytest.raises(DefinitionError):
            engine.register(SagaBuilder("s").step("a", stage.does("a"), **options))
    engine.register(Mailing())
    with pytest.raises(InvalidInput):
        await engine.start(Mailing, StepInputs({"notify": ExpandEach.from_step("prepare", "result.people")}))
    with pytest.raises(InvalidInput):
        await engine.start(Mailing, StepInputs({"notify": ExpandEach(["not a person"])}))


@pytest.mark.requirement("E12")
async def test_items_that_are_no_list_fail_the_step(engine: Engine) -> None:
    builder = (
        SagaBuilder("s")
        .step("find", Stage().does("find", "text"))
        .step("each", Stage().does("x"), foreach="steps.find.result")
    )
    engine.register(builder.build())
    result = await engine.execute("s")
    assert (result.status, result.steps["each"].error_class) == ("failed", "NON_RETRYABLE")


@pytest.mark.requirement("E13")
async def test_each_completed_clone_is_undone_before_what_is_upstream(make_engine: MakeEngine) -> None:
    mailing = Mailing()
    engine = await make_engine(mailing)
    people = [Person("ann@x"), Person("bob@x"), Person("bad@x"), Person("eve@x")]

    result = await engine.execute(Mailing, StepInputs({"notify": ExpandEach(people)}))

    assert result.status == "failed"
    assert mailing.log == ["notify ann@x", "notify bob@x", "recall bob@x", "recall ann@x", "tear down"]
    assert [clone.status for clone in result.steps["notify"].clones] == ["succeeded", "succeeded", "failed", "skipped"]
    assert [clone.compensated for clone in result.steps["notify"].clones] == [True, True, False, False]
    assert result.compensated_steps == ["notify#1", "notify#0", "prepare"]
    assert result.failed_steps == ["notify#2"]
    assert result.steps["notify#0"].compensation_result == "recalled ann@x"


@pytest.mark.requirement("E13")
async def test_a_failed_step_after_the_fan_out_undoes_all_clones(engine: Engine) -> None:
    mailing = Mailing()
    builder = SagaBuilder("s").step("prepare", mailing.prepare, compensate=mailing.tear_down)
    builder.step("notify", mailing.notify, foreach="steps.prepare.result.people", compensate=mailing.recall)
    builder.step("fail", Stage().fails("x", NonRetryableError()), depends_on=["notify"])
    engine.register(builder.build())

    result = await engine.execute("s")

    assert result.steps["notify"].compensated
    assert sorted(mailing.log[3:6]) == ["recall ann@x", "recall bob@x", "recall cid@x"]
    assert mailing.log[6:] == ["tear down"]


@pytest.mark.requirement("E12")
async def test_a_clone_that_fails_may_be_passed_over(engine: Engine) -> None:
    """With `failure_mode="continue"` the others go on, and it leaves None in the list."""
    mailing = Mailing()

    async def report(sent: Annotated[list[str | None], FromStep("notify")]) -> list[str | None]:
        return sent

    builder = SagaBuilder("s", output="report").step("notify", mailing.notify, failure_mode="continue")
    engine.register(builder.step("report", report).build())
    people = [Person("ann@x"), Person("bad@x"), Person("cid@x")]
    result = await engine.execute("s", StepInputs({"notify": ExpandEach(people)}))

    assert (result.status, result.outcome) == ("succeeded", "partial")
    assert result.output == ["ann@x", None, "cid@x"]
    assert [clone.status for clone in result.steps["notify"].clones] == ["succeeded", "skipped", "succeeded"]
    assert result.steps["notify#1"].error == "no such address: bad"


@pytest.mark.requirement("E14")
@pytest.mark.parametrize(
    ("saga_limit", "step_limit", "most"), [(0, 0, 6), (0, 2, 2), (3, 0, 3), (3, 2, 2)], ids=lambda limit: str(limit)
)
async def test_clones_are_bounded_by_their_step_and_by_the_layer(
    engine: Engine, saga_limit: int, step_limit: int, most: int
) -> None:
    now = peak = started = 0
    enough = asyncio.Event()

    async def work(item: int) -> None:
        nonlocal now, peak, started
        now, started = now + 1, started + 1
        peak = max(peak, now)
        if now == most or started == 6:
            enough.set()  # as many as may run at once do: the first of them waited for that
        await enough.wait()
        now -= 1

    builder = SagaBuilder("s", layer_concurrency=saga_limit)
    engine.register(builder.step("work", work, max_concurrency=step_limit).build())
    assert (await engine.execute("s", StepInputs({"work": ExpandEach(range(6))}))).succeeded
    assert (peak, started) == (most, 6)


@pytest.mark.requirement("E14")
async def test_a_layer_runs_no_more_steps_than_it_may(engine: Engine) -> None:
    stage = Stage()
    gates = [stage.gate(f"s{n}") for n in range(3)]
    builder = SagaBuilder("s", layer_concurrency=1)
    for n, gate in enumerate(gates):
        builder.step(f"s{n}", gate.pass_through)
    engine.register(builder.build())

    handle = await engine.start("s")
    for n, gate in enumerate(gates):
        await gate.reached.wait()
        assert not any(other.reached.is_set() for other in gates[n + 1 :])
        gate.open()
    assert (await handle.result()).succeeded
