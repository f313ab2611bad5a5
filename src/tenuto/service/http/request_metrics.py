"""Metrics of requests. This is the outermost layer, so that rejected requests count, too."""

import time

from starlette.types import ASGIApp, Receive, Scope, Send

from tenuto.telemetry.served import Served

from .headers import STATUS
from .paths import route_of
from .request_limits import REJECTED, is_stream


class RequestMetrics:
    def __init__(self, app: ASGIApp, served: Served) -> None:
        self._app = app
        self._served = served
        served.is_serving = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._served.under_way += 1
        began = time.perf_counter()
        try:
            await self._app(scope, receive, send)
        except Exception:
            scope.setdefault(STATUS, 500)  # the server turns it into a 500 response
            raise
        finally:
            self._served.under_way -= 1
            self._note(scope, time.perf_counter() - began)

    def _note(self, scope: Scope, seconds: float) -> None:
        spent = None if is_stream(scope) else seconds
        self._served.answered(route_of(scope), scope["method"], scope.get(STATUS, 0), spent)
        if (reason := scope.get(REJECTED)) is not None:
            self._served.refused(reason)
