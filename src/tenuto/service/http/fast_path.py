"""The fast path of hot endpoints.

For each request the framework resolves the parameters of the endpoint, which costs more than starting an execution. So
hot endpoints have a parser of their own. A request that it does not accept takes the framework's path, which reports
what is wrong with it.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tenuto.errors import TenutoError

from .error_responses import error_response
from .paths import FAST_ROUTE, path_of

T = TypeVar("T")
B = TypeVar("B", bound=BaseModel)

BODY = "tenuto.body"  # in a request's scope: its JSON, read and checked by the body reader
MAX_HEADER_LENGTH = 255


@dataclass(frozen=True)
class FastRoute(Generic[T]):
    """`read` parses a request without a query, or returns None to leave it to the framework."""

    method: str
    path: re.Pattern[str]
    template: str
    read: Callable[[Scope], T | None]
    answer: Callable[[Scope, T], Awaitable[Response]]


class FastPath:
    """The layer in front of the framework's own layers and routes."""

    def __init__(self, app: ASGIApp, routes: Sequence[FastRoute[Any]]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = path_of(scope)
            for route in self._routes:
                if scope["method"] == route.method and (found := route.path.match(path)) is not None:
                    scope["path_params"] = found.groupdict()
                    scope[FAST_ROUTE] = route.template
                    parsed = None if scope["query_string"] else route.read(scope)
                    if parsed is None:
                        break
                    try:
                        response = await route.answer(scope, parsed)
                    except TenutoError as error:
                        response = error_response(error)
                    await response(scope, receive, send)
                    return
        await self._app(scope, receive, send)


def body_of(scope: Scope, kind: type[B]) -> B | None:
    body: Any = scope.get(BODY)
    try:
        return None if body is None else kind.model_validate(body)
    except ValidationError:
        return None


def is_valid_header(header: str | None) -> bool:
    return header is None or 1 <= len(header) <= MAX_HEADER_LENGTH
