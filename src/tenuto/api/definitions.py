"""Definitions and their lives: drafts are changed, published once and for all, deprecated when they have had their day.

A definition belongs to the tenant that drafted it. Those that code registers, and those of the tenant `default`, are
the deployment's own: every tenant may start them, and none may change them.
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
from tenuto.runtime.port import DefinitionStatus, Page
from tenuto.runtime.shared.filters import check_filter
from tenuto.runtime.shared.pages import Paging, number_at
from tenuto.storage.catalog import DefinitionsWanted
from tenuto.storage.port import DefinitionRow
from tenuto.values.names import DEFAULT_TENANT
from tenuto.views import rfc3339, time_text
from tenuto.views.projections import AuditRow

from .context import EngineContext

LARGEST_VERSION = 2**31 - 1  # what the column holds


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
    """What publishing would say. `missing_handlers` are those that this process does not have; a worker may."""

    valid: bool
    errors: list[dict[str, str]]
    missing_handlers: list[str]


class Definitions:
    """The definitions that a tenant has or may use."""

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
        self._opened = _Opened(handlers, frozenset(open_limits))
        self._catalog = context.runtime.catalog

    # Looking

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
        await self._context.runtime.keep_definitions()
        wanted = DefinitionsWanted(
            owner=self._context.scope.tenant, names=() if name is None else self._names(name), status=status
        )
        paging = Paging("definitions", wanted, cursor)
        after = None if paging.after is None else _after(paging.after)
        rows = await self._catalog.page(wanted, after, limit + 1)
        last = rows[limit - 1] if len(rows) > limit else None
        return paging.page([_summary(row) for row in rows[:limit]], None if last is None else _position(last))

    async def get(self, name: str, version: int) -> dict[str, Any]:
        """The document, with its status and when it came to be so."""
        self._context.scope.require("definitions:read")
        await self._context.runtime.keep_definitions()
        return shown(await self._find(name, version))

    async def validate(self, name: str, version: int) -> Validation:
        self._context.scope.require("definitions:read")
        await self._context.runtime.keep_definitions()
        row = await self._find(name, version)
        try:
            program = self._compile(row)
        except DefinitionError as error:
            return _invalid(error.problems)
        # What came with code has its handlers from there, and no document names them.
        own = self._context.runtime.provided(row.name, row.version)
        here = {*self._built_in, *(own.handlers if own is not None and own.plan.hash == row.hash else ())}
        missing = [name for name in program.missing_handlers() if name not in here]
        return {"valid": True, "errors": [], "missing_handlers": missing}

    async def check(self, document: Source) -> Validation:
        """What publishing this document would say. Nothing is stored."""
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

    async def is_draft(self, name: str, version: int | None, tenant: str) -> bool:
        """Whether a tenant has nothing but a draft of it."""
        own = name if tenant == DEFAULT_TENANT else owned_name(tenant, name)
        if version is not None:
            row = await self._catalog.find(own, version)
            return row is not None and row.status == "draft"
        return bool(await self._catalog.page(DefinitionsWanted(names=(own,), status="draft"), None, 1))

    # Changing

    async def draft(self, document: Source) -> tuple[dict[str, Any], bool]:
        """Keeps a draft. The same document twice is one; also says whether this made it."""
        self._context.scope.require("definitions:write")
        row = await self._read(document)
        if await self._catalog.add(row, self._noted(row, "definition.drafted")):
            return shown(row), True
        stored = await self._catalog.find(row.name, row.version)
        if stored is None or stored.hash != row.hash:
            raise DefinitionConflict(
                f"There is a definition {plain_name(row.name)!r} in version {row.version} already.",
                code="definition_exists",
                hint="change the draft with PUT, or give this one another version",
            )
        return shown(stored), False

    async def replace(self, name: str, version: int, document: Source) -> dict[str, Any]:
        self._context.scope.require("definitions:write")
        row = await self._read(document)
        if (plain_name(row.name), row.version) != (name, version):
            raise DefinitionError.at("/name", "other_name", "the name and version are those of the address")
        stored = await self._own(name, version)
        if not await self._catalog.replace(row, self._noted(row, "definition.changed")):
            raise _not_a_draft(stored)
        return await self.get(name, version)

    async def apply(self, document: Source) -> None:
        """Publishes at once. What is published under this name and version must be the same.

        What is deprecated stays so: who works on what runs of it applies it, too.
        """
        context = self._context
        context.scope.require("definitions:write")
        row = await self._read(document)
        note = self._noted(row, "definition.published")
        is_noted = await context.runtime.publish(compile_document(_definition(row), self._handlers), note)
        stored = await self._catalog.find(row.name, row.version)
        if stored is not None and stored.status == "deprecated":
            context.runtime.note_definition(row.name, row.version, "deprecated")
            return
        context.runtime.note_definition(row.name, row.version, "published")
        if not is_noted:
            await context.runtime.note(note)

    async def publish(self, name: str, version: int) -> dict[str, Any]:
        """From now on it can be started, and never changes. To publish what is published changes nothing."""
        context = self._context
        context.scope.require("definitions:write")
        stored = await self._own(name, version)
        if stored.status == "deprecated":
            raise DefinitionConflict(
                f"{name!r} in version {version} is deprecated.",
                code="definition_deprecated",
                hint="that is for good: publish the document under a new version",
            )
        if stored.status == "draft":
            program = self._compile(stored)
            note = self._noted(stored, "definition.published")
            await self._catalog.move(stored.name, version, "draft", "published", context.now, note)
            context.runtime.provide(program)
            context.runtime.note_definition(stored.name, version, "published")
        return await self.get(name, version)

    async def deprecate(self, name: str, version: int) -> dict[str, Any]:
        """No more of it is started; what runs goes on."""
        context = self._context
        context.scope.require("definitions:write")
        stored = await self._own(name, version)
        if stored.status == "draft":
            raise DefinitionConflict(f"{name!r} in version {version} is a draft.", code="definition_draft")
        note = self._noted(stored, "definition.deprecated")
        await self._catalog.move(stored.name, version, "published", "deprecated", context.now, note)
        context.runtime.note_definition(stored.name, version, "deprecated")
        return await self.get(name, version)

    # Names

    @property
    def _owner(self) -> str | None:
        scope = self._context.scope
        return None if scope.is_deployment else scope.tenant

    def _names(self, name: str) -> tuple[str, ...]:
        return (name,) if self._owner is None else (owned_name(self._owner, name), name)

    async def _find(self, name: str, version: int) -> DefinitionRow:
        for each in (
            self._names(name) if "/" not in name else ()
        ):  # whose it is, nobody says but the caller's credential
            row = await self._catalog.find(each, version)
            if row is not None and (row.status != "draft" or each == self._names(name)[0]):
                return row
        raise NotFound(f"There is no definition {name!r} in version {version}.")

    async def _own(self, name: str, version: int) -> DefinitionRow:
        row = await self._find(name, version)
        if row.name != self._names(name)[0]:
            raise DefinitionConflict(
                f"{name!r} is the deployment's own.", code="definition_shared", hint="draft one under another name"
            )
        return row

    async def _read(self, document: Source) -> DefinitionRow:
        definition = read_document(document, lambda found: self._opened.problems(found, self._owner))
        await self._context.runtime.keep_definitions()
        if self._owner is not None:
            if await self._catalog.page(DefinitionsWanted(names=(definition.name,)), None, 1):
                raise DefinitionConflict(
                    f"{definition.name!r} is the deployment's own.",
                    code="definition_shared",
                    hint="draft one under another name",
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
        if problems := self._opened.problems(definition, owner_of(row.name)):
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


class _Opened:
    """What documents may name: the deployment's all that it has, a tenant's what is open to that tenant."""

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
        """Handlers that this process does not have may be a worker's, which asks the same before it runs them."""
        for field, name in _handlers_named(place.node):
            handler = self._handlers.get(name)
            if handler is not None and not handler.serves(owner):
                yield _denied(f"{place.pointer}/{field}", "handler", name)
        for index, name in enumerate(place.node.limits if isinstance(place.node, Step) else ()):
            if not self._limits & {f"{name}:{owner}", f"{name}:{EVERY_TENANT}"}:
                yield _denied(f"{place.pointer}/limits/{index}", "limit", name)


def _denied(at: str, kind: str, name: str) -> Problem:
    text = f"the {kind} {name!r} is not open to definitions of this tenant: ask whoever runs the deployment"
    return Problem(at, f"{kind}_denied", text)


def _handlers_named(node: Step | Scope) -> Iterator[tuple[str, str]]:
    fields = ("planner",) if isinstance(node, Scope) else _HANDLER_FIELDS
    for field in fields:
        name: str | None = getattr(node, field)
        if name is not None:
            yield field, name


_HANDLER_FIELDS = ("handler", "guard_handler", "reconcile_handler", "compensation_handler")


def _invalid(problems: Sequence[Problem]) -> Validation:
    told = [{"pointer": p.path, "code": p.code, "message": p.message} for p in problems]
    return {"valid": False, "errors": told, "missing_handlers": []}


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
        f"{plain_name(row.name)!r} in version {row.version} is {row.status}, and does not change.",
        code="definition_immutable",
        hint="give it a new version",
    )


def _position(row: DefinitionRow) -> str:
    return f"{row.version} {row.name}"


def _after(position: str) -> tuple[str, int]:
    version, _, name = position.partition(" ")
    return name, number_at(version, LARGEST_VERSION)
