"""A task that is given back while nobody knows whether that arrived: it is run once, whatever is sent again."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from tenuto import Engine, Handle
from tenuto.errors import StorageError
from tenuto.storage.tasks import Beginning, Held, Taking, Task, TaskStore
from tests.contract.doubles import until
from tests.seams import store_of

pytestmark = pytest.mark.usefixtures("sound")

LOST = StorageError("the answer was lost on its way", code="unreachable")
DOCUMENT = {
    "name": "doc",
    "steps": [
        {
            "step_id": "pay",
            "handler": "pay",
            "queue": "gpu",
            "idempotency_strategy": "NOT_SAFE_TO_RETRY",
            "compensation_policy": "manual",
        }
    ],
}


class Forgetful:
    """A real store of tasks. The answer to the first task taken is lost; that to the first one returned comes late."""

    def __init__(self, tasks: TaskStore, *, begins: bool) -> None:
        self._tasks = tasks
        self._begins = begins
        self._loses = not begins
        self._is_late = True
        self.goes_on = asyncio.Event()
        self.taken = 0
        self.returned = 0
        self.looks_since = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tasks, name)

    async def take(self, session: str, queue: str, handlers: Sequence[str], limit: int) -> list[Task]:
        found = await self._tasks.take(session, queue, handlers, limit)
        self.taken += bool(found)
        if found and self._loses:
            self._loses = False
            raise LOST
        return found

    async def begin(self, session: str, beginnings: Sequence[Beginning]) -> tuple[set[Taking], set[str | None]]:
        begun, owners = await self._tasks.begin(session, beginnings)
        if self._begins:  # it has begun, and is told that it has not: so it is given back
            self._begins = False
            return set(), owners
        return begun, owners

    async def held(self, session: str) -> list[Held]:
        found = await self._tasks.held(session)
        self.looks_since += self.taken > 1
        return found

    async def give_back(self, session: str, takings: Sequence[Taking], why: str = "") -> None:
        await self._tasks.give_back(session, takings, why)
        if self._is_late:
            self._is_late = False
            await self.goes_on.wait()
            raise LOST
        self.returned += 1


class Slow(Forgetful):
    """The first return is lost to the worker, and carried out when the task has long begun for another time."""

    async def give_back(self, session: str, takings: Sequence[Taking], why: str = "") -> None:
        if self._is_late:
            self._is_late = False
            self._late = (session, takings, why)
            raise LOST
        await self._tasks.give_back(session, takings, why)
        self.returned += 1

    async def arrive(self) -> None:
        await self._tasks.give_back(*self._late)


F = TypeVar("F", bound=Forgetful)


class Till:
    """Pays when it is told to, and counts how often it was asked."""

    def __init__(self) -> None:
        self.calls = 0
        self.ends = asyncio.Event()

    async def pay(self) -> int:
        self.calls += 1
        await self.ends.wait()
        return 1


@asynccontextmanager
async def paying(url: str, till: Till, kind: type[F], *, begins: bool) -> AsyncIterator[tuple[Handle[Any], F]]:
    async with (
        Engine(url, queues=(), shutdown_grace="1s") as home,
        Engine(url, queues=("gpu",), shutdown_grace="1s") as guest,
    ):
        store = store_of(guest)
        tasks = kind(store.tasks, begins=begins)
        store.tasks = tasks  # type: ignore[misc]  # the faults are between the runtime and the real one
        guest.handler("pay", till.pay)  # before it has this, it takes nothing
        await home.apply(DOCUMENT)
        yield await home.start("doc"), tasks


@pytest.mark.parametrize("begins", [False, True])
async def test_what_is_given_back_twice_is_run_once(url: str, begins: bool) -> None:
    till = Till()
    async with paying(url, till, Forgetful, begins=begins) as (handle, tasks):
        await until(handle, lambda _: tasks.looks_since >= 2)  # it was taken again, and there was time to run it
        tasks.goes_on.set()
        await until(handle, lambda _: tasks.returned >= 1)
        await until(handle, lambda _: till.calls > 0)
        looks = tasks.looks_since
        await until(handle, lambda _: tasks.looks_since >= looks + 2)
        till.ends.set()
        result = await handle.result()
    assert (result.status, till.calls) == ("succeeded", 1)


@pytest.mark.parametrize("begins", [False, True])
async def test_a_return_that_arrives_late_takes_nothing_from_whoever_runs_it(url: str, begins: bool) -> None:
    till = Till()
    async with paying(url, till, Slow, begins=begins) as (handle, tasks):
        await until(handle, lambda _: till.calls > 0)
        await tasks.arrive()
        looks = tasks.looks_since
        await until(handle, lambda _: tasks.looks_since >= looks + 3)
        till.ends.set()
        result = await handle.result()
    assert (result.status, till.calls) == ("succeeded", 1)
