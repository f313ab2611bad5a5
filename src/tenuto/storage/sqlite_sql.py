"""Parts of statements that several modules need, on SQLite."""

INCARNATION = "(SELECT number FROM incarnation)"
IS_LIVE = f"ended_at IS NULL AND incarnation = {INCARNATION}"
LIVE = f"SELECT 1 FROM sessions WHERE id = ? AND {IS_LIVE}"
