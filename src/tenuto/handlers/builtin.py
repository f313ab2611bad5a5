"""The built-in handlers for JSON definitions: `http`, `webhook`, `email`, `log`, and the probe `sent`.

Their dependencies are imported when a worker registers a definition that uses one of them, because most engines use
none.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tenuto.authoring.context import SagaContext
from tenuto.authoring.outcome import Outcome
from tenuto.storage.notices import Notices

from . import sent
from .settings import HandlerSettings

if TYPE_CHECKING:
    import httpx2


NAMES: Final = ("email", "http", "log", "sent", "webhook")


class BuiltIn:
    """The handlers of one process."""

    def __init__(self, settings: HandlerSettings, notices: Notices) -> None:
        self._settings = settings
        self._notices = notices
        self._client: httpx2.AsyncClient | None = None

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        return {name: getattr(self, name) for name in NAMES}

    @property
    def preparations(self) -> dict[str, Callable[[], None]]:
        return {"http": _prepare_http, "webhook": _prepare_http, "email": _prepare_email}

    async def http(self, given: Any, ctx: SagaContext) -> Any:
        from . import request

        return await request.call(given, ctx, self._settings, self._open_client())

    async def webhook(self, given: Any, ctx: SagaContext) -> Any:
        from . import webhook

        client = self._open_client()
        return await sent.send_once(
            self._notices, ctx, "webhook", lambda: webhook.call(given, ctx, self._settings, client)
        )

    async def email(self, given: Any, ctx: SagaContext) -> Any:
        from . import email

        return await sent.send_once(self._notices, ctx, "email", lambda: email.call(given, ctx, self._settings))

    async def log(self, given: Any, ctx: SagaContext) -> None:
        from . import log

        await log.call(given, ctx)

    async def sent(self, ctx: SagaContext) -> Outcome[Any]:
        return await sent.probe(self._notices, ctx)

    async def post_signed(self, url: str, id: str, content: bytes, now_s: int) -> str | None:
        from . import signed_post

        return await signed_post.post(url, id, content, now_s, self._settings, self._open_client())

    def _open_client(self) -> "httpx2.AsyncClient":
        if self._client is None:
            from .client import make_client
            from .egress import Egress

            self._client = make_client(Egress(self._settings.egress_allow))
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None


def _prepare_http() -> None:
    """Imports and prepares the HTTP client. Takes half a second, once per process."""
    from . import client, request, webhook  # noqa: F401  (so that it is there when it is called)
    from .http import tls

    tls()


def _prepare_email() -> None:
    from . import email  # noqa: F401  (so that it is there when it is called)
