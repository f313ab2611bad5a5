"""When all is quiet, nothing waits for long that could be done at once: not even what would end well by and by."""

from typing import TYPE_CHECKING, Any

from tests.seams import session_of

if TYPE_CHECKING:
    import apsw

    from .loop import Process
    from .world import World

# Longer than it takes to find a dead process, and a claim that went astray; shorter than anything a saga waits for.
PATIENCE_SECONDS = 30

_WAITING = """
SELECT 'mail ' || id || ' for ' || execution FROM mailbox WHERE verdict IS NULL
UNION ALL SELECT 'due: ' || id FROM executions WHERE owner IS NULL AND wake_at <= ?1 AND parked = ''
UNION ALL SELECT 'owned by nobody: ' || id FROM executions
    WHERE owner NOT IN (SELECT id FROM sessions WHERE ended_at IS NULL AND expires_at > ?1)"""


class Overdue:
    def __init__(self, world: "World", reader: "apsw.Connection") -> None:
        self._world = world
        self._reader = reader
        self._since: dict[str, float] = {}

    def look(self) -> str:
        """What has waited for too long; nothing if all is well."""
        now = self._world.time()
        found = [what for (what,) in self._reader.execute(_WAITING, (self._world.database_now(),))]
        found += [f"without a session: {process}" for process in self._without_session()]
        self._since = {what: self._since.get(what, now) for what in found}
        late = [what for what, since in self._since.items() if now - since > PATIENCE_SECONDS]
        return "; ".join(late)

    def _without_session(self) -> list["Process"]:
        """Whoever was taken for dead, and lives, begins again."""
        alive = {id for (id,) in self._reader.execute("SELECT id FROM sessions WHERE ended_at IS NULL")}
        engines: dict[Process, Any] = dict(self._world.workers)
        return [process for process, engine in engines.items() if session_of(engine).session.id not in alive]
