"""The definitions of the memory runtime."""

from collections.abc import Callable

from tenuto.authoring.program import Program
from tenuto.errors import DefinitionError
from tenuto.runtime.executor import Performer
from tenuto.runtime.executor.program_registry import ProgramRegistry
from tenuto.runtime.publication import Published, check_startable, definition_row
from tenuto.storage.catalog import Catalog, DefinitionStatus
from tenuto.storage.memory.registry import MemoryRegistry
from tenuto.views.projections import AuditRow


class MemoryPrograms:
    """Implements `Programs`. The catalog exists from its first use."""

    def __init__(
        self, registered: ProgramRegistry, registry: Callable[[], MemoryRegistry], now_ms: Callable[[], int]
    ) -> None:
        self._registered = registered
        self._registry = registry
        self._now = now_ms
        self._catalog: Catalog | None = None
        self._statuses: dict[tuple[str, int], DefinitionStatus] = {}
        self.provide = registered.provide
        self.provided = registered.provided
        self.provide_handler = registered.provide_handler
        self.knows = registered.knows

    @property
    def all(self) -> list[Program]:
        return [performer.program for performer in self._registered.performers.values()]

    @property
    def catalog(self) -> Catalog:
        if self._catalog is None:
            self._catalog = self._registry().catalog
        return self._catalog

    async def publish(self, program: Program, note: AuditRow | None = None) -> bool:
        self.provide(program)
        if self._catalog is not None:
            await self.store_provided()
        return False

    async def find(self, name: str, version: int | None) -> Program:
        performer = self._registered.performer(name, version)
        if self._statuses:
            performer = self._startable(performer, version)
        return performer.program

    def _startable(self, performer: Performer, version: int | None) -> Performer:
        """Once definitions have a status: the newest published version, or the one that was asked for."""
        name = performer.program.name
        if version is None:
            known = [
                found
                for other, found in self._registered.performers
                if other == name and self._statuses.get((other, found), "published") == "published"
            ]
            performer = self._registered.performers[name, max(known)] if known else performer
        at = (name, performer.program.version)
        check_startable(*at, self._statuses.get(at, "published"))
        return performer

    async def published(self) -> list[Published]:
        plans = [program.plan for program in self.all]
        return [Published(definition=p.definition, status="published", plan_hash=p.hash) for p in plans]

    async def store_provided(self) -> list[DefinitionError]:
        catalog = self.catalog
        for program in self.all:
            row = definition_row(program, self._now())
            if not await catalog.add(row) and await catalog.replace(row):
                await catalog.move(row.name, row.version, "draft", "published", row.created_at)
        return []  # `provide` refuses

    def note_status(self, name: str, version: int, status: DefinitionStatus) -> None:
        self._statuses[name, version] = status
