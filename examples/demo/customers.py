"""The customers: a stream of orders, some with a fault that a service will have, or with a change of mind."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx2

from .processes import Shop

PRICES = {"tea": 450, "cup": 1200, "pot": 3900}  # cents
STOCK = 1000  # of each


@dataclass(frozen=True)
class Fault:
    operation: str
    kind: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Kind:
    """What is special about an order."""

    faults: tuple[Fault, ...] = ()
    quantity: int = 1
    canceled_when: Literal["reserved", "charged"] | None = None


PLAIN = Kind()
LARGE = Kind(quantity=40)  # of the most expensive item: it waits for a person
IN_FLIGHT = Kind((Fault("pay", "slow", {"seconds": 1.5}),))  # its payment is on the way when the worker is killed
KINDS = (
    PLAIN,
    Kind((Fault("reserve", "error"),)),
    PLAIN,
    Kind((Fault("pay", "timeout", {"seconds": 4}),)),  # paid, and the answer is too late
    Kind((Fault("receive", "duplicate"),)),
    Kind((Fault("pay", "refuse"),)),
    PLAIN,
    Kind((Fault("pay", "slow", {"seconds": 0.6}),), canceled_when="reserved"),
    Kind((Fault("pay", "reset"),)),  # paid, and the connection breaks
    PLAIN,
    Kind(quantity=STOCK + 1),
    Kind((Fault("pay", "pending", {"polls": 2}),)),
    PLAIN,
    Kind((Fault("pay", "error"), Fault("receive", "error"))),
    Kind((Fault("pay", "timeout", {"seconds": 4}), Fault("refund", "error")), canceled_when="charged"),
)


class Customers:
    def __init__(self, shop: Shop, client: httpx2.AsyncClient) -> None:
        self._shop = shop
        self._client = client
        self._services = {
            "reserve": shop.inventory,
            "pay": shop.payment,
            "refund": shop.payment,
            "receive": shop.consumer,
        }
        self._canceling: set[asyncio.Task[None]] = set()
        self.sent: dict[str, Kind] = {}
        self.canceled: set[str] = set()

    async def stock(self) -> None:
        for item in PRICES:
            response = await self._client.put(f"{self._shop.inventory}/stock/{item}", params={"available": STOCK})
            response.raise_for_status()

    async def order(self, kind: Kind, item: str = "") -> str:
        """Sends one order, and returns its id."""
        number = len(self.sent) + 1
        id, item = f"order-{number:03}", item or list(PRICES)[number % len(PRICES)]
        self.sent[id] = kind
        for fault in kind.faults:
            given = {"operation": fault.operation, "kind": fault.kind, "order_id": id, **fault.options}
            (await self._client.post(f"{self._services[fault.operation]}/faults", json=given)).raise_for_status()
        order = {"id": id, "item": item, "quantity": kind.quantity, "cents": PRICES[item] * kind.quantity}
        (await self._client.post(f"{self._shop.orders}/orders", json=order)).raise_for_status()
        if kind.canceled_when is not None:
            task = asyncio.create_task(self._cancel(id, kind.canceled_when))
            self._canceling.add(task)
            task.add_done_callback(self._canceling.discard)
        return id

    async def stream(self, number: int, pause: float) -> None:
        for _ in range(number):
            await self.order(KINDS[len(self.sent) % len(KINDS)])
            await asyncio.sleep(pause)

    async def _cancel(self, id: str, when: Literal["reserved", "charged"]) -> None:
        """Cancels an order that is on its way. A confirmed one stays."""
        reached = self._is_reserved if when == "reserved" else self._is_charged
        while not await reached(id):  # noqa: ASYNC110  (it happens in another process)
            await asyncio.sleep(0.05)
        response = await self._client.post(f"{self._shop.orders}/orders/{id}:cancel")
        if response.status_code == 202:
            self.canceled.add(id)

    async def _is_reserved(self, id: str) -> bool:
        return bool((await self._client.get(f"{self._shop.orders}/orders/{id}")).json()["status"] != "pending")

    async def _is_charged(self, id: str) -> bool:
        ledger = (await self._client.get(f"{self._shop.payment}/ledger")).json()
        return any(line["order_id"] == id for line in ledger)
