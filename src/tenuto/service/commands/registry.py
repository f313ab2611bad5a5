"""The protocols in force. A new configuration replaces them as a whole, or not at all."""

import asyncio
import logging
from contextlib import suppress
from typing import Any

from tenuto.api.engine import Engine
from tenuto.errors import DefinitionConflict, DefinitionError, InvalidInput, NotFound, Problem, TenutoError
from tenuto.kernel.definition import differences, from_document, to_document

from .protocol_source import ProtocolSource, SourceUnavailable
from .protocols import CompiledProtocol, Configuration, compile_configuration

logger = logging.getLogger("tenuto.commands")


class ProtocolRegistry:
    """Loads protocols, publishes their definitions, and polls their source."""

    def __init__(self, engine: Engine, source: ProtocolSource | None, poll_ms: int) -> None:
        self._engine = engine
        self._source = source
        self._poll_s = poll_ms / 1_000
        self._task: asyncio.Task[None] | None = None
        self.configuration = Configuration()
        self.rejected = 0
        self.problem: str | None = None  # what is wrong with the newest configuration

    async def open(self) -> None:
        """Loads the first configuration. Raises if there is none that is valid: the process must not start."""
        if self._source is None:
            return
        try:
            await self._load()
        except SourceUnavailable as error:
            problems = [Problem("TENUTO_PROTOCOLS", "unreadable", str(error))]
            raise InvalidInput("The protocols cannot be read.", problems=problems, code="protocols_invalid") from None
        self._task = asyncio.create_task(self._poll(), name="tenuto-protocols")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            await self.refresh()

    async def refresh(self) -> None:
        """Loads the configuration again. If any part of it is invalid, the last valid one stays in force."""
        try:
            await self._load()
        except SourceUnavailable as error:
            self.problem = str(error)
            logger.warning("The protocols cannot be read: %s", error, extra={"action": "protocols_unreadable"})
        except TenutoError as error:
            self.rejected += 1
            self.problem = error.message.split("\n", 1)[0]
            extra = {"action": "protocols_rejected", "problems": [str(each) for each in getattr(error, "problems", ())]}
            logger.error(
                "The protocols were rejected; the last valid ones stay in force: %s", error.message, extra=extra
            )

    async def _load(self) -> None:
        assert self._source is not None
        document = await self._source.read()
        if document is None:
            return
        configuration = compile_configuration(document)
        await self._publish(configuration)
        self.configuration, self.problem = configuration, None

    async def _publish(self, configuration: Configuration) -> None:
        """Publishes the definitions, unless one of them is refused."""
        problems = [
            problem
            for number, protocol in enumerate(configuration.protocols)
            for problem in await self._problems(f"/protocols/{number}", protocol)
        ]
        if problems:
            raise InvalidInput("The protocol configuration is not valid.", problems=problems, code="protocols_invalid")
        for protocol in configuration.protocols:
            await self._engine.catalog.apply(protocol.document)

    async def _problems(self, at: str, protocol: CompiledProtocol) -> list[Problem]:
        checked = await self._engine.catalog.check(protocol.document)
        found = []
        for error in checked["errors"]:
            if error["code"] == "definition_immutable":
                changed = await self._changes(protocol)
                text = (
                    f"version {protocol.version} of protocol {protocol.protocol_id!r} was published with other "
                    f"contents; they differ at {changed}. Give the new contents a new version."
                )
                found.append(Problem(f"{at}/version", "version_changed", text))
            else:
                found.append(Problem(f"{at}{error['pointer']}", error["code"], error["message"]))
        return found

    async def _changes(self, protocol: CompiledProtocol) -> str:
        """Where the contents differ from those that were published under this version."""
        with suppress(NotFound, DefinitionError, DefinitionConflict):
            stored = await self._engine.catalog.get(protocol.definition, protocol.version)
            known = to_document(from_document(_document_of(stored)))
            return ", ".join(differences(known, to_document(from_document(protocol.document)))[:5])
        return "/steps"


def _document_of(stored: dict[str, Any]) -> dict[str, Any]:
    """The document of a definition, without what the catalog tells of it."""
    told = ("definition_id", "status", "hash", "created_at", "published_at")
    return {name: value for name, value in stored.items() if name not in told}
