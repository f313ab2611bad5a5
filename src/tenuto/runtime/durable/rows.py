"""What the store's rows are to those who asked: summaries, documents, and the other way round for filters."""

import msgspec

from tenuto.kernel.definition import from_document
from tenuto.runtime.executor.limits import limit_row
from tenuto.runtime.publication import Published
from tenuto.runtime.shared.documents import Summary
from tenuto.runtime.shared.filters import Filter
from tenuto.storage.permits import LimitUse, TenantUse
from tenuto.storage.port import DefinitionRow, ExecutionRow, SessionRow, Wanted
from tenuto.storage.tasks import queues_of
from tenuto.views import LimitRow, TenantLimitRow, WorkerRow, rfc3339


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


def worker_row(row: SessionRow) -> WorkerRow:
    return {
        "id": row.id,
        "worker": row.worker,
        "build": row.build,
        "queues": queues_of(row.queues),
        "started_at": rfc3339(row.started_at),
        "expires_at": rfc3339(row.expires_at),
        "executions": row.executions,
    }


def published(row: DefinitionRow) -> Published:
    definition = from_document(msgspec.json.decode(row.document))
    return Published(definition=definition, status=row.status, plan_hash=row.hash)  # type: ignore[arg-type]  # checked


def shared_limit_row(use: LimitUse) -> LimitRow:
    rate = None if use.count is None or use.period_ms is None else (use.count, use.period_ms)
    return limit_row(use.name, rate, use.concurrency, use.running, use.waiting)


def tenant_row(use: TenantUse) -> TenantLimitRow:
    return {"tenant": use.tenant, "max_in_flight": use.max_in_flight, "in_flight": use.in_flight}
