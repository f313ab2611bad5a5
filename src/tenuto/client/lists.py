"""Pages of the service's lists."""

from collections.abc import Mapping
from typing import Any

from tenuto.views import rfc3339
from tenuto.views.pages import Page

from .transport import PAGE, Transport


async def fetch_page(
    transport: Transport, path: str, params: Mapping[str, Any], cursor: str | None, limit: int
) -> Page[Any]:
    found = await transport.get(path, {**params, "cursor": cursor, "limit": min(limit, PAGE)}, has="next_cursor")
    return Page(found["items"], found["next_cursor"])


def timestamp(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)
