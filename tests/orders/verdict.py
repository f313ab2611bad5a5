"""What must be true of the shop when everything is over, whatever went wrong on the way."""

from collections import Counter
from itertools import pairwise
from typing import Any

from examples.orders.orders import TRANSITIONS, Status
from tests.checking.soundness import assert_histories_sound, assert_sound

from .shop import CONSUMER, INVENTORY, ITEM, PAYMENT, STOCK, Shop

MOVES = {"confirmed": Counter(charge=1), "canceled": Counter(), "refunded": Counter(charge=1, refund=1)}


async def wrong(shop: Shop, ids: list[str]) -> list[str]:
    """What does not add up. The orders are the only ones that there are."""
    orders = {id: await shop.stored(id) for id in ids}
    ledger = await _answer(shop, f"{PAYMENT}/ledger")
    reservations = await _answer(shop, f"{INVENTORY}/reservations")
    stock = (await _answer(shop, f"{INVENTORY}/stock"))[ITEM]
    history = await _answer(shop, f"{CONSUMER}/orders")
    found = []
    for id, order in orders.items():
        if order.status not in MOVES:
            found.append(f"{id} is {order.status}")
            continue
        moved = Counter(line["kind"] for line in ledger if line["order_id"] == id)
        if moved != MOVES[order.status]:
            found.append(f"{id} is {order.status}, and its money moved {dict(moved)}")
        if (reservations.get(id) == "held") != (order.status == "confirmed"):
            found.append(f"{id} is {order.status}, and its reservation is {reservations.get(id)}")
        statuses = history.get(id, [])
        if not _is_path(statuses) or statuses[-1] != order.status:
            found.append(f"{id} is {order.status}, and the consumer saw {statuses}")
    if unknown := set(history) - set(orders):
        found.append(f"the consumer saw {unknown}")
    if stock["available"] + stock["held"] != STOCK:
        found.append(f"of {STOCK} there are {stock}")
    return found + await _left(shop)


def _is_path(statuses: list[Status]) -> bool:
    return statuses[:1] == ["pending"] and all(after in TRANSITIONS[before] for before, after in pairwise(statuses))


async def _left(shop: Shop) -> list[str]:
    """What waits for a person, was not published, or violates an invariant of the engine."""
    engine = shop.service.engine
    found = [f"open review: {review['kind']} of {review['step_id']}" async for review in engine.reviews()]
    waiting = (await engine.outbox()).waiting
    if waiting:
        found.append(f"{waiting} messages were not published")
    try:
        if shop.url == "memory://":
            assert_histories_sound(engine)
        else:
            await assert_sound(shop.url)
    except AssertionError as error:
        found.append(str(error))
    return found


async def _answer(shop: Shop, url: str) -> Any:
    return (await shop.client.get(url)).json()
