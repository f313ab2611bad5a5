"""The mailbox of executions on SQLite."""

from tenuto.storage.shared.mailbox import SqlMailbox

from .database import SqliteDatabase
from .errors import translated


class SqliteMailbox(SqlMailbox):
    def __init__(self, database: SqliteDatabase) -> None:
        super().__init__(database)
        self._database = database

    async def post(self, id: str, execution: str, body: bytes) -> tuple[int, str | None] | None:
        def work() -> tuple[int, str | None] | None:
            database = self._database
            with translated(), database.transaction():
                now, connection = database.now(), database.write_connection
                query = "SELECT owner FROM executions WHERE id = ?"
                row = connection.execute(query, (execution,)).fetchone()
                if row is None:
                    return None
                query = "INSERT OR IGNORE INTO mailbox (id, execution, body, received_at) VALUES (?, ?, ?, ?)"
                connection.execute(query, (id, execution, body, now))
                connection.execute("UPDATE executions SET wake_at = ? WHERE id = ?", (now, execution))
                return now, row[0]

        return await self._database.in_writer(work)
