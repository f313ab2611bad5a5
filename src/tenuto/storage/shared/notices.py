"""Sent notifications, on both databases."""

from tenuto.storage.port import Notice

from .database import Database
from .executions import row_of
from .rows import values_of

_COLUMNS = Notice.__struct_fields__


class SqlNotices:
    """Implements `Notices`."""

    def __init__(self, database: Database) -> None:
        self._sql = database

    async def begin_notice(self, notice: Notice) -> Notice:
        query = (
            "INSERT INTO sent_notifications (key, tenant, execution, path, channel, begun_at) "
            f"VALUES ($1, $2, $3, $4, $5, {self._sql.clock()}) ON CONFLICT DO NOTHING"
        )
        await self._sql.run(query, values_of(notice)[:5])
        stored = await self.notice(notice.key)
        assert stored is not None
        return stored

    async def end_notice(self, key: str, receipt: bytes) -> None:
        query = (
            f"UPDATE sent_notifications SET sent_at = {self._sql.clock()}, receipt = $2 "
            "WHERE key = $1 AND receipt IS NULL"
        )
        await self._sql.run(query, (key, receipt))

    async def notice(self, key: str) -> Notice | None:
        rows = await self._sql.fetch(f"SELECT {', '.join(_COLUMNS)} FROM sent_notifications WHERE key = $1", (key,))
        return row_of(Notice, rows[0]) if rows else None
