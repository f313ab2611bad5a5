"""Headers of requests, and those that every response has, such as the id of the request."""

import random
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

STATUS = "tenuto.status"  # in a request's scope, once it is answered
REQUEST_ID = "tenuto.request_id"  # in a request's scope: always generated here
_BY_NAME = "tenuto.headers"  # in a request's scope, once one was asked for
_ECHOED = (b"x-correlation-id", b"traceparent")
_LONGEST = 255
# The W3C format. A later version may append fields.
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_ALWAYS = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
]


def header(scope: Scope, name: bytes) -> str | None:
    """The first header with this lower-case name."""
    by_name: dict[bytes, bytes] | None = scope.get(_BY_NAME)
    if by_name is None:
        by_name = scope[_BY_NAME] = dict(reversed(list(scope["headers"])))
    found = by_name.get(name)
    return None if found is None else found.decode("latin-1")


def trace_of(scope: Scope) -> dict[str, str]:
    """The trace headers of a request, if they are valid."""
    if (parent := header(scope, b"traceparent")) is None or not _is_trace(parent.encode("latin-1")):
        return {}
    found = {"traceparent": parent, "tracestate": header(scope, b"tracestate")}
    return {name: value for name, value in found.items() if value is not None and len(value) <= 512}


def _is_trace(value: bytes) -> bool:
    return len(value) <= _LONGEST and _TRACEPARENT.fullmatch(value) is not None


def new_id() -> str:
    """A request id. It is no secret, so it needs no system randomness, which would release the interpreter's lock for
    each request."""
    return f"{random.getrandbits(64):016x}"


def service_headers(id: str | None = None) -> list[tuple[bytes, bytes]]:
    """The headers that every response has."""
    return [(b"x-request-id", (id or new_id()).encode()), *_ALWAYS]


class ResponseHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[REQUEST_ID] = id = new_id()
        more = service_headers(id)
        for name, value in scope["headers"]:
            if name in _ECHOED and len(value) <= _LONGEST and (name != b"traceparent" or _is_trace(value)):
                more.append((name, value))

        async def finish(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope[STATUS] = message["status"]
                headers = message["headers"]  # the framework writes names in lower case
                there = [name for name, _ in headers]
                message["headers"] = headers + [pair for pair in more if pair[0] not in there]
            await send(message)

        await self._app(scope, receive, finish)
