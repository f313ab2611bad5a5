"""Parts of statements that several modules use, on SQLite."""

import apsw

INCARNATION = "(SELECT number FROM incarnation)"
IS_LIVE = f"ended_at IS NULL AND incarnation = {INCARNATION}"
LIVE = f"SELECT 1 FROM sessions WHERE id = ? AND {IS_LIVE}"


def is_live(connection: apsw.Connection, session: str) -> bool:
    return connection.execute(LIVE, (session,)).fetchone() is not None
