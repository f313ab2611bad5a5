"""What a service keeps beside executions: API keys, sign-ins, the audit, answers to repeated requests, confirmations.

Written once for both dialects, in statements with numbered parameters that both understand.
"""

import json
from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct, structs

from tenuto.views.projections import AuditRow

from .sign_ins import SignIns, SqlSignIns
from .statements import NOTE, Statement, Statements, marks, noting

ANSWERS_KEPT_MS = 24 * 3_600_000
ABANDONED_MS = 60_000  # a request that takes longer than this died with its process


class KeyRow(Struct, frozen=True, kw_only=True):
    id: str
    tenant: str
    name: str
    roles: tuple[str, ...]
    secret_hash: str
    created_at: int
    created_by: str
    expires_at: int | None = None
    revoked_at: int | None = None
    last_used_at: int | None = None
    service: str | None = None  # the platform service that a worker's key is for


class AuditEntry(Struct, frozen=True):
    """A row of the audit as it is kept, in the order of its columns. Without `n` and `hash` it is not chained yet."""

    position: int
    tenant: str
    at: int
    actor: str
    action: str
    object_type: str
    object_id: str
    reason: str
    n: int | None = None
    hash: str | None = None


class Head(Struct, frozen=True):
    """The end of a tenant's chain."""

    n: int = 0
    hash: str = ""


class Answer(Struct, frozen=True, kw_only=True):
    """What was answered to a request. Without a status, it is under way."""

    request_hash: str
    status: int | None = None
    body: bytes | None = None
    created_at: int


class AuditWanted(Struct, frozen=True, kw_only=True):
    """A filter. What is None does not matter."""

    action: str | None = None
    actor: str | None = None
    object_id: str | None = None


class Registry(Protocol):
    """`note` is a row of the audit that is written with the change it tells of, or not at all."""

    @property
    def sign_ins(self) -> SignIns:
        """Sign-in sessions of the console."""

    async def add_key(self, row: KeyRow, note: AuditRow) -> None: ...

    async def key(self, id: str) -> KeyRow | None: ...

    async def keys(self, tenant: str | None) -> list[KeyRow]: ...

    async def revoke_key(self, id: str, tenant: str | None, at: int, note: AuditRow) -> bool:
        """False if there is no such key of that tenant, or it was revoked before."""

    async def use_key(self, id: str, at: int) -> None: ...

    async def note(self, row: AuditRow) -> None: ...

    async def audit(self, tenant: str, wanted: AuditWanted, before: int | None, limit: int) -> list[AuditEntry]:
        """What is chained, newest first; `before` is the last number of the page before."""

    async def chained(self, tenant: str, after: int, limit: int) -> list[AuditEntry]:
        """The chain from this number on, in its order."""

    async def unchained_tenants(self, among: int) -> list[str]:
        """Whose rows have no number yet, of so many that were written first."""

    async def unchained(self, tenant: str, limit: int) -> list[AuditEntry]:
        """What has no number yet, in the order in which it was written."""

    async def head(self, tenant: str) -> Head: ...

    async def heads(self) -> dict[str, Head]: ...

    async def chain(self, tenant: str, old: Head, rows: Sequence[AuditEntry]) -> bool:
        """Numbers these rows and moves the head, unless another process moved it meanwhile."""

    async def begin_answer(self, tenant: str, endpoint: str, key: str, answer: Answer) -> Answer | None:
        """Claims the key; None if that succeeded, else what is there. What a killed process claimed is free again."""

    async def give_answer(self, tenant: str, endpoint: str, key: str, status: int, body: bytes) -> None: ...

    async def drop_answer(self, tenant: str, endpoint: str, key: str) -> None: ...

    async def forget(self, before: int) -> None:
        """Removes answers, confirmations and sign-ins that are older than this, and no longer count."""

    async def ask(self, tenant: str, digest: str, actor: str, at: int, not_before: int, note: AuditRow) -> bool:
        """Whether another person requested the same since then. If not, records this request."""

    async def requests(self, tenant: str | None, about: Sequence[str], since: int) -> list[AuditRow]:
        """The requests about these objects that need a second person, oldest first, as rows of the audit log."""


VALID_MS = 24 * 3_600_000  # how long a request waits for the second person
REQUESTED = ".requested"  # the end of the action of a request that needs a second person
_KEY = ", ".join(KeyRow.__struct_fields__)
_AUDIT = ", ".join(AuditEntry.__struct_fields__)
# The number and the hash of each row, by its position.
_NUMBERING = (
    "UPDATE audit SET n = CAST(v.value ->> 0 AS bigint), hash = v.value ->> 1 FROM json_each($1) AS v "
    "WHERE audit.position = CAST(v.key AS bigint) AND audit.n IS NULL"
)


