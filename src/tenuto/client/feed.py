"""The overview and the feed of the service."""

from collections.abc import AsyncIterator, Mapping

from tenuto.views.feed import FeedChunk
from tenuto.views.overview import OverviewDocument

from .refusals import check_tenant
from .stream import fed
from .transport import Transport


class RemoteFeed:
    """Implements `Feed`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def overview(self, tenant: str | None) -> OverviewDocument:
        check_tenant(tenant)
        found: OverviewDocument = await self._transport.get("/v1/overview", has="counts")
        return found

    async def follow(
        self, tenant: str | None, watched: Mapping[str, int | None], after: str | None
    ) -> AsyncIterator[FeedChunk]:
        check_tenant(tenant)
        async for chunk in fed(self._transport, watched, after):
            yield chunk
