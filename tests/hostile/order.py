"""In which order things were kept: what no history shows, because it knows only its own execution."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tenuto.kernel import events as e
from tenuto.kernel.codec import decode_entries

if TYPE_CHECKING:
    from .world import World

# Every row of every history gets a number; and whatever would take an execution back to an earlier state is kept.
WATCH_ORDER = """
CREATE TABLE kept_order (number INTEGER PRIMARY KEY, execution TEXT, seq INTEGER);
CREATE TRIGGER watch_events AFTER INSERT ON events
BEGIN
    INSERT INTO kept_order (execution, seq) VALUES (NEW.execution, NEW.seq);
END;
CREATE TABLE went_back (execution TEXT, was INTEGER, became INTEGER);
CREATE TRIGGER watch_rows AFTER UPDATE ON executions WHEN NEW.seq < OLD.seq
BEGIN
    INSERT INTO went_back VALUES (NEW.id, OLD.seq, NEW.seq);
END"""

_KEYED = """
SELECT o.execution, x.tenant, x.definition, x.concurrency_key, v.body FROM kept_order o
JOIN executions x ON x.id = o.execution AND x.concurrency_key IS NOT NULL
JOIN events v ON v.execution = o.execution AND v.seq = o.seq ORDER BY o.number"""


def out_of_order(world: "World") -> Iterator[tuple[str, str]]:
    for told in world.reader().execute("SELECT execution, was, became FROM went_back"):
        yield "an execution never goes back to what an earlier word said", f"{told}"
    yield from _not_alone(world)


def _not_alone(world: "World") -> Iterator[tuple[str, str]]:
    """From when it is admitted until it is over, an execution has its key for itself, whatever happens to processes."""
    holders: dict[tuple[str, str, str], str] = {}
    for id, tenant, definition, key, body in world.reader().execute(_KEYED):
        line = (tenant, definition, key)
        for entry in decode_entries(body):
            if isinstance(entry.event, e.ExecutionAdmitted):
                if (holder := holders.setdefault(line, id)) != id:
                    yield "one execution at a time is admitted for each key", f"{line}: {holder} and {id}"
            elif isinstance(entry.event, e.ExecutionFinished) and holders.get(line) == id:
                del holders[line]
