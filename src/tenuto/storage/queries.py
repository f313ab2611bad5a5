"""Reading rows, written once for both dialects: filters become conditions with numbered parameters."""

from collections.abc import Iterator
from typing import get_args

from tenuto.kernel.definition import owned_name
from tenuto.kernel.state import ExecutionStatus
from tenuto.projection import ReviewRow

from .store import DefinitionRow, ExecutionRow, Notice, SessionRow, Wanted

EXECUTION_COLUMNS = ", ".join(ExecutionRow.__struct_fields__)
REVIEW_COLUMNS = ", ".join(ReviewRow.__struct_fields__)
DEFINITION_COLUMNS = ", ".join(DefinitionRow.__struct_fields__)
NOTICE_COLUMNS = ", ".join(Notice.__struct_fields__)

SESSIONS = (
    f"SELECT {', '.join(SessionRow.__struct_fields__[:-1])}, "
    "(SELECT count(*) FROM executions WHERE owner = sessions.id) AS executions "
    "FROM sessions WHERE ended_at IS NULL ORDER BY started_at, id"
)
ACTIVE_STATUSES = ("running", "waiting_approval", "paused")
ACTIVE = "status IN ('running', 'waiting_approval', 'paused')"
CLOCKS_MS = 60_000  # an id's time and that of its execution's start are of one clock, read twice

_BACKLOG = """
SELECT 'reviews', kind, count(*), min(opened_at) FROM reviews WHERE resolution IS NULL GROUP BY kind
UNION ALL SELECT 'due', '', count(*), min(wake_at) FROM executions WHERE owner IS NULL AND wake_at <= {now}
UNION ALL SELECT 'owned', '', count(*), CAST(NULL AS bigint) FROM executions WHERE owner IS NOT NULL
UNION ALL SELECT 'mail', '', count(*), min(received_at) FROM mailbox WHERE verdict IS NULL
UNION ALL SELECT 'tasks', queue, count(*), min(created_at) FROM tasks WHERE session IS NULL GROUP BY queue
UNION ALL SELECT 'outbox', '', count(*), min(created_at) FROM outbox WHERE published_at IS NULL
UNION ALL SELECT 'sessions', '', count(*), CAST(NULL AS bigint) FROM sessions WHERE ended_at IS NULL
UNION ALL SELECT 'now', '', 0, {now}"""

_EXECUTION_FILTERS = {
    "tenant": "tenant = {}",
    "status": "status = {}",
    "definition": "definition = {}",
    "correlation_id": "((correlation_id <> '' AND correlation_id = {0}) OR (correlation_id = '' AND id = {0}))",
    "target_id": "target_id <> '' AND target_id = {}",
    "since": "created_at >= {}",
    "before": "created_at < {}",
}
_REVIEW_FILTERS = {
    "tenant": "tenant = {}",
    "definition": "definition = {}",
    "kind": "kind = {}",
    "error_class": "error_class = {}",
}


def executions(wanted: Wanted, after: str | None, limit: int, mark: str) -> tuple[str, list[object]]:
    """Ids tell the time and are in every index that lists use: a page is read from one, in its order."""
    conditions, values = _execution_conditions(wanted, mark)
    for operator, id in _bounds(wanted, after):
        values.append(id)
        conditions.append(f"id {operator} {mark}{len(values)}")
    values.append(limit)
    where = " AND ".join(conditions) or "true"
    rest = f"ORDER BY {'id DESC' if wanted.newest_first else 'id'} LIMIT {mark}{len(values)}"
    query = f"SELECT {EXECUTION_COLUMNS} FROM executions WHERE {where}"
    if not _by_status(wanted):
        return f"{query} {rest}", values
    statuses = ACTIVE_STATUSES if wanted.active else get_args(ExecutionStatus)
    parts = [f"SELECT * FROM ({query} AND status = '{status}' {rest}) AS some_{status}" for status in statuses]
    return f"{' UNION ALL '.join(parts)} {rest}", values


def _bounds(wanted: Wanted, after: str | None) -> Iterator[tuple[str, str]]:
    if after is not None:
        yield ("<" if wanted.newest_first else ">"), after
    if wanted.since is not None:
        yield ">=", _id_at(wanted.since - CLOCKS_MS)
    if wanted.before is not None:
        yield "<", _id_at(wanted.before + CLOCKS_MS)


def _id_at(ms: int) -> str:
    """The least id of that moment. Ids of before 1970 there are none."""
    return f"{max(ms, 0):011x}"


def _by_status(wanted: Wanted) -> bool:
    """Whether all of a tenant's are wanted: those of each status are in order, and six are soon put together."""
    narrowed = wanted.status or wanted.definition or wanted.correlation_id or wanted.target_id
    return wanted.tenant is not None and not narrowed


def backlog(now: str) -> str:
    """`now` is the database's time, as an expression."""
    return _BACKLOG.format(now=now)


def count(wanted: Wanted, by: str, mark: str) -> tuple[str, list[object]]:
    assert by in ("status", "definition")
    conditions, values = _execution_conditions(wanted, mark)
    where = " AND ".join(conditions) or "true"
    return f"SELECT {by}, count(*) FROM executions WHERE {where} GROUP BY {by}", values


def reviews(wanted: Wanted, after: str | None, limit: int, mark: str) -> tuple[str, list[object]]:
    conditions, values = _conditions(wanted, _REVIEW_FILTERS, mark)
    conditions.append("resolution IS NULL")
    if after is not None:
        values.append(after)
        conditions.append(f"id > {mark}{len(values)}")
    values.append(limit)
    where = " AND ".join(conditions)
    return f"SELECT {REVIEW_COLUMNS} FROM reviews WHERE {where} ORDER BY id LIMIT {mark}{len(values)}", values


def _execution_conditions(wanted: Wanted, mark: str) -> tuple[list[str], list[object]]:
    conditions, values = _conditions(wanted, _EXECUTION_FILTERS, mark)
    return [*conditions, *([ACTIVE] if wanted.active else [])], values


def _conditions(wanted: Wanted, filters: dict[str, str], mark: str) -> tuple[list[str], list[object]]:
    conditions: list[str] = []
    values: list[object] = []
    for name, condition in filters.items():
        value = getattr(wanted, name)
        if value is None:
            continue
        if name == "definition" and wanted.tenant is not None:  # the tenant's own, or the one that is there for all
            values.append(owned_name(wanted.tenant, value))
            condition = f"definition IN ({mark}{len(values)}, {{}})"
        values.append(value)
        conditions.append(condition.format(f"{mark}{len(values)}"))
    return conditions, values
