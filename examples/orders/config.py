"""Every setting of the example, read once from the environment."""

from dataclasses import dataclass
from os import environ

from tenuto import Retry

DATABASE = environ.get("ORDERS_DATABASE", "sqlite:///orders.db")  # or memory://, or postgresql://host/orders
INVENTORY_DATABASE = environ.get("INVENTORY_DATABASE", "sqlite:///inventory.db")
PAYMENT_DATABASE = environ.get("PAYMENT_DATABASE", "sqlite:///payment.db")
CONSUMER_DATABASE = environ.get("CONSUMER_DATABASE", "sqlite:///consumer.db")

INVENTORY_URL = environ.get("INVENTORY_URL", "http://127.0.0.1:8101")
PAYMENT_URL = environ.get("PAYMENT_URL", "http://127.0.0.1:8102")
CONSUMER_URL = environ.get("CONSUMER_URL", "http://127.0.0.1:8103")

# After each of these, the service tells the consumer what changed. A worker of its own needs them as TENUTO_MESSAGES.
MESSAGES = ("execution.started", "execution.finished", "step.completed", "step.compensated")

WORKER = environ.get("ORDERS_WORKER", "yes") == "yes"  # no: the service accepts orders, other processes run the sagas


@dataclass(frozen=True)
class Limits:
    """How long one attempt of a step may take, and how often the step is tried."""

    timeout: str
    attempts: int
    delay: str  # before the second attempt, with jitter; it doubles after each one

    @property
    def retry(self) -> Retry:
        return Retry(self.attempts, initial=self.delay)


def _limits(step: str, timeout: str, attempts: int, delay: str = "200ms") -> Limits:
    """Reads `ORDERS_PAY_TIMEOUT`, `ORDERS_PAY_ATTEMPTS` and `ORDERS_PAY_DELAY`, for example."""
    name = f"ORDERS_{step.upper()}"
    return Limits(
        environ.get(f"{name}_TIMEOUT", timeout),
        int(environ.get(f"{name}_ATTEMPTS", attempts)),
        environ.get(f"{name}_DELAY", delay),
    )


RESERVE = _limits("reserve", "3s", 3)
PAY = _limits("pay", "10s", 4)
UPDATE = _limits("update", "3s", 5, "50ms")  # steps that only write to the service's own database
COMPENSATE = _limits("compensate", "5s", 5)

PAY_DEADLINE = environ.get("ORDERS_PAY_DEADLINE", "15m")  # for all attempts and polls; then a person decides
PAY_POLL = environ.get("ORDERS_PAY_POLL", "2s")  # between two looks at a pending payment
APPROVAL_CENTS = int(environ.get("ORDERS_APPROVAL_CENTS", "100000"))  # larger orders wait for a person
