"""Every fault of every step, and a cancel at every moment of each: one order for each, all in one shop."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .shop import PAYMENT, Moment, Shop
from .verdict import wrong

RESERVE_ATTEMPTS, PAY_ATTEMPTS, UPDATE_ATTEMPTS, UNDO_ATTEMPTS = 3, 4, 5, 5
REACHED = 0.9  # of the cancels: the jitter of each run differs, and with it the number of polls
REQUESTS = {
    "reserve": "PUT reservations",
    "release": "DELETE reservations",
    "pay": "PUT payments",
    "find": "GET payments",
    "void": "POST payments:void",
    "refund": "POST payments:refund",
}


class Fault(NamedTuple):
    operation: str
    kind: str
    times: int = 1
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return f"{self.operation} {self.kind} ×{self.times}"


class Case(NamedTuple):
    """`status` is how the order ends if it is not canceled."""

    faults: tuple[Fault, ...]
    status: str
    cancel: Moment | None = None

    def __str__(self) -> str:
        faults = ", ".join(map(str, self.faults)) or "no fault"
        return (
            faults
            if self.cancel is None
            else f"{faults}; canceled {self.cancel.when} {self.cancel.what} no. {self.cancel.number}"
        )


SLOW = ("seconds", 1)  # shorter than every timeout
LATE = ("seconds", 12)  # longer than every timeout


def faults(operation: str, times: int = 1) -> Iterator[tuple[str, Fault]]:
    """All that can happen to a request, by what it means: the effect was refused, made, made too late, or not made."""
    yield "refused", Fault(operation, "refuse", times)
    yield "made", Fault(operation, "slow", times, (SLOW,))
    yield "made", Fault(operation, "duplicate", times)
    yield "not made", Fault(operation, "error", times)
    if operation != "pay":  # a payment that is pending is made later
        yield "not made", Fault(operation, "pending", times)
    if operation in REQUESTS:
        yield "not made", Fault(operation, "unreachable", times)
    yield "made late", Fault(operation, "slow", times, (LATE,))
    yield "unanswered", Fault(operation, "timeout", times, (LATE,))
    yield "unanswered", Fault(operation, "reset", times)


def cases() -> Iterator[Case]:
    yield Case((), "confirmed")
    unconfirmed = Fault("confirmed", "conflict", UPDATE_ATTEMPTS)
    yield Case((unconfirmed,), "refunded")
    for number in range(6):  # the reads of an order that nothing happens to
        yield Case((_outage(number),), "confirmed")
    for number in range(10, 15):  # those after the attempts to confirm it
        yield Case((unconfirmed, _outage(number)), "refunded")
    yield Case((_outage(0, UPDATE_ATTEMPTS),), "canceled")
    for status in ("reserved", "paid", "confirmed"):
        yield Case((Fault(status, "conflict"),), "confirmed")
    yield Case((Fault("reserved", "conflict", RESERVE_ATTEMPTS),), "canceled")
    yield Case((Fault("paid", "conflict", PAY_ATTEMPTS),), "confirmed")  # it is reconciled until it can be written
    for times in (1, UNDO_ATTEMPTS):
        yield Case((Fault("reserve", "refuse"), Fault("canceled", "conflict", times)), "canceled")
        yield Case((unconfirmed, Fault("refunded", "conflict", times)), "refunded")
    for meaning, fault in faults("reserve"):
        yield Case((fault,), "canceled" if meaning == "refused" else "confirmed")
    for meaning, fault in faults("reserve", RESERVE_ATTEMPTS):
        if meaning not in ("refused", "made"):  # these happen once
            yield Case((fault,), "canceled")
    for meaning, fault in faults("pay"):
        yield Case((fault,), "canceled" if meaning == "refused" else "confirmed")
    for meaning, fault in faults("pay", PAY_ATTEMPTS):
        if meaning == "not made":
            yield Case((fault,), "canceled")
        elif meaning == "made late":  # or just before it is looked for
            yield Case((fault,), "canceled or confirmed")
    for final, status in (("paid", "confirmed"), ("declined", "canceled")):
        yield Case((Fault("pay", "pending", 1, (("polls", 3), ("final", final))),), status)
    for _, fault in faults("find"):
        yield Case((Fault("pay", "reset"), fault), "confirmed")
    for _, fault in faults("void"):
        yield Case((Fault("pay", "error"), fault), "confirmed")
    for operation in ("refund", "release"):
        for _, fault in faults(operation):
            yield Case((unconfirmed, fault), "refunded")
        for meaning, fault in faults(operation, UNDO_ATTEMPTS):
            if meaning != "made":
                yield Case((unconfirmed, fault), "refunded")
    for _, fault in faults("receive", 2):
        yield Case((fault,), "confirmed")


def _outage(number: int, times: int = 1) -> Fault:
    """The database of the order service does not answer, after so many reads."""
    return Fault("orders", "outage", times, (("after", number),))


async def settle(shop: Shop, id: str) -> None:
    """Waits until the saga of an order has ended. A person helps where one is asked."""
    engine = shop.service.engine
    while not (await shop.settled(id)).done:
        async for review in engine.reviews(execution_id=(await shop.stored(id)).execution):
            match review["kind"]:
                case "compensation_failed":
                    await engine.resolve(review["id"], "retry", reason="the service is back")
                case "indeterminate":
                    await _find_out(shop, id, review["id"])


async def _find_out(shop: Shop, id: str, review: str) -> None:
    """Looks at the payment, as a person would, and says what there is."""
    order = await shop.stored(id)
    response = await shop.client.get(f"{PAYMENT}/payments/{order.payment_id}", params={"order_id": id})
    if response.status_code == 200 and response.json()["status"] == "paid":
        await shop.service.engine.resolve(review, "completed", result={"id": order.payment_id}, reason="it is paid")
    else:
        await shop.service.engine.resolve(review, "not_completed", reason="there is no such payment")


class Run:
    """Orders, each with the faults of its case, until all of them are over."""

    def __init__(self, shop: Shop, given: Iterable[Case]) -> None:
        self._shop = shop
        self._cases = {f"o{number}": case for number, case in enumerate(given)}
        self._answers: dict[str, int] = {}  # to cancels
        shop.watcher.watch = self._cancel

    async def wrong(self) -> list[str]:
        for id, case in self._cases.items():
            for fault in case.faults:
                await self._switch_on(id, fault)
            await self._shop.order(id)
        for id in self._cases:
            await settle(self._shop, id)
            await self._shop.finished(id)
        await self._shop.quiet()
        found = await wrong(self._shop, list(self._cases))
        for id, case in self._cases.items():
            found += [f"{id} {what}" for what in await self._unexpected(id, case)]
        found += [f"{id} had no {fault}" async for id, fault in self._shop.unused() if not self._cases[id].cancel]
        canceled = [id for id, case in self._cases.items() if case.cancel]
        if len(canceled) * REACHED > len(self._answers):
            found.append(f"{len(self._answers)} of {len(canceled)} cancels were sent")
        return [_explained(line, self._cases) for line in found]

    def moments(self) -> Iterator[Case]:
        """Each case again, with a cancel at each moment that its order has met."""
        for id, case in self._cases.items():
            for moment in self._shop.watcher.moments[id]:
                yield Case(case.faults, case.status, moment)

    async def _switch_on(self, id: str, fault: Fault) -> None:
        match fault.kind:
            case "conflict":
                self._shop.database.conflicts[id, fault.operation] = fault.times
            case "outage":
                first = dict(fault.options)["after"]
                self._shop.database.outages[id] = range(first, first + fault.times)
            case "unreachable":
                self._shop.network.unreachable[id, REQUESTS[fault.operation]] = fault.times
            case _:
                await self._shop.fault(fault.operation, fault.kind, id, times=fault.times, **dict(fault.options))

    async def _cancel(self, id: str, moment: Moment) -> None:
        if id in self._cases and self._cases[id].cancel == moment:
            self._answers[id] = await self._shop.cancel(id)

    async def _unexpected(self, id: str, case: Case) -> list[str]:
        status = (await self._shop.stored(id)).status
        ends = case.status.split(" or ")
        match self._answers.get(id):
            case None:
                return [] if status in ends else [f"is {status}, and should be {case.status}"]
            case 202:
                return ["was canceled, and is confirmed"] if status == "confirmed" else []
            case 409:
                return [] if status in {*ends, "canceled"} else [f"was not canceled, and is {status}"]
            case 503:  # others were writing it
                return []
            case answer:
                return [f"was to be canceled, and the answer was {answer}"]


def _explained(line: str, known: dict[str, Case]) -> str:
    id, _, rest = line.partition(" ")
    return f"{known[id]}: {rest}" if id in known else line
