"""The lifecycle of definitions: drafts can change, published versions are immutable, deprecated ones start no more.

A definition belongs to the tenant that drafted it. Definitions that code registers, and those of the tenant `default`,
belong to the deployment: every tenant may start them, and none may change them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from tenuto.authoring.document import Source, read_document
from tenuto.authoring.program import EVERY_TENANT, Handler, Program
from tenuto.authoring.programs import compile_document
from tenuto.errors import DefinitionConflict, DefinitionError, NotFound, Problem
from tenuto.handlers.declared import with_problems
from tenuto.kernel.definition import Definition, Scope, Step, canonical, from_document, owned_name, owner_of, plain_name
from tenuto.kernel.plan import Plan
from tenuto.kernel.validation import Tree
from tenuto.kernel.validation.tree import Place
from tenuto.runtime.shared.filters import check_filter
from tenuto.runtime.shared.pages import Paging, number_at
from tenuto.storage.catalog import Catalog, DefinitionStatus, DefinitionsWanted
from tenuto.storage.port import DefinitionRow
from tenuto.values.names import DEFAULT_TENANT
from tenuto.views import rfc3339, time_text
from tenuto.views.pages import Page
from tenuto.views.projections import AuditRow

from .context import EngineContext

LARGEST_VERSION = 2**31 - 1  # the range of the column


class DefinitionSummary(TypedDict):
    """A definition in a list."""

    definition_id: str
    name: str
    version: int
    status: DefinitionStatus
    hash: str
    created_at: str
    published_at: str | None


class Validation(TypedDict):
    """The result of validating a definition. `missing_handlers` are not in this process; a worker may have them."""

    valid: bool
    errors: list[dict[str, str]]
    missing_handlers: list[str]


class Definitions:
    """Reads and changes the definitions of a tenant, and reads those of the deployment."""

    def __init__(
        self,
        context: EngineContext,
        handlers: Mapping[str, Handler],
        built_in: Collection[str] = (),
        open_limits: Collection[str] = (),
    ) -> None:
        self._context = context
        self._handlers = handlers
        self._built_in = built_in  # names that every process has
        self._permitted = _Permitted(handlers, frozenset(open_limits))
        self._catalog = context.backend.programs.catalog

    async def refused(self) -> Sequence[DefinitionError]:
        """Publishes the registered sagas. Returns the refusals: another plan is stored under their version."""
        return await self._context.backend.programs.store_provided()

    # Reading

    async def list(
        self,
        *,
        name: str | None = None,
        status: DefinitionStatus | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[DefinitionSummary]:
        self._context.scope.require("definitions:read")
        check_filter(state=status, limit=limit, name=name)
        await self._context.backend.programs.store_provided()
        wanted = DefinitionsWanted(
            owner=self._context.scope.tenant, names=() if name is None else self._names(name), status=status
        )
        paging = Paging("definitions", wanted, cursor)
        after = None if paging.after is None else _after(paging.after)
        rows = await self._catalog.page(wanted, after, limit + 1)
        last = rows[limit - 1] if len(rows) > limit else None
        return paging.page([_summary(row) for row in rows[:limit]], None if last is None else _position(last))

    async def get(self, name: str, version: int) -> dict[str, Any]:
        """Returns the document with its status and timestamps."""
        self._context.scope.require("definitions:read")
        await self._context.backend.programs.store_provided()
        return shown(await self._find(name, version))

    async def validate(self, name: str, version: int) -> Validation:
        self._context.scope.require("definitions:read")
        await self._context.backend.programs.store_provided()
        row = await self._find(name, version)
        try:
            program = self._compile(row)
        except DefinitionError as error:
            return _invalid(error.problems)
        # Code brings its own handlers, which no document names.
        own = self._context.backend.programs.provided(row.name, row.version)
        here = {*self._built_in, *(own.handlers if own is not None and own.plan.hash == row.hash else ())}
        missing = [name for name in program.missing_handlers() if name not in here]
        return {"valid": True, "errors": [], "missing_handlers": missing}

    async def check(self, document: Source) -> Validation:
        """Validates a document without storing it."""
        self._context.scope.require("definitions:read")
        try:
            row = await self._read(document)
            program = self._compile(row)
        except DefinitionConflict as error:
            return _invalid([Problem("/name", error.code, error.message)])
        except DefinitionError as error:
            return _invalid(error.problems or [Problem("", error.code, error.message)])
        stored = await self._catalog.find(row.name, row.version)
        if stored is not None and stored.status != "draft" and stored.hash != row.hash:
            return _invalid([Problem("/version", "definition_immutable", _not_a_draft(stored).message)])
        missing = [name for name in program.missing_handlers() if name not in self._built_in]
        return {"valid": True, "errors": [], "missing_handlers": missing}

    # Commands

    async def draft(self, document: Source) -> tuple[dict[str, Any], bool]:
        """Stores a draft. Returns the draft, and whether it is new: storing the same document again changes nothing."""
        self._context.scope.require("definitions:write")
        row = await self._read(document)
        if await self._catalog.add(row, self._noted(row, "definition.drafted")):
            return shown(row), True
        stored = await self._catalog.find(row.name, row.version)
        if stored is None or stored.hash != row.hash:
            raise DefinitionConflict(
                f"Definition {plain_name(row.name)!r} in version {row.version} already exists.",
                code="definition_exists",
                hint="change the draft with PUT, or use another version",
            )
        return shown(stored), False

    async def replace(self, name: str, version: int, document: Source) -> dict[str, Any]:
        self._context.scope.require("definitions:write")
        row = await self._read(document)
        if (plain_name(row.name), row.version) != (name, version):
            raise DefinitionError.at("/name", "other_name", "name and version must match the URL")
        stored = await self._own(name, version)
        if not await self._catalog.replace(row, self._noted(row, "definition.changed")):
            raise _not_a_draft(stored)
        return await self.get(name, version)

    async def apply(self, document: Source) -> None:
        """Publishes a document at once. A stored definition of the same name and version must be the same.

        A deprecated definition stays deprecated: workers of its running executions may apply it too.
        """
        context = self._context
        context.scope.require("definitions:write")
        row = await self._read(document)
        note = self._noted(row, "definition.published")
        is_noted = await context.backend.programs.publish(compile_document(_definition(row), self._handlers), note)
        stored = await self._catalog.find(row.name, row.version)
        if stored is not None and stored.status == "deprecated":
            context.backend.programs.note_status(row.name, row.version, "deprecated")
            return
        context.backend.programs.note_status(row.name, row.version, "published")
        if not is_noted:
            await context.backend.audit.note(note)

    async def publish(self, name: str, version: int) -> dict[str, Any]:
        """Publishes a draft. It can be started from now on and never changes. Repeating it changes nothing."""
        context = self._context
        context.scope.require("definitions:write")
        stored = await self._own(name, version)
        if stored.status == "deprecated":
            raise DefinitionConflict(
                f"Definition {name!r} in version {version} is deprecated.",
                code="definition_deprecated",
                hint="deprecation is permanent: publish the document under a new version",
            )
        if stored.status == "draft":
            program = self._compile(stored)
            note = self._noted(stored, "definition.published")
            await self._catalog.move(stored.name, version, "draft", "published", context.now, note)
            context.backend.programs.provide(program)
            context.backend.programs.note_status(stored.name, version, "published")
        return await self.get(name, version)

    async def deprecate(self, name: str, version: int) -> dict[str, Any]:
        """Deprecates a version. No new executions start; running ones continue."""
        context = self._context
        context.scope.require("definitions:write")
        stored = await self._own(name, version)
        if stored.status == "draft":
            raise DefinitionConflict(f"Definition {name!r} in version {version} is a draft.", code="definition_draft")
        note = self._noted(stored, "definition.deprecated")
        await self._catalog.move(stored.name, version, "published", "deprecated", context.now, note)
        context.backend.programs.note_status(stored.name, version, "deprecated")
        return await self.get(name, version)

    # Names

    @property
    def _owner(self) -> str | None:
        scope = self._context.scope
        return None if scope.is_deployment else scope.tenant

    def _names(self, name: str) -> tuple[str, ...]:
        return (name,) if self._owner is None else (owned_name(self._owner, name), name)

    async def _find(self, name: str, version: int) -> DefinitionRow:
        # A name with a slash is the internal name of a tenant's definition: the credential decides the tenant.
        for each in self._names(name) if "/" not in name else ():
            row = await self._catalog.find(each, version)
            if row is not None and (row.status != "draft" or each == self._names(name)[0]):
                return row
        raise NotFound(f"There is no definition {name!r} in version {version}.")

    async def _own(self, name: str, version: int) -> DefinitionRow:
        row = await self._find(name, version)
        if row.name != self._names(name)[0]:
            raise DefinitionConflict(
                f"Definition {name!r} belongs to the deployment.", code="definition_shared", hint="use another name"
            )
        return row

    async def _read(self, document: Source) -> DefinitionRow:
        definition = read_document(document, lambda found: self._permitted.problems(found, self._owner))
        await self._context.backend.programs.store_provided()
        if self._owner is not None:
            if await self._catalog.page(DefinitionsWanted(names=(definition.name,)), None, 1):
                raise DefinitionConflict(
                    f"Definition {definition.name!r} belongs to the deployment.",
                    code="definition_shared",
                    hint="use another name",
                )
            definition = msgspec.structs.replace(definition, name=owned_name(self._owner, definition.name))
        return DefinitionRow(
            name=definition.name,
            version=definition.version,
            status="draft",
            hash=Plan(definition).hash,
            document=canonical(definition),
            created_at=self._context.now,
            published_at=None,
        )

    def _compile(self, row: DefinitionRow) -> Program:
        definition = _definition(row)
        if problems := self._permitted.problems(definition, owner_of(row.name)):
            raise DefinitionError(f"Definition {plain_name(row.name)!r} cannot be run.", problems=problems)
        return compile_document(definition, self._handlers)

    def _noted(self, row: DefinitionRow, action: str) -> AuditRow:
        scope = self._context.scope
        return AuditRow(
            tenant=scope.tenant or DEFAULT_TENANT,
            at=self._context.now,
            actor=scope.actor or "system",
            action=action,
            object_type="definition",
            object_id=f"{plain_name(row.name)}/{row.version}",
        )


async def is_draft(catalog: Catalog, name: str, version: int | None, tenant: str) -> bool:
    """Whether the tenant has a draft of this definition."""
    own = name if tenant == DEFAULT_TENANT else owned_name(tenant, name)
    if version is not None:
        row = await catalog.find(own, version)
        return row is not None and row.status == "draft"
    return bool(await catalog.page(DefinitionsWanted(names=(own,), status="draft"), None, 1))


class _Permitted:
    """Checks the handlers and limits that a document names. A tenant's document may use those open to the tenant."""

    def __init__(self, handlers: Mapping[str, Handler], limits: frozenset[str]) -> None:
        self._handlers = handlers
        self._limits = limits

    def problems(self, definition: Definition, owner: str | None) -> list[Problem]:
        found = with_problems(definition, self._handlers)
        if owner is not None:
            tree = Tree(definition)
            found += (problem for place in (tree.root, *tree.places) for problem in self._not_open(place, owner))
        return found

    def _not_open(self, place: Place, owner: str) -> Iterator[Problem]:
        """Yields the names that are not open. Handlers of other processes are checked there."""
        for field, name in _handlers_named(place.node):
            handler = self._handlers.get(name)
            if handler is not None and not handler.serves(owner):
                yield _denied(f"{place.pointer}/{field}", "handler", name)
        for index, name in enumerate(place.node.limits if isinstance(place.node, Step) else ()):
            if not self._limits & {f"{name}:{owner}", f"{name}:{EVERY_TENANT}"}:
                yield _denied(f"{place.pointer}/limits/{index}", "limit", name)


