"""A clone has one id, wherever it is shown, and that id can be given back: to approve, to reject, to retry."""

from typing import Annotated, Any

import pytest

from tenuto import Engine, ExpandEach, FromStep, SagaBuilder, StepInputs
from tenuto.errors import CompensationRequiredError, InvalidTransition, NonRetryableError, NotFound

from .doubles import until_blocked

# Each looks like the index of the other, or like something in an address.
LABELS = ["1", "0", "ann@x.org/home:2#b"]
FORMS = ["given", "found"]


async def saga_of(engine: Engine, form: str, error: type[Exception], labels: list[str]) -> Any:
    """Starts one whose step `notify` has a clone for each label; each ends in that error."""
    mended: list[str] = []

    async def prepare() -> list[dict[str, str]]:
        return [{"name": name} for name in labels]

    async def notify(person: dict[str, str]) -> str:
        if person["name"] not in mended:
            mended.append(person["name"])
            raise error("no")
        return person["name"]

    async def undo() -> None: ...

    options: dict[str, Any] = {"compensate": undo, "retry": 0, "max_concurrency": 1}
    if error is CompensationRequiredError:
        options["failure_mode"] = "continue"
    if form == "found":
        options |= {"foreach": "steps.prepare.result", "suffix": "item.name"}
    builder = SagaBuilder("s").step("prepare", prepare).step("notify", notify, depends_on=["prepare"], **options)
    engine.register(builder.build())
    items = ExpandEach([{"name": name} for name in labels], suffix=lambda item: item["name"])
    return await engine.start("s", StepInputs({"notify": items}) if form == "given" else None)


async def steps_of(engine: Engine) -> list[str]:
    return sorted([row["step_id"] async for row in engine.reviews()])


@pytest.mark.requirement("E12")
@pytest.mark.parametrize("form", FORMS)
async def test_what_waits_for_a_person_is_called_as_in_the_history_and_decided_by_that(
    engine: Engine, form: str
) -> None:
    handle = await saga_of(engine, form, CompensationRequiredError, LABELS)
    blocked = await until_blocked(handle, "compensation_required")

    names = [f"notify#{label}" for label in LABELS]
    assert [row["step_id"] for row in await handle.history() if "#" in row["path"]] == names
    assert await steps_of(engine) == sorted(names)
    assert (blocked["waiting_for"], (await handle.result()).blocked["waiting_for"]) == (names[0], names[0])
    for unknown in ("notify#nobody", "notify#2", "notify#7", "notify# 1", "notify#1@7", "notify#ann@x.org/home:2"):
        with pytest.raises(InvalidTransition, match=f"has no step {unknown!r}"):
            await handle.reject(unknown)
    for done, name in enumerate(names, start=1):
        await handle.reject(name, comment="it is not there")
        assert await steps_of(engine) == sorted(names[done:]), "this one, and no other"
    assert (await handle.result()).status == "succeeded", "a clone that is let go of is left out"


@pytest.mark.requirement("E12")
@pytest.mark.parametrize("form", FORMS)
async def test_a_dead_letter_names_the_clone_and_it_is_run_again_by_that_name(engine: Engine, form: str) -> None:
    handle = await saga_of(engine, form, NonRetryableError, LABELS[2:])
    await handle.result()
    name = f"notify#{LABELS[2]}"

    (letter,) = [row async for row in engine.dlq()]
    assert (letter["step_id"], letter["path"]) == (name, "notify#0")
    found = await handle.status()
    assert found["error"]["step_id"] == name
    with pytest.raises(NotFound):
        await handle.retry(from_step="notify#nobody", reason="mended")
    await handle.retry(from_step=name, reason="mended")
    assert (await handle.result()).succeeded
    assert [row async for row in engine.dlq()] == []


@pytest.mark.requirement("E12")
async def test_a_clone_is_read_by_its_label(engine: Engine) -> None:
    async def notify(person: str) -> str:
        return person.upper()

    async def first(found: Annotated[str, FromStep("notify#0")]) -> str:
        return found

    engine.register(SagaBuilder("s", output="first").step("notify", notify).step("first", first).build())
    people = ExpandEach(["ada", "bob"], suffix=lambda name: "1" if name == "ada" else "0")
    result = await engine.execute("s", StepInputs({"notify": people}))
    assert (result.output, result.steps["notify#1"].result) == ("BOB", "ADA")
