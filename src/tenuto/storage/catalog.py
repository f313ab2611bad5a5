"""Definitions as they are kept: drafts that may change, what is published and never does, what is deprecated."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from msgspec import Struct, structs

from tenuto.values.names import DEFAULT_TENANT
from tenuto.views.projections import AuditRow

from .statements import Statement, Statements, noting

DefinitionStatus: TypeAlias = Literal["draft", "published", "deprecated"]


class DefinitionRow(Struct, frozen=True, kw_only=True):
    """A definition. `input_schemas` are those of a saga, derived from its code: the only part that may change once
    published."""

    name: str
    version: int
    status: str
    hash: str
    document: bytes
    created_at: int
    published_at: int | None
    input_schemas: bytes | None = None
    input_schemas_hash: str | None = None


_COLUMNS = ", ".join(DefinitionRow.__struct_fields__)
# A tenant sees its own definitions and those of the deployment. Drafts are visible only to their owner; the drafts of
# the deployment belong to its own tenant.
_OWN = "substr(name, 1, length(CAST($1 AS text))) = CAST($1 AS text)"
_SEEN = f"((name NOT LIKE '%/%' AND status <> 'draft') OR {_OWN})"
_SEEN_BY_DEPLOYMENT = f"(name NOT LIKE '%/%' OR {_OWN})"


class DefinitionsWanted(Struct, frozen=True, kw_only=True):
    """A filter. `owner` is the tenant whose definitions are seen beside the shared ones; None sees all."""

    owner: str | None = None
    names: tuple[str, ...] = ()
    status: str | None = None


class Catalog(Protocol):
    async def find(self, name: str, version: int | None) -> DefinitionRow | None:
        """One version, whatever its status; or the newest that is published."""

    async def page(
        self, wanted: DefinitionsWanted, after: tuple[str, int] | None, limit: int
    ) -> list[DefinitionRow]: ...

    # What is noted is written with the change that it tells of, or not at all.

    async def add(self, row: DefinitionRow, note: AuditRow | None = None) -> bool:
        """False if the name and version are taken."""

    async def replace(self, row: DefinitionRow, note: AuditRow | None = None) -> bool:
        """Of drafts only: False if it is none."""

    async def move(
        self, name: str, version: int, before: str, after: str, at: int, note: AuditRow | None = None
    ) -> bool:
        """From one status to another; False if it was not in the first."""


class DefinitionState(NamedTuple):
    """What may change of a published definition."""

    status: str
    input_schemas_hash: str | None


class StoredCatalog(Catalog, Protocol):
    """The catalog of a database, for the processes that run what is in it."""

    async def states(self) -> dict[tuple[str, int], DefinitionState]: ...

    async def set_input_schemas(self, row: DefinitionRow) -> None:
        """Stores the schemas of this row, whatever its status."""


class SqlCatalog:
    """Implements `StoredCatalog` on a store's database."""

    def __init__(self, statements: Statements) -> None:
        self._sql = statements

    async def find(self, name: str, version: int | None) -> DefinitionRow | None:
        where, values = "version = $2", [name, version]
        if version is None:
            where, values = "status = 'published'", [name]
        query = f"SELECT {_COLUMNS} FROM definitions WHERE name = $1 AND {where} ORDER BY version DESC LIMIT 1"
        rows = await self._sql.fetch(query, values)
        return _row(rows[0]) if rows else None

    async def page(self, wanted: DefinitionsWanted, after: tuple[str, int] | None, limit: int) -> list[DefinitionRow]:
        conditions, values = ["true"], list[object]()
        if wanted.owner is not None:
            values.append(f"{wanted.owner}/")
            conditions.append(_SEEN_BY_DEPLOYMENT if wanted.owner == DEFAULT_TENANT else _SEEN)
        if wanted.names:
            first = len(values) + 1
            values.extend(wanted.names)
            conditions.append(f"name IN ({', '.join(f'${n}' for n in range(first, len(values) + 1))})")
        if wanted.status is not None:
            values.append(wanted.status)
            conditions.append(f"status = ${len(values)}")
        if after is not None:
            values.extend(after)
            name, version = len(values) - 1, len(values)
            conditions.append(f"(name > ${name} OR (name = ${name} AND version > ${version}))")
        values.append(limit)
        where = " AND ".join(conditions)
        query = f"SELECT {_COLUMNS} FROM definitions WHERE {where} ORDER BY name, version LIMIT ${len(values)}"
        return [_row(row) for row in await self._sql.fetch(query, values)]

    async def add(self, row: DefinitionRow, note: AuditRow | None = None) -> bool:
        values = structs.astuple(row)
        marks = ", ".join(f"${number + 1}" for number in range(len(values)))
        query = f"INSERT INTO definitions ({_COLUMNS}) VALUES ({marks}) ON CONFLICT DO NOTHING RETURNING name"
        return await self._change((query, values), note)

    async def replace(self, row: DefinitionRow, note: AuditRow | None = None) -> bool:
        query = (
            "UPDATE definitions SET hash = $3, document = $4, input_schemas = $5, input_schemas_hash = $6 "
            "WHERE name = $1 AND version = $2 AND status = 'draft' RETURNING name"
        )
        values = (row.name, row.version, row.hash, row.document, row.input_schemas, row.input_schemas_hash)
        return await self._change((query, values), note)

    async def move(
        self, name: str, version: int, before: str, after: str, at: int, note: AuditRow | None = None
    ) -> bool:
        query = (
            "UPDATE definitions SET status = $3, published_at = coalesce(published_at, $4) "
            "WHERE name = $1 AND version = $2 AND status = $5 RETURNING name"
        )
        return await self._change((query, (name, version, after, at, before)), note)

    async def _change(self, statement: Statement, note: AuditRow | None) -> bool:
        return await self._sql.run_all([statement, *noting(note)])

    async def states(self) -> dict[tuple[str, int], DefinitionState]:
        rows = await self._sql.fetch("SELECT name, version, status, input_schemas_hash FROM definitions", ())
        return {(name, version): DefinitionState(status, hash) for name, version, status, hash in rows}

    async def set_input_schemas(self, row: DefinitionRow) -> None:
        query = "UPDATE definitions SET input_schemas = $3, input_schemas_hash = $4 WHERE name = $1 AND version = $2"
        await self._sql.run(query, (row.name, row.version, row.input_schemas, row.input_schemas_hash))


def _row(row: Sequence[Any]) -> DefinitionRow:
    return DefinitionRow(**dict(zip(DefinitionRow.__struct_fields__, row, strict=True)))
