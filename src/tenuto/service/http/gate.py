"""How many requests are under way at once: what comes beyond that is turned away at once, and may come again.

A process that takes in more than it can do makes everybody wait, and in the end answers nobody in time. So those that
it has taken stay quick, and the others hear 429 before anything was read for them.
"""

import random

from starlette.types import ASGIApp, Receive, Scope, Send

from tenuto.errors import RateExceeded

from .problems import told

SHORTEST_WAIT_S, LONGEST_WAIT_S = 1, 4  # by chance between the two: those turned away do not all come back together
_NOT_COUNTED = ("/healthz", "/readyz", "/metrics", "/events")  # probes must be heard; streams have a limit of their own


class Gate:
    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._most <= 0 or scope["type"] != "http" or _is_free(scope):
            await self._app(scope, receive, send)
            return
        if self._under_way >= self._most:
            await _turned_away()(scope, receive, send)
            return
        self._under_way += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way -= 1


def _is_free(scope: Scope) -> bool:
    waits = b"wait=" in scope["query_string"]  # for an execution: it does nothing meanwhile, and is counted as a stream
    return waits or scope["path"].endswith(_NOT_COUNTED)


def _turned_away() -> ASGIApp:
    wait = random.uniform(SHORTEST_WAIT_S, LONGEST_WAIT_S)  # noqa: S311  (nobody gains by guessing it)
    return told(RateExceeded("This process has as many requests under way as it takes.", retry_after=wait))