def _denied(at: str, kind: str, name: str) -> Problem:
    text = f"the {kind} {name!r} is not open to definitions of this tenant: ask the operator of the deployment"
    return Problem(at, f"{kind}_denied", text)


def _handlers_named(node: Step | Scope) -> Iterator[tuple[str, str]]:
    fields = ("planner",) if isinstance(node, Scope) else _HANDLER_FIELDS
    for field in fields:
        name: str | None = getattr(node, field)
        if name is not None:
            yield field, name


_HANDLER_FIELDS = ("handler", "guard_handler", "reconcile_handler", "compensation_handler")


def _invalid(problems: Sequence[Problem]) -> Validation:
    errors = [{"pointer": p.path, "code": p.code, "message": p.message} for p in problems]
    return {"valid": False, "errors": errors, "missing_handlers": []}


def _definition(row: DefinitionRow) -> Definition:
    return from_document(msgspec.json.decode(row.document))


def _summary(row: DefinitionRow) -> DefinitionSummary:
    status: Any = row.status
    return {
        "definition_id": plain_name(row.name),
        "name": plain_name(row.name),
        "version": row.version,
        "status": status,
        "hash": row.hash,
        "created_at": rfc3339(row.created_at),
        "published_at": time_text(row.published_at),
    }


def shown(row: DefinitionRow) -> dict[str, Any]:
    return {**msgspec.json.decode(row.document), **_summary(row)}


def _not_a_draft(row: DefinitionRow) -> DefinitionConflict:
    return DefinitionConflict(
        f"Definition {plain_name(row.name)!r} in version {row.version} is {row.status} and cannot be changed.",
        code="definition_immutable",
        hint="publish it under a new version",
    )


def _position(row: DefinitionRow) -> str:
    return f"{row.version} {row.name}"


def _after(position: str) -> tuple[str, int]:
    version, _, name = position.partition(" ")
    return name, number_at(version, LARGEST_VERSION)
