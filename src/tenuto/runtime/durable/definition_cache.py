"""The definitions that this process knows: those it provides, and those that other processes published.

A definition is stored before its first execution starts, and never changes. A program whose name and version are stored
with another plan is refused.
"""

import logging
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from tenuto.authoring.input_schemas import InputSchemas, decode_input_schemas
from tenuto.authoring.program import CompileStored, Program
from tenuto.errors import DefinitionError, StorageError
from tenuto.kernel.definition import from_document
from tenuto.runtime.executor import Performer
from tenuto.runtime.executor.program_registry import ProgramRegistry
from tenuto.runtime.publication import Published, changed_plan, check_startable, definition_row, unknown_definition
from tenuto.storage.caller_connections import Caller
from tenuto.storage.caller_transactions import save_definition
from tenuto.storage.catalog import DefinitionRow, DefinitionStatus, DefinitionsWanted, StoredCatalog
from tenuto.storage.port import Store
from tenuto.views.projections import AuditRow

from .rows import published_row

logger = logging.getLogger("tenuto.definitions")

ENOUGH = 100
ALL = 2**31 - 1
CATALOG_MS = 1_000  # after this time, other processes know a new definition


_Content: TypeAlias = tuple[str, InputSchemas | None]


def _content(program: Program) -> _Content:
    return program.plan.hash, program.encode_input.schemas


