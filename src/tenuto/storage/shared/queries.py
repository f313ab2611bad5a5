"""Reading rows, written once for both dialects: filters become conditions with numbered parameters."""

import re
from collections.abc import Iterator
from typing import get_args

from tenuto.kernel.definition import names_in_filter
from tenuto.kernel.events import ReviewKind
from tenuto.kernel.state import ExecutionStatus
from tenuto.storage.operations import COUNTED
from tenuto.storage.port import ExecutionRow, SessionRow, Wanted

EXECUTION_COLUMNS = ", ".join(ExecutionRow.__struct_fields__)

SESSIONS = (
    f"SELECT {', '.join(SessionRow.__struct_fields__[:-1])}, "
    "(SELECT count(*) FROM executions WHERE owner = sessions.id) AS executions "
    "FROM sessions WHERE ended_at IS NULL ORDER BY started_at, id"
)
_STATUSES = get_args(ExecutionStatus)
_KINDS = get_args(ReviewKind)
ACTIVE_STATUSES = ("running", "waiting_approval", "paused")
WITH_ERROR_STATUSES = ("failed", "canceled")
CLOCKS_MS = 60_000  # an id's time and that of its execution's start are of one clock, read twice

# Queues that only definitions of tenants name, and no worker serves, are told as one, without a name: figures say
# nothing of tenants, and tenants cannot make labels without end.
_BACKLOG = """
SELECT 'reviews', kind, count(*), min(opened_at) FROM reviews WHERE resolution IS NULL GROUP BY kind
UNION ALL SELECT 'due', '', count(*), min(wake_at) FROM executions WHERE owner IS NULL AND wake_at <= {now}
UNION ALL SELECT 'owned', '', count(*), CAST(NULL AS bigint) FROM executions WHERE owner IS NOT NULL
UNION ALL SELECT 'mail', '', count(*), min(received_at) FROM mailbox WHERE verdict IS NULL
UNION ALL SELECT 'tasks', place, CAST(sum(many) AS bigint), min(oldest) FROM (
    SELECT many, oldest, CASE WHEN is_owned AND NOT (queue {served}) THEN '' ELSE queue END AS place
    FROM (
        SELECT queue, plan LIKE '%/%/%' AS is_owned, count(*) AS many, min(created_at) AS oldest
        FROM tasks WHERE session IS NULL GROUP BY 1, 2
    ) AS by_queue
) AS by_place GROUP BY place
UNION ALL SELECT 'outbox', '', count(*), min(created_at) FROM outbox WHERE published_at IS NULL
UNION ALL SELECT 'sessions', '', count(*), CAST(NULL AS bigint) FROM sessions
    WHERE ended_at IS NULL AND queues <> 'null'
UNION ALL SELECT 'now', '', 0, {now}"""

_OLDEST_DUE = """
SELECT (SELECT wake_at FROM executions WHERE {of} definition = d.name AND version = d.version AND priority = p.priority
    AND owner IS NULL AND wake_at IS NOT NULL ORDER BY wake_at LIMIT 1) AS wake_at
FROM definitions d CROSS JOIN (SELECT 0 AS priority UNION ALL SELECT 1) p"""

_FILTERS = {
    "tenant": "tenant = {}",
    "target_id": "target_id <> '' AND target_id = {}",
    "since": "created_at >= {}",
    "before": "created_at < {}",
    "version": "version = {}",
    "error_class": "error_class = {}",
}
_ID_PART = re.compile(r"[0-9a-f]{1,22}")
# An execution without a correlation id of its own is its own root.
_CORRELATED = ("correlation_id <> '' AND correlation_id = {}", "correlation_id = '' AND id = {}")


def executions(wanted: Wanted, after: str | None, limit: int, mark: str) -> tuple[str, list[object]]:
    """Ids tell the time and are in every index that lists use: a page is read from one, in its order.

    Where several places of an index are wanted (a definition in any status), a page is read from each, and the few rows
    that they give are put in order.
    """
    conditions, values = _conditions(wanted, mark)
    for operator, id in _bounds(wanted, after):
        values.append(id)
        conditions.append(f"id {operator} {mark}{len(values)}")
    places = _places(wanted, values, mark)
    values.append(limit)
    rest = f"ORDER BY {'id DESC' if wanted.newest_first else 'id'} LIMIT {mark}{len(values)}"
    queries = [
        f"SELECT {EXECUTION_COLUMNS} FROM executions WHERE {' AND '.join([*conditions, *place]) or 'true'} {rest}"
        for place in places
    ]
    if len(queries) == 1:
        return queries[0], values
    parts = [f"SELECT * FROM ({query}) AS part_{number}" for number, query in enumerate(queries)]
    union = " UNION ALL " if wanted.q is None else " UNION "  # a search finds an execution in several ways
    return f"{union.join(parts)} {rest}", values


