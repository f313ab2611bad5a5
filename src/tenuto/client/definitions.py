"""The definitions of the service: read, cached once they are immutable, and published."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from time import monotonic
from typing import Any, Final

import msgspec

from tenuto.authoring.program import Handler, Program
from tenuto.errors import DefinitionConflict, DefinitionError, NotFound
from tenuto.kernel.definition import Definition, canonical, content_hash, from_document, plain_name
from tenuto.runtime.publication import Published, changed_plan, definition_row, unknown_definition
from tenuto.storage.catalog import DefinitionRow, DefinitionStatus, DefinitionsWanted
from tenuto.views.projections import AuditRow

from .transport import Transport, paged, quoted

NEWEST_SECONDS: Final = 1.0  # how long the newest version of a name is cached
CONCURRENCY: Final = 8
_SHOWN: Final = ("definition_id", "status", "hash", "created_at", "published_at")


class RemoteCatalog:
    """Implements `Catalog` over HTTP. The credential decides which definitions are visible.

    The service writes the audit log itself, in the name of the credential, so `note` arguments are ignored.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def find(self, name: str, version: int | None) -> DefinitionRow | None:
        if version is None:
            version = await self.newest(name)
        try:
            return (
                None if version is None else _row(await self._transport.get(_path(name, version), has="definition_id"))
            )
        except NotFound:
            return None

    async def published(self) -> list[tuple[str, int]]:
        """Returns the names and versions of what can be started."""
        params = {"status": "published"}
        return [(each["name"], each["version"]) async for each in paged(self._transport, "/v1/definitions", params)]

    async def newest(self, name: str) -> int | None:
        """Returns the newest published version."""
        params = {"name": name, "status": "published"}
        return max([each["version"] async for each in paged(self._transport, "/v1/definitions", params)], default=None)

    async def page(self, wanted: DefinitionsWanted, after: tuple[str, int] | None, limit: int) -> list[DefinitionRow]:
        """Fetches all definitions and pages locally: the service has its own cursors, and definitions are few."""
        rows = [row for row in await self.all(wanted) if after is None or (row.name, row.version) > after]
        return rows[:limit]

    async def all(self, wanted: DefinitionsWanted) -> list[DefinitionRow]:
        params = {"status": wanted.status, "name": wanted.names[0] if wanted.names else None}
        found = [(each["name"], each["version"]) async for each in paged(self._transport, "/v1/definitions", params)]
        semaphore = asyncio.Semaphore(CONCURRENCY)

        async def fetch(name: str, version: int) -> DefinitionRow:
            async with semaphore:
                return _row(await self._transport.get(_path(name, version), has="definition_id"))

        return await asyncio.gather(*(fetch(*each) for each in sorted(found)))

    async def add(self, row: DefinitionRow, note: AuditRow | None = None) -> bool:
        document = msgspec.json.decode(row.document)
        try:
            answer = await self._transport.send("POST", "/v1/definitions", body=document, repeats=True)
            answer.document("definition_id")
        except DefinitionConflict as error:
            if error.code != "definition_exists":
                raise
            return False
        return answer.status == 201

    async def replace(self, row: DefinitionRow, note: AuditRow | None = None) -> bool:
        document = msgspec.json.decode(row.document)
        try:
            answer = await self._transport.send("PUT", _path(row.name, row.version), body=document, repeats=True)
            answer.document("definition_id")
        except DefinitionConflict as error:
            if error.code != "definition_immutable":
                raise
            return False
        return True

    async def move(
        self, name: str, version: int, before: str, after: str, at: int, note: AuditRow | None = None
    ) -> bool:
        verb = {"published": "publish", "deprecated": "deprecate"}[after]
        answer = await self._transport.send("POST", f"{_path(name, version)}:{verb}", repeats=True)
        answer.document("definition_id")
        return True