class DefinitionCache:
    """Implements `Programs` on a store: stores the definitions of this process, and caches the stored ones."""

    def __init__(
        self,
        store: Store,
        registered: ProgramRegistry,
        compile: CompileStored,
        now_ms: Callable[[], int],
        *,
        works: bool,
    ) -> None:
        """`works`: whether handlers run in this process."""
        self._store = store
        self._registered = registered
        self._now = now_ms
        self._compile = compile
        self._provided: dict[tuple[str, int], None] = {}  # programs of this process, in their order
        self._refused: dict[tuple[str, int], DefinitionError] = {}
        self._stored: dict[tuple[str, int], _Content] = {}
        self._works = works
        self._in_catalog: dict[tuple[str, int], str] = {}
        self._input_schemas: dict[tuple[str, int], str | None] = {}  # hashes of those in use, where there is no code
        self._noted: dict[tuple[str, int], str] = {}  # since the catalog was last read
        self._read_catalog_at = 0
        self._unreadable: set[tuple[str, int]] = set()
        self._runnable: dict[Performer, bool] = {}
        registered.on_change.append(self._runnable.clear)
        self.provided = registered.provided
        self.provide_handler = registered.provide_handler
        self.knows = registered.knows

    @property
    def catalog(self) -> StoredCatalog:
        return self._store.catalog

    def provide(self, program: Program) -> None:
        """Registers a program of this process. `publish_provided` stores it."""
        at = (program.name, program.version)
        self._registered.provide(program)
        self._provided[at] = None
        self._refused.pop(at, None)

    async def publish(self, program: Program, note: AuditRow | None = None) -> bool:
        is_new = self._registered.provided(program.name, program.version) is None
        self._registered.provide(program)
        try:
            return await self.ensure_stored(program, note)
        except StorageError:
            if is_new:  # otherwise it would be stored later without the note
                self._registered.remove(program)
            raise
        except DefinitionError:  # the caller gets it, and the stored definition can still be started
            self._refused.pop((program.name, program.version), None)
            raise

    async def ensure_stored(self, program: Program, note: AuditRow | None = None) -> bool:
        """Returns whether the note was written, with the change that it describes."""
        at = (program.name, program.version)
        if self._stored.get(at) == _content(program):
            return False
        row = definition_row(program, self._now())
        if note is not None and await self.catalog.add(row, note):
            self._stored[at] = _content(program)
            return True
        is_noted = False
        stored = await self._add(row)
        if stored.status == "draft":  # what a process provides is published: drafts give way to it
            await self.catalog.replace(row)
            is_noted = await self.catalog.move(*at, "draft", "published", row.created_at, note) and note is not None
            stored = await self._add(row)
        self._check_stored(program, stored.hash, stored.document)
        if program.encode_input.has_code and stored.input_schemas_hash != row.input_schemas_hash:
            await self.catalog.set_input_schemas(row)
        self._stored[at] = _content(program)
        return is_noted

    async def _add(self, row: DefinitionRow) -> DefinitionRow:
        """Stores a definition, unless its name and version are taken. Returns the stored one."""
        await self.catalog.add(row)
        stored = await self.catalog.find(row.name, row.version)
        assert stored is not None
        return stored

    async def ensure_stored_within(self, caller: Caller, program: Program) -> None:
        """SQLite has one writer, the caller: a missing definition is stored on its connection."""
        if caller.dialect == "postgres" or self._stored.get((program.name, program.version)) == _content(program):
            await self.ensure_stored(program)
            return
        self._check_stored(program, *await save_definition(caller, definition_row(program, self._now())))

    def _check_stored(self, program: Program, hash: str, document: bytes) -> None:
        """Refuses a program if another plan is stored under its version. From then on, no handler of it runs here."""
        if hash == program.plan.hash:
            return
        at = (program.name, program.version)
        known = self._registered.provided(*at)
        if known is not None and known.plan.hash == program.plan.hash:
            self._registered.remove(program)
        self._provided.pop(at, None)
        error = self._refused[at] = changed_plan(program, msgspec.json.decode(document))
        raise error

    async def find(self, name: str, version: int | None) -> Program:
        if version is None:
            version = await self._version_to_start(name)
        if version is not None and (refused := self._refused.get((name, version))) is not None:
            raise refused
        program = (await self.stored_performer(name, version)).program
        check_startable(name, program.version, self._in_catalog.get((name, program.version), "published"))
        return program

    async def _version_to_start(self, name: str) -> int | None:
        """The newest published version. If there is none, the newest deprecated one, whose start says why it fails."""
        newest = self._registered.newest.get(name)
        if newest is not None and self._in_catalog.get((name, newest.program.version), "published") == "published":
            return newest.program.version
        row = await self.catalog.find(name, None)
        if row is not None:
            return row.version
        deprecated = await self.catalog.page(DefinitionsWanted(names=(name,), status="deprecated"), None, ENOUGH)
        return deprecated[-1].version if deprecated else None

    async def publish_provided(self) -> None:
        """Publishes what was registered since the last call. A refusal is logged, and hinders no other definition."""
        for at in list(self._provided):
            program = self._registered.provided(*at)
            if program is not None:
                try:
                    await self.ensure_stored(program)
                except DefinitionError as error:
                    logger.error("%s", error, extra={"action": "definition_refused", "code": error.code})

    async def store_provided(self) -> list[DefinitionError]:
        await self.publish_provided()
        return list(self._refused.values())

    def note_status(self, name: str, version: int, status: DefinitionStatus) -> None:
        self._in_catalog[name, version] = self._noted[name, version] = status

    async def published(self) -> list[Published]:
        await self.store_provided()
        rows = await self.catalog.page(DefinitionsWanted(), None, ALL)
        return [published_row(row) for row in rows]

    async def refresh(self) -> None:
        """Learns the definitions that other processes published or deprecated."""
        if self._now() < self._read_catalog_at:
            return
        self._read_catalog_at = self._now() + CATALOG_MS
        self._noted = {}
        states = await self.catalog.states()
        statuses = {at: state.status for at, state in states.items()}
        self._in_catalog = {**statuses, **self._noted}  # changes noted during the read may be newer
        # A restored database may lack definitions that this process stored. They are stored again when needed.
        self._stored = {at: hash for at, hash in self._stored.items() if at in self._in_catalog}
        for at, status in list(self._in_catalog.items()):  # notes may come in during an await
            if status != "draft" and at not in self._registered.performers and at not in self._unreadable:
                try:
                    await self.stored_performer(*at)
                except (DefinitionError, msgspec.ValidationError):  # of another release, whose workers run it
                    self._unreadable.add(at)
        for at, state in states.items():
            await self._renew_input_schemas(at, state.input_schemas_hash)

    async def _renew_input_schemas(self, at: tuple[str, int], hash: str | None) -> None:
        """A worker may have registered the saga with other types since its definition was read here."""
        performer = self._registered.performers.get(at)
        if performer is None or performer.program.encode_input.has_code or self._input_schemas.get(at) == hash:
            return
        row = await self.catalog.find(*at)
        # Its code may have been registered in the meantime.
        if row is not None and not performer.program.encode_input.has_code:
            performer.replace(self._compile_row(row))

    async def stored_performer(self, name: str, version: int | None) -> Performer:
        """The stored definition. Without its code this process can still start, read and decide its executions."""
        if version is not None and (known := self._registered.performers.get((name, version))) is not None:
            return known
        row = await self.catalog.find(name, version)
        if row is not None and row.status == "draft":
            row = None
        if row is None:
            states = await self.catalog.states()
            published = [at for at, state in states.items() if state.status == "published"]
            raise unknown_definition(name, version, [*published, *self._registered.performers])
        program = self._compile_row(row)
        performer = self._registered.performers.get((row.name, row.version))
        if performer is None:
            performer = self._registered.add(program)
            self._stored[row.name, row.version] = _content(program)
            self._in_catalog[row.name, row.version] = row.status
            self._runnable.clear()
        return performer

    def _compile_row(self, row: DefinitionRow) -> Program:
        self._input_schemas[row.name, row.version] = row.input_schemas_hash
        definition = from_document(msgspec.json.decode(row.document))
        return self._registered.override(self._compile(definition, decode_input_schemas(row.input_schemas)))

    def runs(self, performer: Performer) -> bool:
        """Whether this process runs executions of this program."""
        return self._works and self.can_run(performer)

    def can_run(self, performer: Performer) -> bool:
        """Whether this process has the handlers of all steps without a queue."""
        known = self._runnable.get(performer)
        if known is None:
            missing = performer.program.missing_handlers()
            known = self._runnable[performer] = all(performer.handler(name) is not None for name in missing)
        return known
