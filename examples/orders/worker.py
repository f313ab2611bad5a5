"""The sagas of the order service, for a worker of their own: `tenuto worker --app examples.orders.worker:sagas`"""

import httpx2

from . import config
from .clients import InventoryClient, PaymentClient
from .database import connect
from .orders import SCHEMA, Orders
from .saga import OrderSaga


def sagas() -> OrderSaga:
    orders = Orders(connect(config.DATABASE, *SCHEMA))
    client = httpx2.AsyncClient()
    inventory = InventoryClient(config.INVENTORY_URL, client)
    return OrderSaga(orders, inventory, PaymentClient(config.PAYMENT_URL, client))
