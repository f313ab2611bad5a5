"""Pages of executions, reviews and dead letters, for those who show them a page at a time."""

from datetime import datetime

from .handle import Link
from .kernel.state import ExecutionStatus
from .runtime import Filter, Page, execution_summary
from .view import ExecutionSummary


class Listing:
    """Each list gives one page; `next_cursor` of it is `cursor` of the next."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def executions(
        self,
        *,
        status: ExecutionStatus | None = None,
        definition: str | None = None,
        correlation_id: str | None = None,
        target_id: str | None = None,
        since: datetime | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[ExecutionSummary]:
        """Newest first."""
        link = self._link
        link.scope.require("executions:read")
        wanted = Filter(
            tenant=link.scope.tenant,
            status=status,
            definition=definition,
            correlation_id=correlation_id,
            target_id=target_id,
            since_ms=None if since is None else round(since.timestamp() * 1_000),
            newest_first=True,
        )
        found = await link.runtime.executions(wanted, cursor, limit)
        return Page([execution_summary(summary) for summary in found.items], found.next_cursor)
