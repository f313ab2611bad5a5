"""The whole example in one process: the order service, the two services it calls, and the consumer of its events."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import httpx2
from fastapi import FastAPI

from examples.orders import config, consumer, inventory, payment, service
from examples.orders.database import Database, Row, Transaction, connect
from examples.orders.orders import SCHEMA, StoredOrder
from examples.orders.service import OrderService
from tenuto import Message
from tenuto.telemetry import Telemetry

ITEM = "tea"
STOCK = 1_000_000
INVENTORY, PAYMENT, CONSUMER = config.INVENTORY_URL, config.PAYMENT_URL, config.CONSUMER_URL
SERVICE_OF = {
    "reserve": INVENTORY, "release": INVENTORY,
    "pay": PAYMENT, "find": PAYMENT, "void": PAYMENT, "refund": PAYMENT,
    "receive": CONSUMER,
}  # fmt: skip


class Moment(NamedTuple):
    """Something that the saga of an order does, for the nth time: a request, or a look at its order, or a change."""

    what: str
    when: Literal["before", "after"]
    number: int


Watch = Callable[[str, Moment], Awaitable[None]]

_unseen: set[asyncio.Task[Any] | None] = set()


@contextmanager
def unseen() -> Iterator[None]:
    """What this task does here is not the saga's. Tasks, because a context would be inherited by what is started."""
    task = asyncio.current_task()
    if task in _unseen:
        yield
        return
    _unseen.add(task)
    try:
        yield
    finally:
        _unseen.discard(task)


def is_unseen() -> bool:
    return asyncio.current_task() in _unseen


class Watcher:
    """Notes the moments of each order, and calls `watch` at each of them."""

    def __init__(self) -> None:
        self.moments: dict[str, list[Moment]] = defaultdict(list)
        self.watch: Watch | None = None

    async def meet(self, order: str, what: str, when: Literal["before", "after"]) -> None:
        if is_unseen():
            return
        met = self.moments[order]
        moment = Moment(what, when, 1 + sum(other[:2] == (what, when) for other in met))
        met.append(moment)
        if self.watch is not None:
            with unseen():
                await self.watch(order, moment)


class Network(httpx2.AsyncBaseTransport):
    """Carries requests to applications in this process. A caller that gives up does not stop the one it has called."""

    def __init__(self, apps: dict[str, FastAPI], watcher: Watcher | None = None) -> None:
        self._apps = {httpx2.URL(url).port: httpx2.ASGITransport(app=app) for url, app in apps.items()}
        self._served: set[asyncio.Task[httpx2.Response]] = set()
        self._watcher = watcher or Watcher()
        self.unreachable: Counter[tuple[str, str]] = Counter()  # by order and request: those that find no server

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        task = asyncio.ensure_future(self._serve(request))
        self._served.add(task)
        task.add_done_callback(self._served.discard)
        return await asyncio.shield(task)

    async def _serve(self, request: httpx2.Request) -> httpx2.Response:
        order, what = request.headers.get("X-Correlation-ID", ""), f"{request.method} {_template(request.url.path)}"
        await self._watcher.meet(order, what, "before")
        if self.unreachable[order, what]:
            self.unreachable[order, what] -= 1
            raise httpx2.ConnectError("no server", request=request)
        try:
            return await self._apps[request.url.port].handle_async_request(request)
        except ConnectionResetError as error:
            raise httpx2.ReadError("reset", request=request) from error
        finally:
            await self._watcher.meet(order, what, "after")

    async def quiet(self) -> None:
        """Until nothing is served any more."""
        while self._served:
            await asyncio.wait(self._served)


def _template(path: str) -> str:
    return path.split("/")[1] + path.rpartition(":")[1] + path.rpartition(":")[2] if ":" in path else path.split("/")[1]


class WatchedDatabase:
    """The tables of the order service, and the faults that they can have: rows that others change, and no answers."""

    def __init__(self, inner: Database, watcher: Watcher) -> None:
        self._inner = inner
        self._watcher = watcher
        self.conflicts: dict[tuple[str, str], int] = {}  # by order and status: writes that find another version
        self.outages: dict[str, range] = {}  # by order: reads that fail
        self._reads: Counter[str] = Counter()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        written: list[str] = []
        async with self._inner.transaction() as transaction:
            yield _WatchedTransaction(transaction, self.conflicts, written)
        for order in written:
            await self._watcher.meet(order, "write", "after")

    async def read(self, statement: str, *values: object) -> list[Row]:
        order = str(values[0]) if "FROM orders" in statement else ""
        if order and not is_unseen():
            self._reads[order] += 1
            if self._reads[order] - 1 in self.outages.get(order, ()):
                raise ConnectionError("the database does not answer")
        rows = await self._inner.read(statement, *values)
        if order:
            await self._watcher.meet(order, "read", "after")
        return rows

    async def close(self) -> None:
        await self._inner.close()


