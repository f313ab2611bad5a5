"""A test's own connection to a SQLite file that an engine writes, too."""

import apsw

PATIENCE_MS = 60_000  # an engine writes when it likes: whoever meets it waits for his turn


def connect(url: str) -> apsw.Connection:
    """To the file that a URL names, or a path."""
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.set_busy_timeout(PATIENCE_MS)
    return connection
