"""Who may start, on SQLite. Everything here is part of the transaction that writes a batch."""

from collections.abc import Iterable, Sequence

import apsw

from tenuto.storage.port import NewExecution, Refusal
from tenuto.storage.shared.admissions import Known, admission, line_of, refusals
from tenuto.views.projections import Standing

from .plain_batch import as_json

_KEYS = """
SELECT e.tenant, e.key FROM json_each(?) s JOIN executions e ON e.tenant = s.value ->> 0 AND e.key = s.value ->> 1"""
_LINES = """
SELECT DISTINCT a.tenant, a.definition, a.key FROM json_each(?) s JOIN admissions a
ON a.tenant = s.value ->> 0 AND a.definition = s.value ->> 1 AND a.key = s.value ->> 2"""
_ROOM = "SELECT tenant, max_in_flight - in_flight FROM tenant_limits WHERE tenant IN (SELECT value FROM json_each(?))"
# Executions as they were: an execution counts from its start, or its next run, to its end.
_ENDS = """
SELECT e.tenant, iif(e.ended_at IS NULL, -1, 1) FROM json_each(?) m JOIN executions e ON e.id = m.value ->> 0
WHERE e.owner IS ? AND e.epoch = m.value ->> 2 AND (e.ended_at IS NULL) <> (m.value ->> 1 IS NULL)"""
_COUNT = "UPDATE tenant_limits SET in_flight = max(in_flight + ?, 0) WHERE tenant = ?"
_FIRST = """
SELECT e.id, e.run FROM admissions a JOIN executions e ON e.id = a.execution
WHERE a.tenant = ? AND a.definition = ? AND a.key = ? ORDER BY a.position LIMIT 1"""
_MAIL = "INSERT OR IGNORE INTO mailbox (id, execution, body, received_at) VALUES (?, ?, ?, ?)"


def refused_starts(db: apsw.Connection, starts: Sequence[NewExecution], *, limited: bool) -> dict[str, Refusal]:
    """`limited`: there are tenants with a limit."""
    keys = [(start.tenant, start.key) for start in starts if start.key is not None]
    lines = [line_of(start) for start in starts if start.reject_conflict and start.concurrency_key is not None]
    if not (keys or lines or (limited and starts)):
        return {}
    known = Known(
        keys=list(db.execute(_KEYS, (as_json(keys),))) if keys else (),
        lines=list(db.execute(_LINES, (as_json(lines),))) if lines else (),
        room=room_left(db, starts) if limited else {},
    )
    return refusals(starts, known)


def room_left(db: apsw.Connection, starts: Sequence[NewExecution]) -> dict[str, int]:
    """How many more the tenants of these starts may have in flight: those that have a limit."""
    return dict(db.execute(_ROOM, (as_json(list({start.tenant for start in starts})),)))


def count_in_flight(
    db: apsw.Connection, starts: Iterable[tuple[NewExecution, Standing]], moves: Sequence[Standing], session: str | None
) -> None:
    changes: dict[str, int] = {}
    for start, standing in starts:
        if standing.ended_at is None:
            changes[start.tenant] = changes.get(start.tenant, 0) + 1
    ends = as_json([(move.id, move.ended_at, move.epoch) for move in moves])
    for tenant, change in db.execute(_ENDS, (ends, session)):
        changes[tenant] = changes.get(tenant, 0) + change
    db.executemany(_COUNT, [(change, tenant) for tenant, change in changes.items()])


def admit(db: apsw.Connection, standing: Standing, now: int) -> None:
    """Enters or leaves the queue. The execution that is then first gets a message."""
    assert standing.line is not None
    if standing.admission == "request":
        query = "INSERT OR IGNORE INTO admissions (tenant, definition, key, execution) VALUES (?, ?, ?, ?)"
        db.execute(query, (*standing.line, standing.id))
    else:
        db.execute("DELETE FROM admissions WHERE execution = ?", (standing.id,))
    for execution, run in list(db.execute(_FIRST, standing.line)):
        db.execute(_MAIL, admission(execution, run, standing.line[2], now))
        if db.changes():  # else it was told before
            db.execute("UPDATE executions SET wake_at = ? WHERE id = ?", (now, execution))
