"""The mailbox of executions on PostgreSQL."""

from tenuto.storage.shared.mailbox import SqlMailbox

from .database import PostgresDatabase
from .errors import translated
from .statements import NOW

_WAKE = f"UPDATE executions SET wake_at = {NOW} WHERE id = $1 RETURNING owner, {NOW} AS now"
_POST = "INSERT INTO mailbox (id, execution, body, received_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING"


class PostgresMailbox(SqlMailbox):
    def __init__(self, database: PostgresDatabase) -> None:
        super().__init__(database)
        self._database = database

    async def post(self, id: str, execution: str, body: bytes) -> tuple[int, str | None] | None:
        async with translated(), self._database.pool.acquire() as connection, connection.transaction():
            row = await connection.fetchrow(_WAKE, execution)
            if row is None:
                return None
            await connection.execute(_POST, id, execution, body, row["now"])
            return row["now"], row["owner"]
        raise AssertionError("translated() does not swallow")
