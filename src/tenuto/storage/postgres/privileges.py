"""What a service does with each table on PostgreSQL: what its role has to be allowed, and all that it is allowed.

Histories and the audit are appended to and never changed; of other rows, what they tell of stays as it was written, and
how they stand may be updated. Removing what is old is for those who prune.
"""

from typing import Any, Final, NamedTuple

from tenuto.errors import StorageError

TOLD = 3  # of a long list


class Rights(NamedTuple):
    words: tuple[str, ...]
    changes: tuple[str, ...] = ()  # columns that may be updated
    prunes: tuple[str, ...] = ()  # words that are needed to remove what is old

    def of(self, *, prunes: bool) -> tuple[str, ...]:
        return (*self.words, *(self.prunes if prunes else ()))


_KEPT: Final = ("SELECT", "INSERT")
_ALL: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
_DELETE: Final = ("DELETE",)

GRANTS: Final[dict[str, Rights]] = {
    "tenuto_migrations": Rights(("SELECT",)),
    "incarnation": Rights(("SELECT",)),
    "events": Rights(_KEPT, prunes=_DELETE),
    "audit": Rights(_KEPT, ("n", "hash")),  # once, which a trigger sees to
    "audit_head": Rights(_KEPT, ("n", "hash")),
    "definitions": Rights(  # a trigger keeps what is published
        _KEPT, ("status", "hash", "document", "published_at", "input_schemas", "input_schemas_hash")
    ),
    "executions": Rights((*_KEPT, "UPDATE"), prunes=_DELETE),  # as a whole: only then may the table be locked
    "snapshots": Rights(_KEPT, ("seq", "body"), _DELETE),
    "reviews": Rights(_KEPT, ("resolution", "resolved_by", "resolved_at"), _DELETE),
    "mailbox": Rights(_KEPT, ("verdict",), _DELETE),
    "outbox": Rights(_KEPT, ("published_at", "session", "tries", "due_at", "error"), _DELETE),
    "inbox": Rights(_KEPT, prunes=_DELETE),
    "sent_notifications": Rights(_KEPT, ("sent_at", "receipt"), _DELETE),
    "leftovers": Rights(("SELECT",), prunes=("INSERT", "DELETE")),
    "api_keys": Rights(_KEPT, ("revoked_at", "last_used_at")),
    "signin_sessions": Rights(("SELECT", "INSERT", "DELETE"), ("last_used_at",)),
    "signin_links": Rights(("SELECT", "INSERT", "DELETE")),
    "status_changes": Rights(("SELECT", "INSERT", "DELETE")),
    "sessions": Rights(_ALL),
    "tasks": Rights(_ALL),
    "progress": Rights(_ALL),
    "admissions": Rights(_ALL),
    "tenant_limits": Rights(_ALL),
    "runs": Rights(_KEPT, ("started_at", "cancelled_at", "deleted_at"), _DELETE),
    "credit_ledger": Rights(_KEPT, ("n", "available_after", "hash")),  # once, which a trigger sees to
    "credit_ledger_head": Rights(_KEPT, ("n", "available", "hash")),
    "credit_accounts": Rights(_KEPT, ("balance", "held")),
    "credit_changes": Rights(("SELECT", "INSERT", "DELETE")),
    "tenant_changes": Rights(("SELECT", "INSERT", "DELETE")),
    "limits": Rights(_ALL),
    "limit_holders": Rights(_ALL),
    "ledger": Rights(_ALL),
    "ledger_attempts": Rights(_ALL),
    "job_index": Rights(_ALL),
    "callbacks": Rights(_KEPT, prunes=_DELETE),
    "bus_messages": Rights(_ALL),
    "answers": Rights(_ALL),
    "confirmations": Rights(_ALL),
}

# Row security applies to a role (`me`) that inherits from `tenuto_request`, unless it owns the tables.
IS_HELD: Final = """NOT me.rolsuper AND NOT me.rolbypassrls AND EXISTS (
    SELECT 1 FROM pg_roles r WHERE r.rolname = 'tenuto_request' AND pg_has_role(me.oid, r.oid, 'USAGE'))"""
_FOOTING = f"""
SELECT current_user AS role, pg_has_role(c.relowner, 'USAGE') AS owns, {IS_HELD} AS is_held
FROM pg_class c, pg_roles me WHERE c.oid = 'executions'::regclass AND me.rolname = current_user"""
_LACKING = """
SELECT word || ' on ' || place FROM unnest($1::text[], $2::text[], $3::text[]) AS need (place, of, word)
WHERE NOT CASE of WHEN '' THEN has_table_privilege(place, word) ELSE has_column_privilege(place, of, word) END"""


async def check_rights(connection: Any) -> bool:
    """Whether this user has the owner's rights. One who may not do what a service does is refused, here and now."""
    row = await connection.fetchrow(_FOOTING)
    if row["owns"]:
        return True
    needs = [(table, "", word) for table, rights in GRANTS.items() for word in rights.words]
    needs += [(table, column, "UPDATE") for table, rights in GRANTS.items() for column in rights.changes]
    columns = [list(column) for column in zip(*needs, strict=True)]
    lacking = [found[0] for found in await connection.fetch(_LACKING, *columns)]
    if row["is_held"]:
        lacking.append("rows of all tenants: it inherits the rights of `tenuto_request`")
    if lacking:
        raise StorageError(
            f"PostgreSQL does not let {row['role']!r} do what a service does: {listed(lacking)}",
            code="not_permitted",
            hint=f"as the owner of the schema, run `tenuto migrate --role {row['role']}`",
        )
    return False


def listed(found: list[str]) -> str:
    more = f" and {len(found) - TOLD} more" if len(found) > TOLD else ""
    return f"{', '.join(found[:TOLD])}{more}"
