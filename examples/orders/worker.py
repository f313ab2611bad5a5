"""The sagas of the order service, for a worker of their own: `tenuto worker --app examples.orders.worker:sagas`"""

from . import config
from .clients import InventoryClient, PaymentClient
from .database import connect
from .orders import SCHEMA, Orders
from .saga import OrderSaga


def sagas() -> OrderSaga:
    orders = Orders(connect(config.DATABASE, *SCHEMA))
    return OrderSaga(orders, InventoryClient(config.INVENTORY_URL), PaymentClient(config.PAYMENT_URL))
