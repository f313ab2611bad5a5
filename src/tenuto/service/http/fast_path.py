"""The short way through hot operations.

The framework looks up, for each request, what an endpoint wants and where it comes from. That costs more than starting
an execution does. So hot operations say how to read their request themselves, and are called with it. What is not
plainly right goes the long way, which knows how to say what is wrong with it.
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
from .paths import path_of

T = TypeVar("T")
B = TypeVar("B", bound=BaseModel)

ROUTE = "tenuto.route"  # in a request's scope: the template of its path, if that has a short way
BODY = "tenuto.body"  # in a request's scope: its JSON, read and checked by the guard
LONGEST_HEADER = 255


@dataclass(frozen=True)
class FastRoute(Generic[T]):
    """`read` takes what an operation needs from a request without a query, or None: then the framework does."""

    method: str
    path: re.Pattern[str]
    template: str
    read: Callable[[Scope], T | None]
    answer: Callable[[Scope, T], Awaitable[Response]]


class FastPath:
    """Stands before the framework's own layers and its routes."""

    def __init__(self, app: ASGIApp, fast_routes: Sequence[FastRoute[Any]]) -> None:
        self._app = app
        self._shorts = fast_routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = path_of(scope)
            for short in self._shorts:
                if scope["method"] == short.method and (found := short.path.match(path)) is not None:
                    scope["path_params"] = found.groupdict()
                    scope[ROUTE] = short.template
                    given = None if scope["query_string"] else short.read(scope)
                    if given is None:
                        break
                    try:
                        response = await short.answer(scope, given)
                    except TenutoError as error:
                        response = error_response(error)
                    await response(scope, receive, send)
                    return
        await self._app(scope, receive, send)


def route_of(scope: Scope) -> str | None:
    """The template of a request's path, once it is known: it names nobody."""
    found: str | None = scope.get(ROUTE) or getattr(scope.get("route"), "path_format", None)
    return found


def body_of(scope: Scope, kind: type[B]) -> B | None:
    body: Any = scope.get(BODY)
    try:
        return None if body is None else kind.model_validate(body)
    except ValidationError:
        return None


def is_valid_header(header: str | None) -> bool:
    return header is None or 1 <= len(header) <= LONGEST_HEADER
