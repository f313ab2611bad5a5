"""The log of requests: server errors with the id of their request, which the response repeats."""

import logging

from starlette.types import ASGIApp, Receive, Scope, Send

from .error_responses import CODES, FAULT, problem_response
from .headers import REQUEST_ID, STATUS
from .paths import route_of

logger = logging.getLogger("tenuto.service")


class RequestLog:
    """Logs server errors, and all other requests at DEBUG. Turns an unhandled exception into a 500 response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            _log(logging.ERROR, "A request failed.", "request_failed", scope, error)
            if STATUS in scope:  # the response has begun: only closing the connection is left
                raise
            await problem_response(500, *CODES[500])(scope, receive, send)
        else:
            if FAULT in scope:
                _log(logging.WARNING, "A request could not be answered.", "request_failed", scope)
            elif logger.isEnabledFor(logging.DEBUG):
                _log(logging.DEBUG, "A request was answered.", "request_answered", scope)


def _log(level: int, words: str, action: str, scope: Scope, error: Exception | None = None) -> None:
    about = {
        "action": action,
        "request_id": scope[REQUEST_ID],
        "method": scope["method"],
        "route": route_of(scope),
        "status": scope.get(STATUS, 500),
        "code": scope.get(FAULT, CODES[500][0] if error is not None else None),
    }
    logger.log(level, words, extra=about, exc_info=error)
