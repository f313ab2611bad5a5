"""Chooses a bus by the scheme of its URL. The library of a broker is imported when its URL is used."""

from collections.abc import Callable

from tenuto.errors import NotSupported
from tenuto.storage.bus_messages import BusMessages
from tenuto.values.redaction import redact_url

from .embedded import EmbeddedBus
from .port import Bus

SCHEMES = ("embedded://", "amqp://", "amqps://", "sb://")


def make_bus(url: str, messages: BusMessages, now_ms: Callable[[], int]) -> Bus:
    """`messages` are those of the engine's database, for the embedded bus, which is the default."""
    if not url or url == "embedded://":
        return EmbeddedBus(messages, now_ms)
    raise NotSupported(
        f"There is no bus for {redact_url(url)!r}.", hint=f"URLs of buses begin with {', '.join(SCHEMES)}"
    )
