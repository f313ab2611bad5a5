"""`BatchStarter` starts many executions with bounded concurrency; `Batch` follows and controls them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, Generic, TypeVar

from tenuto.errors import InvalidTransition, ResultTimeout, TenantLimit
from tenuto.kernel.definition import CancelMode
from tenuto.kernel.state import TERMINAL
from tenuto.runtime.shared.filters import Filter
from tenuto.runtime.start_request import Submitted
from tenuto.values.durations import Duration, milliseconds
from tenuto.views.results import Progress, SagaResult

from .context import EngineContext
from .handle import Handle

T = TypeVar("T")
O_co = TypeVar("O_co", covariant=True)

WINDOW: Final = 256  # concurrent starts: they share group commits, and bound the memory
YIELD_EVERY: Final = 100  # starts after which other tasks get a turn on the event loop
PREFETCH: Final = 16  # results that are fetched in advance
PAGE: Final = 1_000


class BatchStarter(Generic[T]):
    """Starts one execution per item, in the order of the items, with bounded concurrency."""

    def __init__(
        self,
        submit: Callable[[T], Awaitable[Submitted]],
        wait_for_capacity: Callable[[], Awaitable[int | None]],
        *,
        waits: bool,
    ) -> None:
        self._submit = submit
        self._wait_for_capacity = wait_for_capacity
        self._waits = waits
        self._asking = asyncio.Lock()
        self._pulling = asyncio.Lock()
        self._free = 0
        self.ids: list[str] = []
        self.all_new = True

    async def run(self, items: Iterable[T] | AsyncIterable[T]) -> None:
        source = _each(items)
        await self._next(source)  # alone: if every start would fail, only one is tried
        tasks = [asyncio.create_task(self._work(source)) for _ in range(WINDOW)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _work(self, source: AsyncIterator[T]) -> None:
        while await self._next(source):
            if len(self.ids) % YIELD_EVERY == 0:
                await asyncio.sleep(0)

    async def _next(self, source: AsyncIterator[T]) -> bool:
        async with self._pulling:
            try:
                item = await anext(source)
            except StopAsyncIteration:
                return False
            place = len(self.ids)
            self.ids.append("")
        submitted = await self._start(item)
        self.ids[place] = submitted.execution_id
        self.all_new = self.all_new and submitted.created
        return True

    async def _start(self, item: T) -> Submitted:
        while True:
            try:
                return await self._submit(item)
            except TenantLimit:
                if not self._waits:
                    raise
            await self._wait_for_slot()

    async def _wait_for_slot(self) -> None:
        """One task asks for free capacity; as many tasks continue as there is capacity for."""
        async with self._asking:
            if self._free < 1:
                self._free = await self._wait_for_capacity() or WINDOW
            self._free -= 1


async def _each(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


class Batch(Generic[O_co]):
    """Executions that `start_many` started or, by their idempotency keys, found."""

    def __init__(self, context: EngineContext, id: str, execution_ids: Sequence[str], *, by_id: bool = False) -> None:
        self._context = context
        self._by_id = by_id  # the correlation id may not identify exactly these executions
        self.id = id
        self.execution_ids = execution_ids

    async def progress(self, every: Duration = "1s") -> AsyncIterator[Progress]:
        """Yields the progress now, then at every interval, and once more when all executions have settled."""
        interval = milliseconds(every)
        waiting = list(reversed(self.execution_ids))
        while True:
            yield await self._count()
            if not waiting:
                return
            await self._wait(waiting, interval)

    async def _wait(self, waiting: list[str], interval_ms: int) -> None:
        """Waits until the interval ends or all have settled. Removes settled executions from `waiting`."""
        context = self._context
        until = context.now + interval_ms
        while waiting and (left := until - context.now) > 0:
            last = waiting[-PAGE:]
            statuses = await context.backend.executions.statuses(context.scope.tenant, last)
            active = [id for id in last if statuses.get(id) not in TERMINAL]
            waiting[-PAGE:] = active
            if len(active) < len(last):
                continue  # more of them may be finished already
            try:
                await context.backend.executions.wait(context.scope.tenant, waiting[-1], "settled", left)
            except ResultTimeout:
                return
            waiting.pop()

    async def _count(self) -> Progress:
        self._context.scope.require("executions:read")
        total = len(set(self.execution_ids))  # items with the same key share one execution
        counts = await (self._count_by_id() if self._by_id else self._count_by_correlation())
        return Progress(
            started=total,
            running=counts.get("running", 0) + counts.get("paused", 0),
            succeeded=counts.get("succeeded", 0),
            failed=counts.get("failed", 0),
            waiting=counts.get("waiting_approval", 0),
            canceled=counts.get("canceled", 0),
            total=total,
        )

    async def _count_by_correlation(self) -> dict[str, int]:
        context = self._context
        return await context.backend.executions.count(
            Filter(tenant=context.scope.tenant, correlation_id=self.id), "status"
        )

    async def _count_by_id(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        async for _, status in self._statuses():
            counts[status] = counts.get(status, 0) + 1
        return counts

    async def _statuses(self) -> AsyncIterator[tuple[str, str]]:
        ids = list(dict.fromkeys(self.execution_ids))
        context = self._context
        for first in range(0, len(ids), PAGE):
            for pair in (
                await context.backend.executions.statuses(context.scope.tenant, ids[first : first + PAGE])
            ).items():
                yield pair

    async def results(self) -> AsyncIterator[SagaResult[O_co]]:
        """Yields the results in start order, each as soon as it and all earlier ones are available."""
        ahead: deque[asyncio.Task[SagaResult[O_co]]] = deque()
        try:
            for id in self.execution_ids:
                ahead.append(asyncio.create_task(Handle[O_co](self._context, id).result()))
                if len(ahead) == PREFETCH:
                    yield await ahead.popleft()
            while ahead:
                yield await ahead.popleft()
        finally:
            for task in ahead:
                task.cancel()

    async def cancel(self, mode: CancelMode | None = None, *, reason: str = "") -> None:
        """Cancels the executions that are not finished."""
        active = [id async for id, status in self._statuses() if status not in TERMINAL]
        source = iter(active)

        async def work() -> None:
            for id in source:
                with suppress(InvalidTransition):  # it finished in the meantime
                    await Handle[O_co](self._context, id).cancel(mode, reason=reason)

        await asyncio.gather(*(work() for _ in range(PREFETCH)))