def wanted_rows(tenant: str, wanted: AuditWanted, before: int | None, limit: int) -> tuple[str, list[Any]]:
    """The query of a page of the audit, newest first."""
    # A bound says that there is a number. Said twice, SQLite takes it for two bounds, and the chain for the best index.
    conditions = ["tenant = $1", *(["n IS NOT NULL"] if before is None else [])]
    values: list[Any] = [tenant]
    for name in AuditWanted.__struct_fields__:
        if (value := getattr(wanted, name)) is not None:
            values.append(value)
            conditions.append(f"{name} = ${len(values)}")
    return _rows(conditions, values, before, "n < ${}", limit, "n DESC")


def _rows(
    conditions: list[str], values: list[Any], bound: int | None, bounded: str, limit: int, order: str
) -> tuple[str, list[Any]]:
    if bound is not None:
        values.append(bound)
        conditions.append(bounded.format(len(values)))
    values.append(limit)
    where = " AND ".join(conditions)
    return f"SELECT {_AUDIT} FROM audit WHERE {where} ORDER BY {order} LIMIT ${len(values)}", values


class SqlRegistry:
    """Implements `Registry` on a store's database."""

    def __init__(self, statements: Statements) -> None:
        self._sql = statements
        self.sign_ins: SignIns = SqlSignIns(statements)

    # Keys -----------------------------------------------------------------------------------------------------------

    async def add_key(self, row: KeyRow, note: AuditRow) -> None:
        values = [json.dumps(value) if isinstance(value, tuple) else value for value in structs.astuple(row)]
        query = f"INSERT INTO api_keys ({_KEY}) VALUES ({marks(len(values))}) RETURNING id"
        await self._sql.run_all([(query, values), *noting(note)])

    async def key(self, id: str) -> KeyRow | None:
        rows = await self._sql.fetch(f"SELECT {_KEY} FROM api_keys WHERE id = $1", (id,))
        return _key(rows[0]) if rows else None

    async def keys(self, tenant: str | None) -> list[KeyRow]:
        where = "tenant = $1" if tenant is not None else "true"
        values = (tenant,) if tenant is not None else ()
        rows = await self._sql.fetch(f"SELECT {_KEY} FROM api_keys WHERE {where} ORDER BY tenant, id", values)
        return [_key(row) for row in rows]

    async def revoke_key(self, id: str, tenant: str | None, at: int, note: AuditRow) -> bool:
        whose = "" if tenant is None else "AND tenant = $3"
        query = f"UPDATE api_keys SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL {whose} RETURNING id"
        return await self._sql.run_all([(query, (id, at) if tenant is None else (id, at, tenant)), *noting(note)])

    async def use_key(self, id: str, at: int) -> None:
        await self._sql.run("UPDATE api_keys SET last_used_at = $2 WHERE id = $1", (id, at))

    # The audit ------------------------------------------------------------------------------------------------------

    async def note(self, row: AuditRow) -> None:
        await self._sql.run(NOTE, structs.astuple(row))

    async def audit(self, tenant: str, wanted: AuditWanted, before: int | None, limit: int) -> list[AuditEntry]:
        return await self._audit(*wanted_rows(tenant, wanted, before, limit))

    async def chained(self, tenant: str, after: int, limit: int) -> list[AuditEntry]:
        return await self._audit(*_rows(["tenant = $1", "n IS NOT NULL"], [tenant], after, "n > ${}", limit, "n"))

    async def unchained_tenants(self, among: int) -> list[str]:
        first = "SELECT tenant FROM audit WHERE n IS NULL ORDER BY position LIMIT $1"
        rows = await self._sql.fetch(f"SELECT DISTINCT tenant FROM ({first}) AS waiting", (among,))
        return [tenant for (tenant,) in rows]

    async def unchained(self, tenant: str, limit: int) -> list[AuditEntry]:
        return await self._audit(*_rows(["n IS NULL", "tenant = $1"], [tenant], None, "", limit, "position"))

    async def _audit(self, query: str, values: list[Any]) -> list[AuditEntry]:
        return [AuditEntry(*row) for row in await self._sql.fetch(query, values)]

    async def head(self, tenant: str) -> Head:
        rows = await self._sql.fetch("SELECT n, hash FROM audit_head WHERE tenant = $1", (tenant,))
        return Head(*rows[0]) if rows else Head()

    async def heads(self) -> dict[str, Head]:
        rows = await self._sql.fetch("SELECT tenant, n, hash FROM audit_head ORDER BY tenant", ())
        return {tenant: Head(n, hash) for tenant, n, hash in rows}

    async def chain(self, tenant: str, old: Head, rows: Sequence[AuditEntry]) -> bool:
        new = (tenant, rows[-1].n, rows[-1].hash)
        if old.n:
            move = "UPDATE audit_head SET n = $2, hash = $3 WHERE tenant = $1 AND n = $4 RETURNING n"
            guard: Statement = (move, (*new, old.n))
        else:
            add = "INSERT INTO audit_head (tenant, n, hash) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING n"
            guard = (add, new)
        numbered = json.dumps({row.position: (row.n, row.hash) for row in rows})
        return await self._sql.run_all([guard, (_NUMBERING, (numbered,))])

    # Answers --------------------------------------------------------------------------------------------------------

    async def begin_answer(self, tenant: str, endpoint: str, key: str, answer: Answer) -> Answer | None:
        claim = (
            "INSERT INTO answers (tenant, endpoint, key, request_hash, created_at) VALUES ($1, $2, $3, $4, $5) "
            "ON CONFLICT (tenant, endpoint, key) DO UPDATE "
            "SET request_hash = excluded.request_hash, status = NULL, body = NULL, created_at = excluded.created_at "
            "WHERE answers.created_at < $6 OR (answers.status IS NULL AND answers.created_at < $7) RETURNING key"
        )
        at, now = (tenant, endpoint, key), answer.created_at
        values = (*at, answer.request_hash, now, now - ANSWERS_KEPT_MS, now - ABANDONED_MS)
        while not await self._sql.run(claim, values):
            rows = await self._sql.run(
                "SELECT request_hash, status, body, created_at FROM answers "
                "WHERE tenant = $1 AND endpoint = $2 AND key = $3",
                at,
            )
            if rows:  # none: it was dropped between the two statements
                return Answer(**_named(Answer, rows[0]))
        return None

    async def give_answer(self, tenant: str, endpoint: str, key: str, status: int, body: bytes) -> None:
        query = "UPDATE answers SET status = $4, body = $5 WHERE tenant = $1 AND endpoint = $2 AND key = $3"
        await self._sql.run(query, (tenant, endpoint, key, status, body))

    async def drop_answer(self, tenant: str, endpoint: str, key: str) -> None:
        query = "DELETE FROM answers WHERE tenant = $1 AND endpoint = $2 AND key = $3 AND status IS NULL"
        await self._sql.run(query, (tenant, endpoint, key))

    async def forget(self, before: int) -> None:
        await self._sql.run("DELETE FROM answers WHERE created_at < $1", (before,))
        await self._sql.run("DELETE FROM confirmations WHERE at < $1", (before,))
        await self.sign_ins.forget(before)

    # Confirmations --------------------------------------------------------------------------------------------------

    async def ask(self, tenant: str, digest: str, actor: str, at: int, not_before: int, note: AuditRow) -> bool:
        second = (
            "DELETE FROM confirmations WHERE tenant = $1 AND digest = $2 AND actor <> $3 AND at >= $4 RETURNING actor"
        )
        if await self._sql.run(second, (tenant, digest, actor, not_before)):
            return True
        first = (
            "INSERT INTO confirmations (tenant, digest, actor, at) VALUES ($1, $2, $3, $4) "
            "ON CONFLICT (tenant, digest) DO UPDATE SET actor = excluded.actor, at = excluded.at RETURNING actor"
        )
        await self._sql.run_all([(first, (tenant, digest, actor, at)), *noting(note)])
        return False

    async def requests(self, tenant: str | None, about: Sequence[str], since: int) -> list[AuditRow]:
        fields = AuditRow.__struct_fields__
        values: list[object] = [since, *about]
        marks = ", ".join(f"${number + 2}" for number in range(len(about)))
        of_tenant = ""
        if tenant is not None:
            values.append(tenant)
            of_tenant = f" AND c.tenant = ${len(values)}"
        # A request and its note were written together, by one person at one moment.
        query = (
            f"SELECT {', '.join(f'a.{name}' for name in fields)} FROM confirmations c JOIN audit a "
            f"ON a.tenant = c.tenant AND a.object_id IN ({marks}) AND a.actor = c.actor AND a.at = c.at "
            f"WHERE c.at >= $1 AND a.action LIKE '%{REQUESTED}'{of_tenant} ORDER BY a.position"
        )
        return [AuditRow(**dict(zip(fields, row, strict=True))) for row in await self._sql.fetch(query, values)]


def _named(kind: type[Struct], row: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(kind.__struct_fields__, row, strict=True))


def _key(row: Sequence[Any]) -> KeyRow:
    named = _named(KeyRow, row)
    return KeyRow(**{**named, "roles": tuple(json.loads(named["roles"]))})
