"""Whether it adds up: orders, money, stock and events, each as the service says that owns them."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx2

from .customers import PRICES, STOCK, Customers
from .news import FINAL
from .processes import Shop


@dataclass
class Ledger:
    """Lines for the reader, and what does not add up."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def expect(self, holds: bool, problem: str) -> None:
        if not holds:
            self.wrong.append(problem)


async def settle(shop: Shop, customers: Customers, client: httpx2.AsyncClient) -> Ledger:
    async def get(url: str) -> Any:
        return (await client.get(url)).raise_for_status().json()

    ledger = Ledger()
    orders = {id: await get(f"{shop.orders}/orders/{id}") for id in customers.sent}
    check_orders(ledger, orders, customers.canceled)
    check_money(ledger, orders, await get(f"{shop.payment}/ledger"))
    check_stock(ledger, orders, await get(f"{shop.inventory}/stock"))
    check_events(ledger, orders, await get(f"{shop.consumer}/orders"))
    is_sound, printed = await shop.check()
    ledger.lines.append(("tenuto check", printed.splitlines()[-1] if printed else ""))
    ledger.expect(is_sound, f"tenuto check found violations:\n{printed}")
    return ledger


def check_orders(ledger: Ledger, orders: dict[str, Any], canceled: set[str]) -> None:
    count = Counter(order["status"] for order in orders.values())
    lost = [id for id, order in orders.items() if order["status"] not in FINAL]
    told = ", ".join(f"{count[status]} {status}" for status in FINAL)
    ledger.lines.append(("orders", f"{len(orders)} = {told}; {len(lost)} lost"))
    ledger.expect(not lost, f"not completed: {', '.join(lost)}")
    kept = [id for id in canceled if orders[id]["status"] == "confirmed"]
    ledger.expect(not kept, f"canceled by the customer, and confirmed: {', '.join(kept)}")


def check_money(ledger: Ledger, orders: dict[str, Any], moves: list[dict[str, Any]]) -> None:
    taken = sum(move["cents"] for move in moves if move["kind"] == "charge")
    returned = sum(move["cents"] for move in moves if move["kind"] == "refund")
    owed = sum(order["cents"] for order in orders.values() if order["status"] == "confirmed")
    ledger.lines.append(
        ("money", f"{_euros(taken)} taken − {_euros(returned)} refunded = {_euros(owed)} for confirmed")
    )
    ledger.expect(taken - returned == owed, f"{_euros(taken - returned)} were kept, and {_euros(owed)} are owed")
    per_order = Counter((move["order_id"], move["kind"]) for move in moves)
    twice = [f"{id} ({kind})" for (id, kind), number in per_order.items() if number > 1]
    ledger.lines.append(("duplicates", f"{len(twice)} in {len(moves)} charges and refunds"))
    ledger.expect(not twice, f"more than once: {', '.join(twice)}")
    for id, order in orders.items():
        wanted = {"confirmed": (1, 0), "refunded": (1, 1), "canceled": (0, 0)}.get(order["status"])
        found = per_order[id, "charge"], per_order[id, "refund"]
        ledger.expect(found == wanted, f"{id} is {order['status']} with {found[0]} charges and {found[1]} refunds")


def check_stock(ledger: Ledger, orders: dict[str, Any], stock: dict[str, dict[str, int]]) -> None:
    available, held = (sum(found[what] for found in stock.values()) for what in ("available", "held"))
    total = STOCK * len(PRICES)
    ledger.lines.append(("stock", f"{total} = {available} available + {held} sold"))
    for item, found in stock.items():
        sold = sum(o["quantity"] for o in orders.values() if o["item"] == item and o["status"] == "confirmed")
        ledger.expect(
            found == {"available": STOCK - sold, "held": sold}, f"of {STOCK} {item}, {sold} were sold, and {found}"
        )


def check_events(ledger: Ledger, orders: dict[str, Any], history: dict[str, list[str]]) -> None:
    received = [(id, status) for id, statuses in history.items() for status in statuses]
    repeated = len(received) - len(set(received))
    behind = [id for id, order in orders.items() if history.get(id, [""])[-1] != order["status"]]
    ledger.lines.append(
        ("events", f"{len(received)} received by the consumer; {repeated} twice, {len(behind)} missing")
    )
    ledger.expect(not repeated, f"{repeated} events were counted twice")
    ledger.expect(not behind, f"the consumer does not know the end of {', '.join(behind)}")


def _euros(cents: int) -> str:
    return f"€{cents / 100:,.2f}"
