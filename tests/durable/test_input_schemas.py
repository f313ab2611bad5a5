"""Input schemas are stored with a saga's definition: processes without its code refuse a wrong input, too."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from tenuto import Engine, ExpandEach, SagaBuilder, StepInputs
from tenuto.errors import InvalidInput
from tenuto.runtime.durable import definition_cache
from tenuto.storage import make_store

Make = Callable[..., Any]
PATIENCE_S = 60


@dataclass
class Order:
    sku: str
    quantity: int = 1


@dataclass
class StrictOrder:
    sku: str
    customer: str


async def takes_order(order: Order) -> str:
    return order.sku


async def takes_strict_order(order: StrictOrder) -> str:
    return order.sku


def saga(function: Any) -> object:
    return SagaBuilder("ship", output="pack").step("pack", function).build()


@pytest.fixture
async def make(url: str) -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:

        async def made(*sagas: object, **options: Any) -> Engine:
            engine = Engine(url, **{"shutdown_grace": "1s", **options})
            engine.register(*sagas)
            await stack.enter_async_context(engine)
            return engine

        yield made


async def published(make: Make, function: Any) -> Engine:
    engine: Engine = await make(saga(function))
    assert [each["name"] async for each in engine.definitions()] == ["ship"]
    return engine


async def refused(engine: Engine, given: object) -> dict[str, str]:
    with pytest.raises(InvalidInput) as error:
        await engine.start("ship", given)
    assert await engine.count() == {}, "nothing was stored"
    return {problem.path: problem.message for problem in error.value.problems}


@pytest.mark.parametrize(
    ("given", "problems"),
    [
        ({"sku": 7}, {"/input/sku": "expected `str`, got int"}),
        ({}, {"/input/sku": "is missing: expected `str`"}),
        (
            "an order",
            {
                "/input": "expected `Order` (an object with the fields sku (str), quantity (int, optional)), got str; "
                "it is read by step 'pack', parameter 'order'"
            },
        ),
        (StepInputs({"pack": {"sku": 7}}), {"/inputs/pack/value/sku": "expected `str`, got int"}),
        (StepInputs({"pack": ExpandEach([{"sku": "a"}, 7])}), {"/inputs/pack/each/1": "expected `Order` "}),
    ],
)
async def test_a_process_without_the_code_refuses_what_the_code_cannot_read(
    make: Make, given: object, problems: dict[str, str]
) -> None:
    await published(make, takes_order)
    found = await refused(await make(worker=False), given)
    assert list(found) == list(problems)
    assert all(found[path].startswith(told) for path, told in problems.items())


async def test_what_the_code_can_read_is_started_without_the_code(make: Make) -> None:
    await published(make, takes_order)
    client = await make(worker=False)
    assert (await client.execute("ship", {"sku": "a", "colour": "red"})).output == "a"


async def test_registering_the_same_code_again_is_accepted_and_stores_the_schemas(url: str, make: Make) -> None:
    """As in a database that an earlier release wrote: its definitions have no schemas."""
    await published(make, takes_order)
    store = make_store(url)
    await store.open(migrate=False)
    row = await store.catalog.find("ship", 1)
    assert row is not None
    await store.catalog.set_input_schemas(replace(row, input_schemas=None, input_schemas_hash=None))
    client = await make(worker=False)
    await client.start("ship", {"quantity": "many"})  # nobody knows better
    await published(make, takes_order)
    stored = await store.catalog.find("ship", 1)
    assert stored == row, "the plan is as it was, and the schemas are there again"
    await store.close()


async def test_a_process_without_the_code_learns_of_new_types(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The types of a saga may change without its plan. The last process that registers it decides."""
    monkeypatch.setattr(definition_cache, "CATALOG_MS", 0)
    await published(make, takes_order)
    client = await make(worker=False)
    assert list(await refused(client, {})) == ["/input/sku"]
    await published(make, takes_strict_order)
    async with asyncio.timeout(PATIENCE_S):
        while "/input/customer" not in await refused(client, {}):
            pass


async def test_the_schemas_are_no_part_of_the_published_content(make: Make) -> None:
    first = await published(make, takes_order)
    (before,) = [each["hash"] async for each in first.definitions()]
    second = await published(make, takes_strict_order)
    assert [each["hash"] async for each in second.definitions()] == [before]
