"""The parts of the command gateway that its routes share, wired in one place."""

import asyncio
from typing import Final

from tenuto.access.callback_tokens import CallbackTokens, read_keys
from tenuto.api.engine import Engine
from tenuto.runtime.bus.embedded import EmbeddedBus
from tenuto.settings import Settings
from tenuto.values.durations import milliseconds

from .completed_webhooks import CompletedWebhooks
from .envelope import Envelopes
from .protocol_source import source_for
from .registry import ProtocolRegistry

DEVELOPMENT: Final = "http://"


class Gateway:
    """Protocols, envelopes, callback tokens and the embedded bus of one service."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine = engine
        source = source_for(settings.protocols) if settings.protocols else None
        self.protocols = ProtocolRegistry(engine, source, milliseconds(settings.protocols_poll))
        allows_http = any(network.startswith("127.") for network in settings.egress_allow)
        self.envelopes = Envelopes(settings.callback_hosts, allows_http=allows_http)
        self.tokens = CallbackTokens(read_keys(settings.callback_keys))
        self.webhooks = CompletedWebhooks(engine)
        self._opened: asyncio.Lock = asyncio.Lock()
        self._is_open = False

    @property
    def bus(self) -> EmbeddedBus | None:
        """The bus whose messages workers receive here; None if another one carries them."""
        directives = self.engine.directives
        bus = None if directives is None else directives.bus
        return bus if isinstance(bus, EmbeddedBus) else None

    async def open(self) -> None:
        """Loads the protocols. Raises if they are not valid."""
        async with self._opened:
            if not self._is_open:
                await self.protocols.open()
                if self.engine.directives is not None:
                    self.webhooks.start()
                self._is_open = True

    async def close(self) -> None:
        async with self._opened:
            if self._is_open:
                self._is_open = False
                await self.protocols.close()
                await self.webhooks.close()
