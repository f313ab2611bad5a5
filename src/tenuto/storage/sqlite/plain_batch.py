"""The usual batch, as one statement: the interpreter's lock is given away once, for the whole commit.

A thread that gave the lock away waits milliseconds until a busy event loop gives it back. A transaction of some ten
statements would spend its time so, and the loop and the disk would take turns. So the rows of a batch are handed to a
view, whose trigger writes them: the transaction is begun, written and committed in one step, beside the loop.

The trigger gives up, and nothing is written, when anything is out of the ordinary: the session has ended, an execution
is not its own or has another last entry, a key is taken, tenants have limits. Such a batch is then written statement by
statement, which finds out what is to be refused.
"""

from collections.abc import Collection
from typing import Any

import apsw
import msgspec

from tenuto.storage.port import Batch
from tenuto.storage.shared.rows import EXECUTION_COLUMNS, basis_values, execution_values, move_values
from tenuto.storage.shared.status_changes import columns_of

from .statements import IS_LIVE

APPENDS = """
INSERT INTO events (execution, seq, count, body)
SELECT value ->> 0, value ->> 1, value ->> 2, CAST(value ->> 3 AS BLOB) FROM json_each({rows})"""
STARTS = f"""
INSERT INTO executions ({", ".join(EXECUTION_COLUMNS)})
SELECT {", ".join(f"value ->> {n}" for n in range(len(EXECUTION_COLUMNS)))} FROM json_each({{rows}})"""
MOVES = """
UPDATE executions SET status = m.value ->> 1, run = m.value ->> 2, seq = m.value ->> 3,
    owner = iif(m.value ->> 5, NULL, owner), cancel_requested = m.value ->> 6,
    wake_at = CASE WHEN NOT m.value ->> 5 OR m.value ->> 4 IS NULL THEN wake_at
        ELSE min(coalesce(wake_at, m.value ->> 4), m.value ->> 4) END,
    error_class = m.value ->> 7, parked = m.value ->> 8, ended_at = m.value ->> 9
FROM json_each({rows}) AS m WHERE executions.id = m.value ->> 0 AND owner IS {session} AND epoch = m.value ->> 10"""
# What the feed reads. The rows of starts and of moves both begin with the id.
CHANGES = f"""
INSERT INTO status_changes (at, changes)
SELECT {{now}}, json_group_array(json_array({columns_of("e")})) FROM executions AS e WHERE e.id IN (
    SELECT value ->> 0 FROM json_each({{starts}}) UNION ALL SELECT value ->> 0 FROM json_each({{moves}})
) HAVING count(*) > 0"""
# Whose owner or last entry is not the one that was decided on.
REFUSED = """
SELECT b.value ->> 0, iif(e.id IS NULL, 'not_owner', 'stale') FROM json_each({rows}) AS b
LEFT JOIN executions AS e ON e.id = b.value ->> 0 AND e.owner IS {session} AND e.epoch = b.value ->> 1
WHERE e.id IS NULL OR b.value ->> 2 IS NOT (
    SELECT t.seq + t.count - 1 FROM events AS t WHERE t.execution = b.value ->> 0 ORDER BY t.seq DESC LIMIT 1)"""

_VIEW = (
    "CREATE TEMP VIEW plain (session, bases, starts, moves, appends, now) AS SELECT NULL, NULL, NULL, NULL, NULL, NULL"
)
_TRIGGER = f"""
CREATE TEMP TRIGGER plain_batch INSTEAD OF INSERT ON plain BEGIN
    SELECT RAISE(ABORT, 'not plain') WHERE EXISTS (SELECT 1 FROM tenant_limits) OR (NEW.session IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM sessions WHERE id = NEW.session AND {IS_LIVE}));
    SELECT RAISE(ABORT, 'not plain') WHERE EXISTS ({REFUSED.format(rows="NEW.bases", session="NEW.session")});
    SELECT RAISE(ABORT, 'not plain') FROM json_each(NEW.moves) AS m
        LEFT JOIN executions AS e ON e.id = m.value ->> 0 AND e.owner IS NEW.session AND e.epoch = m.value ->> 10
        WHERE e.id IS NULL;
    {STARTS.format(rows="NEW.starts")};
    {MOVES.format(rows="NEW.moves", session="NEW.session")};
    {APPENDS.format(rows="NEW.appends")};
    {CHANGES.format(now="NEW.now", starts="NEW.starts", moves="NEW.moves")};
END"""
_COMMIT = "INSERT INTO plain VALUES (?, ?, ?, ?, ?, ?)"

Plain = tuple[str | None, str, str, str, str]


def install(connection: apsw.Connection) -> None:
    connection.execute(_VIEW)
    connection.execute(_TRIGGER)


def plain(batch: Batch) -> Plain | None:
    """Its rows, if it has none but of these kinds."""
    tasks = (batch.tasks, batch.tasks_ended, batch.withdrawn)
    rare = (batch.reviews, batch.closed, batch.mail, batch.snapshots, batch.audit, batch.outbox)
    paid = (batch.credit_entries, batch.settlements, batch.reserves)
    is_rare = any(tasks) or any(rare) or any(paid) or batch.is_about_jobs
    if is_rare or any(start.reject_conflict for start in batch.starts):
        return None
    standings = batch.standings
    if any(standing.admission for standing in standings.values()):
        return None
    started = {start.id for start in batch.starts}
    starts = [execution_values(start, standings[start.id]) for start in batch.starts]
    moves = [move_values(standing) for id, standing in standings.items() if id not in started]
    appends = [(a.execution, a.seq, a.count, a.body.decode()) for a in batch.appends]
    return batch.session, as_json(basis_values(batch)), as_json(starts), as_json(moves), as_json(appends)


def commit_plain(connection: apsw.Connection, rows: Plain, now: int) -> bool:
    """Committed; or not plain after all, and nothing written."""
    try:
        connection.execute(_COMMIT, (*rows, now))
    except apsw.ConstraintError:
        return False
    return True


def as_json(rows: Collection[Any]) -> str:
    return msgspec.json.encode(rows).decode()