class _WatchedTransaction:
    def __init__(self, inner: Transaction, conflicts: dict[tuple[str, str], int], written: list[str]) -> None:
        self._inner = inner
        self._conflicts = conflicts
        self._written = written
        self.connection = inner.connection

    async def run(self, statement: str, *values: object) -> list[Row]:
        if "UPDATE orders SET status" in statement:
            status, order = str(values[0]), str(values[4])
            if self._conflicts.get((order, status)):
                self._conflicts[order, status] -= 1
                return []
            self._written.append(order)
        return await self._inner.run(statement, *values)


class WatchedService(OrderService):
    """The order service, and which of its sagas are over as far as other services are concerned."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.over: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def announce(self, message: Message) -> None:
        with unseen():
            await super().announce(message)
        if message.kind == "execution.finished":
            self.over[message.correlation_id].set()


class Shop:
    def __init__(
        self,
        url: str = "memory://",
        *,
        databases: Callable[[str], str] = lambda name: "memory://",
        telemetry: Telemetry | None = None,
        lease: str = "15s",
    ) -> None:
        others = {
            INVENTORY: inventory.create_app(databases("inventory")),
            PAYMENT: payment.create_app(databases("payment")),
            CONSUMER: consumer.create_app(databases("consumer")),
        }
        self.url = url
        self.watcher = Watcher()
        self.database = WatchedDatabase(connect(url, *SCHEMA), self.watcher)
        self.network = Network(others, self.watcher)
        self.client = httpx2.AsyncClient(transport=self.network, timeout=None)
        self.service = WatchedService(
            url,
            worker=True,
            lease=lease,
            database=self.database,
            client=self.client,
            telemetry=telemetry or Telemetry(logs=False),
        )
        app = service.create_app(self.service)
        self._apps = [*others.values(), app]
        self.api = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://orders", timeout=None)
        self._stack = AsyncExitStack()

    @classmethod
    def on_files(cls, folder: Path, **options: Any) -> Self:
        """With a SQLite file for each service."""
        return cls(f"sqlite:///{folder}/orders.db", databases=lambda name: f"sqlite:///{folder}/{name}.db", **options)

    async def __aenter__(self) -> Self:
        for app in self._apps:
            await self._stack.enter_async_context(app.router.lifespan_context(app))
        if ITEM not in (await self.client.get(f"{INVENTORY}/stock")).json():
            await self.client.put(f"{INVENTORY}/stock/{ITEM}", params={"available": STOCK})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.quiet()
        await self._stack.aclose()

    async def quiet(self) -> None:
        """Until no request is under way any more, not even one that its caller has given up."""
        await self.network.quiet()

    # -- What people and tests do --------------------------------------------------------------------------------------

    async def fault(self, operation: str, kind: str, order_id: str, **options: Any) -> None:
        given = {"operation": operation, "kind": kind, "order_id": order_id, **options}
        response = await self.client.post(f"{SERVICE_OF[operation]}/faults", json=given)
        assert response.status_code == 201, response.text

    async def unused(self) -> AsyncIterator[tuple[str, str]]:
        """The faults that were switched on and have not happened, by order."""
        for url in {*SERVICE_OF.values()}:
            for fault in (await self.client.get(f"{url}/faults")).json():
                yield fault["order_id"], f"{fault['operation']} {fault['kind']} ×{fault['times']}"
        for (id, what), left in (self.database.conflicts | self.network.unreachable).items():
            if left:
                yield id, f"{what} ×{left}"

    async def order(self, id: str, cents: int = 500) -> Any:
        with unseen():
            response = await self.api.post("/orders", json={"id": id, "item": ITEM, "quantity": 2, "cents": cents})
        assert response.status_code in (200, 201), response.text
        return response.json()

    async def cancel(self, id: str) -> int:
        with unseen():
            return (await self.api.post(f"/orders/{id}:cancel")).status_code

    async def stored(self, id: str) -> StoredOrder:
        with unseen():
            return await self.service.orders.get(id)

    async def settled(self, id: str) -> Any:
        """The result of an order's saga, when it has ended or waits for a person."""
        return await self.service.engine.get((await self.stored(id)).execution).result()

    async def finished(self, id: str) -> str:
        """The status of an order whose saga has ended, and whose events have reached the consumer."""
        await self.settled(id)
        await self.service.over[id].wait()
        return (await self.stored(id)).status