class RemotePrograms:
    """Implements `Programs`: those registered in this process, which have types, and those of the service."""

    def __init__(self, catalog: RemoteCatalog, compile: Callable[[Definition], Program]) -> None:
        self._catalog = self.catalog = catalog
        self._compile = compile
        self._own: dict[tuple[str, int], Program] = {}
        self._stored: dict[tuple[str, int], Program] = {}
        self._checked: set[tuple[str, int]] = set()
        self._newest: dict[str, tuple[float, int]] = {}

    def provide(self, program: Program) -> None:
        self._own[program.name, program.version] = program

    def provided(self, name: str, version: int) -> Program | None:
        return self._own.get((name, version))

    def provide_handler(self, handler: Handler) -> None:
        """Does nothing: handlers run in workers."""

    async def store_provided(self) -> list[DefinitionError]:
        """Stores nothing: the workers of the service store their definitions."""
        return []

    def knows(self, name: str) -> bool:
        return any(own == name for own, _ in self._own)

    def note_status(self, name: str, version: int, status: DefinitionStatus) -> None:
        """Drops the cached newest versions."""
        self._newest.clear()

    async def find(self, name: str, version: int | None) -> Program:
        """Returns the program to start. Default version: the newest registered here, or else the newest published."""
        if version is None:
            version = max((known for own, known in self._own if own == name), default=None)
        if version is None:
            version = await self._newest_of(name)
        if (own := self._own.get((name, version))) is not None:
            await self._check_own(own)
            return own
        return await self.of(name, version)

    def is_own(self, program: Program) -> bool:
        return self._own.get((program.name, program.version)) is program

    async def _newest_of(self, name: str) -> int:
        known = self._newest.get(name)
        if known is not None and monotonic() - known[0] < NEWEST_SECONDS:
            return known[1]
        found = await self._catalog.newest(name)
        if found is None:
            raise unknown_definition(name, None, await self._catalog.published())
        self._newest[name] = (monotonic(), found)
        return found

    async def of(self, name: str, version: int) -> Program:
        """Returns the program of an execution, with the types of this process if the plan is the same."""
        at = (plain_name(name), version)
        if at not in self._stored:
            row = await self._catalog.find(*at)
            if row is None:
                raise unknown_definition(*at, await self._catalog.published())
            own = self._own.get(at)
            program = own if own is not None and own.plan.hash == row.hash else self._compile(_definition(row))
            if row.status == "draft":
                return program  # a draft may change
            self._stored[at] = program
        return self._stored[at]

    async def _check_own(self, program: Program) -> None:
        """Checks that the service has the same definition as this process.

        The client does not publish it. Code belongs to the deployment, and its workers publish its definitions; a
        definition published by the client would belong to the client's tenant, and no worker would have its code.
        """
        at = (program.name, program.version)
        if at in self._checked:
            return
        row = await self._catalog.find(*at)
        if row is None or row.status == "draft":
            raise NotFound(
                f"The service has no definition {program.name!r} in version {program.version}.",
                hint="start a worker that has the code: `tenuto worker --app MODULE`",
            )
        if row.hash != program.plan.hash:
            raise changed_plan(program, msgspec.json.decode(row.document))
        self._checked.add(at)

    async def publish(self, program: Program, note: AuditRow | None = None) -> bool:
        """Publishes a definition for the credential's tenant. The service writes the audit log."""
        row = definition_row(program, 0)
        if not await self._catalog.add(row):
            stored = await self._catalog.find(row.name, row.version)
            if stored is not None and stored.status == "draft":
                await self._catalog.replace(row)
            elif stored is not None and stored.hash != row.hash:
                raise changed_plan(program, msgspec.json.decode(stored.document))
        await self._catalog.move(row.name, row.version, "draft", "published", 0)
        self._newest.clear()
        return False

    async def published(self) -> list[Published]:
        rows = await self._catalog.all(DefinitionsWanted())
        return [
            Published(definition=_definition(row), status=row.status, plan_hash=row.hash)  # type: ignore[arg-type]  # one of the three
            for row in rows
            if row.status != "draft"
        ]


def _path(name: str, version: int) -> str:
    return f"/v1/definitions/{quoted(name)}/{version}"


def _row(shown: dict[str, Any]) -> DefinitionRow:
    """Computes the hash here, because the service's hash includes the tenant's internal name."""
    definition = from_document({name: value for name, value in shown.items() if name not in _SHOWN})
    return DefinitionRow(
        name=definition.name,
        version=definition.version,
        status=shown["status"],
        hash=content_hash(definition),
        document=canonical(definition),
        created_at=_ms(shown["created_at"]),
        published_at=None if shown["published_at"] is None else _ms(shown["published_at"]),
    )


def _definition(row: DefinitionRow) -> Definition:
    return from_document(msgspec.json.decode(row.document))


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000)