def _places(wanted: Wanted, values: list[object], mark: str) -> list[list[str]]:
    """Where to look: each gives the conditions that lead to one place of an index, or narrow what is found there."""
    statuses = _statuses(wanted)
    if wanted.q is not None:
        return _found_by(wanted, wanted.q, values, mark)
    if wanted.correlation_id is not None:
        values.append(wanted.correlation_id)
        roots = [[text.format(f"{mark}{len(values)}")] for text in _CORRELATED]
        return [[*root, *_any_of("status", statuses), *_defined(wanted, values, mark)] for root in roots]
    if wanted.target_id is not None or wanted.tenant is None:
        return [[*_any_of("status", statuses), *_defined(wanted, values, mark)]]
    found = [[f"status = '{status}'"] for status in statuses or get_args(ExecutionStatus)]
    names = [f"definition = {name}" for name in _names(wanted, values, mark)]
    return [[name, *place] for name in names for place in found] if names else found


def _found_by(wanted: Wanted, text: str, values: list[object], mark: str) -> list[list[str]]:
    """Each way in which a search finds executions: each has an index."""
    values.append(text)
    given = f"{mark}{len(values)}"
    ways = [f"key = {given}", f"target_id <> '' AND target_id = {given}", _CORRELATED[0].format(given)]
    if _ID_PART.fullmatch(text) is not None:
        values.append(f"{text}g")  # after every id that begins with it
        ways.append(f"id >= {given} AND id < {mark}{len(values)}")
    narrowed = [*_any_of("status", _statuses(wanted)), *_defined(wanted, values, mark)]
    if wanted.correlation_id is not None:
        values.append(wanted.correlation_id)
        narrowed.append(_correlated(f"{mark}{len(values)}"))
    return [[way, *narrowed] for way in ways]


def _correlated(given: str) -> str:
    return f"({' OR '.join(f'({text.format(given)})' for text in _CORRELATED)})"


def _statuses(wanted: Wanted) -> tuple[str, ...]:
    """None at all means any."""
    named = (wanted.status,) if wanted.status is not None else get_args(ExecutionStatus)
    if not wanted.active and not wanted.failed:
        return () if wanted.status is None else named
    if wanted.active:
        named = tuple(status for status in named if status in ACTIVE_STATUSES)
    if wanted.failed:
        named = tuple(status for status in named if status in WITH_ERROR_STATUSES)
    return named or ("none",)


def _names(wanted: Wanted, values: list[object], mark: str) -> list[str]:
    """A definition by name is the tenant's own, or the one that is there for all."""
    if wanted.definition is None:
        return []
    names = names_in_filter(wanted.definition, wanted.tenant)
    values.extend(names)
    return [f"{mark}{len(values) - place}" for place in range(len(names))]


def _defined(wanted: Wanted, values: list[object], mark: str) -> list[str]:
    names = _names(wanted, values, mark)
    return [f"definition IN ({', '.join(names)})"] if names else []


def _any_of(column: str, words: tuple[str, ...]) -> list[str]:
    """Of words that are the kernel's own."""
    return [f"{column} IN ({', '.join(repr(word) for word in words)})"] if words else []


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


def backlog(now: str, served: str) -> str:
    """`now` is the database's time, as an expression; `served` is how a queue is looked for among those that are."""
    return _BACKLOG.format(now=now, served=served)


def overview(now: str, *, is_of_tenant: bool) -> str:
    """Each part stops at a bound, or looks at the first row of an index alone. The tenant is the first parameter."""
    of = "tenant = $1 AND" if is_of_tenant else ""
    executions = [_counted("executions", status, f"executions WHERE {of} status") for status in _STATUSES]
    reviews = [_counted("reviews", kind, f"reviews WHERE {of} resolution IS NULL AND kind") for kind in _KINDS]
    due = f"SELECT 'due', '', 0, min(wake_at) FROM ({_OLDEST_DUE.format(of=of)}) AS due WHERE wake_at <= {now}"
    tasks = (
        "SELECT 'tasks', queue, count(*), min(created_at) FROM ("
        f"SELECT queue, created_at FROM tasks WHERE {of} session IS NULL LIMIT {COUNTED}) AS waiting GROUP BY queue"
    )
    return " UNION ALL ".join([*executions, *reviews, due, tasks, f"SELECT 'now', '', 0, {now}"])


def _counted(what: str, label: str, rows: str) -> str:
    """A count of rows, by a condition that ends with the column of the label."""
    found = f"SELECT 1 FROM {rows} = '{label}' LIMIT {COUNTED}"
    return f"SELECT '{what}', '{label}', (SELECT count(*) FROM ({found}) AS found), CAST(NULL AS bigint)"


def count(wanted: Wanted, by: str, mark: str) -> tuple[str, list[object]]:
    assert by in ("status", "definition")
    conditions, values = _conditions(wanted, mark)
    conditions += [*_any_of("status", _statuses(wanted)), *_defined(wanted, values, mark)]
    if wanted.correlation_id is not None:
        values.append(wanted.correlation_id)
        conditions.append(_correlated(f"{mark}{len(values)}"))
    where = " AND ".join(conditions) or "true"
    return f"SELECT {by}, count(*) FROM executions WHERE {where} GROUP BY {by}", values


def _conditions(wanted: Wanted, mark: str) -> tuple[list[str], list[object]]:
    conditions: list[str] = []
    values: list[object] = []
    for name, condition in _FILTERS.items():
        value = getattr(wanted, name)
        if value is None:
            continue
        values.append(value)
        conditions.append(condition.format(f"{mark}{len(values)}"))
    if wanted.failed:
        conditions.append("error_class <> ''")
    return conditions, values
