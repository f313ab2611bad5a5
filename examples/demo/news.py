"""What happens to the orders: read from their sagas' histories and from the consumer's read model, again and again."""

import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, Literal

import httpx2

from tenuto import Engine

from .processes import Shop

STATUSES = ("pending", "reserved", "paid", "confirmed", "canceled", "refunded")
FINAL = ("confirmed", "canceled", "refunded")
RATE_SECONDS = 5  # over which throughput is measured

Tone = Literal["good", "bad", "notice", "loud"]


class News:
    """The figures, and the notable events in plain words, oldest first."""

    def __init__(self, shop: Shop, engine: Engine, client: httpx2.AsyncClient) -> None:
        self._shop = shop
        self._engine = engine
        self._client = client
        self._seen: dict[str, str] = {}  # attempt: its status
        self._over: set[str] = set()
        self._finished: deque[float] = deque()
        self._began = time.monotonic()
        self.statuses: dict[str, str] = {}  # by order, as the consumer knows them
        self.figures: Counter[str] = Counter()
        self.events: list[tuple[float, str, Tone]] = []
        self.executions: dict[str, str] = {}  # order: its execution
        self.taken_over: dict[str, None] = {}  # orders, and those below whose effects were undone
        self.rolled_back: dict[str, None] = {}
        self.running: dict[str, str] = {}  # order: the step that it is in
        self.waiting: dict[str, str] = {}  # order that waits for an approval: its execution

    def add(self, text: str, tone: Tone = "notice") -> None:
        self.events.append((time.monotonic() - self._began, text, tone))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def per_second(self) -> float:
        """Orders that were completed in each of the last seconds."""
        while self._finished and self._finished[0] < time.monotonic() - RATE_SECONDS:
            self._finished.popleft()
        return len(self._finished) / RATE_SECONDS

    def count(self, status: str) -> int:
        return sum(found == status for found in self.statuses.values())

    async def read(self) -> None:
        history: dict[str, list[str]] = (await self._client.get(f"{self._shop.consumer}/orders")).json()
        for order, statuses in history.items():
            if self.statuses.get(order) not in FINAL and statuses[-1] in FINAL:
                self._finished.append(time.monotonic())
            self.statuses[order] = statuses[-1]
        async for summary in self._engine.summaries():
            if summary["execution_id"] not in self._over:
                await self._read_execution(summary["execution_id"])

    async def _read_execution(self, id: str) -> None:
        handle = self._engine.get(id)
        document = await handle.status()
        order = document["correlation_id"]
        self.executions[order] = id
        self.running.pop(order, None)
        for attempt in await handle.history():
            if attempt["status"] == "running":
                self.running[order] = attempt["step_id"]
            if self._seen.get(attempt["step_execution_id"]) != attempt["status"]:
                self._seen[attempt["step_execution_id"]] = attempt["status"]
                self._tell(order, attempt)
        if document["status"] == "waiting_approval":
            if order not in self.waiting:
                self.waiting[order] = id
                self.add(f"{order}: large, waits for an approval", "loud")
        elif document["status"] in ("succeeded", "failed", "canceled"):
            self._over.add(id)

    def _tell(self, order: str, attempt: Mapping[str, Any]) -> None:
        match attempt:
            case {"kind": "reconcile", "status": "succeeded"}:
                self.figures["reconciliations"] += 1
                self._tell_answer(order, attempt)
            case {"kind": "compensation", "status": "succeeded", "step_id": step}:
                self.figures["compensations"] += 1
                self.rolled_back[order] = None
                if text := {"pay": "payment refunded or prevented", "reserve": "stock released"}.get(step):
                    self.add(f"{order}: {text}", "good")
            case {"kind": "compensation", "status": "retrying", "step_id": step}:
                self.figures["retries"] += 1
                self.add(f"{order}: the {UNDO[step]} failed, it is tried again", "bad")
            case {"kind": "forward", "status": "failed", "error_code": code} if code != "rejected":
                self.add(f"{order}: {REFUSALS.get(code, code)}", "bad")
            case {"kind": "forward", "status": "retrying", "step_id": step}:
                self._tell_failure(order, step, attempt)

    def _tell_failure(self, order: str, step: str, attempt: Mapping[str, Any]) -> None:
        match step, attempt["error_code"]:
            case _, "worker_lost":
                self.figures["takeovers"] += 1
                self.taken_over[order] = None
                self.add(f"{order}: its worker was lost during {step}, taken over", "bad")
            case "pay", "payment_pending":
                self.add(f"{order}: the payment is pending, it is polled")
            case "pay", _:
                self.add(f"{order}: no answer, the payment may or may not have been made", "bad")
            case _:
                self.figures["retries"] += 1
                self.add(f"{order}: {step} failed ({attempt['error_code']}), it is tried again", "bad")

    def _tell_answer(self, order: str, attempt: Mapping[str, Any]) -> None:
        """What the payment service said when it was asked about a payment."""
        if attempt["result"] is not None:
            self.add(f"{order}: the payment was made, it is not made again", "good")
        elif attempt["retry_after_at"] is None:
            self.add(f"{order}: the payment was not made, now it can be", "good")


UNDO = {"pay": "refund", "reserve": "release of the stock", "create": "cancelation"}
REFUSALS = {
    "out_of_stock": "out of stock",
    "card_declined": "card declined",
    "ForbiddenTransition": "stopped, the customer has canceled",
}
