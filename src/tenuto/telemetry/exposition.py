"""`/metrics` as a separate ASGI application that can be mounted anywhere."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from prometheus_client.exposition import CONTENT_TYPE_LATEST

Message: TypeAlias = MutableMapping[str, Any]


class MetricsApp:
    def __init__(self, render: Callable[[], Awaitable[bytes]]) -> None:
        self._render = render

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        assert scope["type"] == "http"
        readable = scope["method"] in ("GET", "HEAD")
        body = await self._render() if readable else b""
        headers = [(b"content-type", CONTENT_TYPE_LATEST.encode()), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200 if readable else 405, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
