"""The inventory and payment services, as the steps of the saga call them."""

from typing import Any, Literal

import httpx2

from tenuto import HttpCall, SagaContext
from tenuto.errors import NonRetryableError, RetryableError

from .orders import Order, StoredOrder

PaymentStatus = Literal["pending", "paid", "declined", "refunded", "voided"]


class OutOfStock(NonRetryableError):
    """The inventory does not have what was ordered."""

    code = "out_of_stock"


class CardDeclined(NonRetryableError):
    """The payment was declined."""

    code = "card_declined"


class InventoryClient:
    def __init__(self, url: str, client: httpx2.AsyncClient | None = None) -> None:
        self._url = url
        self._client = client

    async def reserve(self, order: Order, ctx: SagaContext) -> None:
        wanted = {"item": order.item, "quantity": order.quantity}
        try:
            _final(await self._call(ctx).put(f"/reservations/{order.id}", json=wanted))
        except NonRetryableError as error:
            if error.code == "http_409":
                raise OutOfStock from error
            raise

    async def release(self, order_id: str, ctx: SagaContext) -> None:
        _final(await self._call(ctx).delete(f"/reservations/{order_id}"))

    def _call(self, ctx: SagaContext) -> HttpCall:
        ctx.set_attribute("dep.name", "inventory")
        return HttpCall(ctx, base_url=self._url, client=self._client, classify={409: "NON_RETRYABLE"})


class PaymentClient:
    def __init__(self, url: str, client: httpx2.AsyncClient | None = None) -> None:
        self._url = url
        self._client = client

    async def pay(self, order: StoredOrder, ctx: SagaContext) -> PaymentStatus:
        """Makes the order's current payment. After any error but a refusal, it may have been made."""
        new = {"order_id": order.id, "cents": order.cents}
        try:
            return _status(await self._call(ctx).put(f"/payments/{order.payment_id}", json=new))
        except NonRetryableError as error:
            if error.code == "http_402":
                raise CardDeclined from error
            raise

    async def find(self, order: StoredOrder, ctx: SagaContext) -> PaymentStatus | None:
        """The status of the order's current payment. None: the service does not know of it."""
        try:
            return _status(await self._call(ctx).get(f"/payments/{order.payment_id}", params={"order_id": order.id}))
        except NonRetryableError as error:
            if error.code == "http_404":
                return None
            raise

    async def void(self, order: StoredOrder, ctx: SagaContext) -> PaymentStatus:
        """Prevents the order's current payment, if it was not made, and returns its status."""
        return _status(await self._call(ctx).post(f"/payments/{order.payment_id}:void", params={"order_id": order.id}))

    async def refund(self, order: StoredOrder, ctx: SagaContext) -> PaymentStatus:
        """Refunds the order's current payment, if it was made, and returns its status."""
        response = await self._call(ctx).post(f"/payments/{order.payment_id}:refund", params={"order_id": order.id})
        return _status(_final(response))

    def _call(self, ctx: SagaContext) -> HttpCall:
        ctx.set_attribute("dep.name", "payment")
        return HttpCall(ctx, base_url=self._url, client=self._client, classify={409: "NON_RETRYABLE"})


def _final(response: httpx2.Response) -> httpx2.Response:
    """A response that is not 202, which only says that the request was understood. The next attempt asks again."""
    if response.status_code == 202:
        raise RetryableError(f"{response.url.path} is pending.", code="http_202")
    return response


def _status(response: httpx2.Response) -> PaymentStatus:
    answer: dict[str, Any] = response.json()
    status: PaymentStatus = answer["status"]
    return status
