"""Converts between the rows of a store and the types of the runtime ports."""

import msgspec

from tenuto.kernel.definition import from_document
from tenuto.runtime.publication import Published
from tenuto.runtime.shared.executions import Summary
from tenuto.runtime.shared.filters import Filter
from tenuto.storage.port import DefinitionRow, ExecutionRow, Wanted


def wanted(wanted: Filter) -> Wanted:
    return Wanted(
        tenant=wanted.tenant,
        status=wanted.status,
        definition=wanted.definition,
        correlation_id=wanted.correlation_id,
        target_id=wanted.target_id,
        since=wanted.since_ms,
        before=wanted.before_ms,
        active=wanted.active,
        newest_first=wanted.newest_first,
        version=wanted.version,
        error_class=wanted.error_class,
        failed=wanted.names_failure,
        q=wanted.q,
    )


def summary(row: ExecutionRow) -> Summary:
    return Summary(
        execution_id=row.id,
        tenant=row.tenant,
        definition=row.definition,
        version=row.version,
        status=row.status,  # type: ignore[arg-type]  # the column holds nothing else
        correlation_id=row.correlation_id or row.id,
        target=(row.target_type, row.target_id) if row.target_id else None,
        started_at=row.created_at,
        ended_at=row.ended_at,
        error_class=row.error_class,
    )


def published_row(row: DefinitionRow) -> Published:
    definition = from_document(msgspec.json.decode(row.document))
    return Published(definition=definition, status=row.status, plan_hash=row.hash)  # type: ignore[arg-type]  # checked
