"""Questions that gather while others are under way: fewer of them, and the same answers."""

import asyncio
from collections.abc import Sequence

import pytest

from tenuto import Engine, SagaBuilder
from tenuto.errors import NotFound, StorageError
from tenuto.runtime.durable.batched_reads import BatchedReads
from tests.seams import read_together

LONG = 30.0


class Library:
    """Squares of numbers. It answers when it is told to, and takes no odd number below zero."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.is_asked = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def look_up(self, numbers: Sequence[int]) -> dict[int, int]:
        self.asked.append(list(numbers))
        self.is_asked.set()
        await self.open.wait()
        if -1 in numbers:
            raise StorageError("not a number that it takes", code="bad_data")
        if -2 in numbers:
            raise StorageError("it is not there", code="unreachable")
        return {number: number**2 for number in numbers if number < 100}


async def test_who_asks_alone_waits_for_nobody_and_those_who_come_meanwhile_ask_together() -> None:
    library = Library()
    together = BatchedReads(library.look_up)
    library.open.clear()
    first = asyncio.create_task(together.find(1))
    await library.is_asked.wait()
    others = [asyncio.create_task(together.find(number)) for number in (2, 3, 100)]
    asyncio.get_running_loop().call_soon(library.open.set)  # when they have asked
    assert await first == 1
    assert await asyncio.gather(*others) == [4, 9, None]
    assert library.asked == [[1], [2, 3, 100]]
    assert together.is_idle


async def test_one_question_that_takes_long_does_not_hold_the_next_up() -> None:
    library = Library()
    together = BatchedReads(library.look_up, lanes=2)
    library.open.clear()
    slow = asyncio.create_task(together.find(1))
    await library.is_asked.wait()
    held, library.open = library.open, asyncio.Event()
    library.open.set()
    assert await together.find(2) == 4
    assert not slow.done()
    held.set()
    assert await slow == 1


async def test_no_more_are_asked_for_at_once_than_said() -> None:
    library = Library()
    together = BatchedReads(library.look_up, at_once=2)
    assert await asyncio.gather(*(together.find(number) for number in range(5))) == [0, 1, 4, 9, 16]
    assert library.asked == [[0, 1], [2, 3], [4]]


async def test_whoever_asks_again_the_moment_he_is_answered_is_answered() -> None:
    together = BatchedReads(Library().look_up)

    async def ask_on() -> None:
        for number in range(50):
            assert await together.find(number) == number**2

    async with asyncio.timeout(LONG):
        await asyncio.gather(*(ask_on() for _ in range(5)))


async def test_a_key_that_is_not_taken_fails_for_him_who_asked_alone() -> None:
    together = BatchedReads(Library().look_up)
    found = await asyncio.gather(*(together.find(number) for number in (1, -1, 2)), return_exceptions=True)
    assert found[0] == 1
    assert isinstance(found[1], StorageError)
    assert found[2] == 4


async def test_what_fails_for_all_is_not_asked_one_by_one() -> None:
    library = Library()
    together = BatchedReads(library.look_up)
    found = await asyncio.gather(*(together.find(number) for number in (1, -2, 2)), return_exceptions=True)
    assert [type(each) for each in found] == [StorageError] * 3
    assert len(library.asked) == 1


async def test_who_goes_away_takes_nobody_along() -> None:
    library = Library()
    together = BatchedReads(library.look_up)
    library.open.clear()
    gone, stays = asyncio.create_task(together.find(1)), asyncio.create_task(together.find(2))
    await library.is_asked.wait()
    gone.cancel()
    library.open.set()
    assert await stays == 4
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_executions_are_read_together_by_each_tenant_for_itself(url: str) -> None:
    """Another tenant's execution and one that is not there are missing for whoever asked for them, and for no other."""
    async with Engine(url) as works, Engine(url, worker=False) as reads:
        works.register(SagaBuilder("asks").approval("ok"))
        ids: dict[str, list[str]] = {}
        for tenant in ("acme", "other"):
            handles = [await works.scoped(tenant=tenant, actor="a").start("asks") for _ in range(20)]
            ids[tenant] = [handle.id for handle in handles]
            await asyncio.gather(*(handle.result() for handle in handles))
        wanted = [(tenant, id) for tenant in ids for id in (*ids["acme"], *ids["other"], "0" * 22)]
        found = await asyncio.gather(
            *(reads.scoped(tenant=tenant, actor="a").get(id).status() for tenant, id in wanted), return_exceptions=True
        )
        for (tenant, id), each in zip(wanted, found, strict=True):
            if id in ids[tenant]:
                assert not isinstance(each, BaseException)
                assert each["execution_id"] == id
            else:
                assert isinstance(each, NotFound)
        with pytest.raises(NotFound):
            await reads.scoped(tenant="third", actor="a").get("0" * 22).status()
        assert read_together(reads) == [("third", True)], "what nobody asks is forgotten"
