"""Error responses: RFC 9457 problems with a status, a stable code, a message and pointers."""

import math
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tenuto import errors
from tenuto.errors import Problem, TenutoError, own_words
from tenuto.values.schema import pointer

from .headers import REQUEST_ID
from .paths import path_of

MEDIA_TYPE = "application/problem+json"
TYPE = "urn:tenuto:problem:"
FAULT = "tenuto.fault"  # in a request's scope: the code of a problem that is not the caller's
MOST_ERRORS = 101  # of a schema a hundred are told, and that there are more

# Errors that HTTP itself has: no class in `tenuto.errors` stands for them.
CODES = {
    400: ("malformed", "The request is malformed."),
    404: ("not_found", "No resource exists at this path."),
    405: ("method_not_allowed", "The resource does not support this method."),
    406: ("not_acceptable", "The resource is not available in this media type."),
    408: ("request_timeout", "The request took too long to arrive."),
    413: ("too_large", "The request is too large."),
    415: ("unsupported_media_type", "The body must be JSON: send `Content-Type: application/json`."),
    431: (
        "head_too_large",
        "The request line and headers are too large: at most 64 KiB in all and 100 headers.",
    ),
    500: (
        "internal_error",
        "An internal error occurred. It was logged with the id of this request. You may retry the request.",
    ),
}


class RequestRejected(Exception):
    """A request that the HTTP layer rejects by itself."""

    def __init__(self, status: int, detail: str = "", *, problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.problems = problems


class ProblemResponse(Response):
    """A problem. With 5xx it has the id of the request, which is in the log."""

    media_type = MEDIA_TYPE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.status_code >= 500 and REQUEST_ID in scope:
            document = {**msgspec.json.decode(self.body), "request_id": scope[REQUEST_ID]}
            scope[FAULT] = document["code"]
            self.body = msgspec.json.encode(document)
            self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def problem_response(
    status: int,
    code: str,
    detail: str,
    *,
    problems: tuple[Problem, ...] = (),
    hint: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    document: dict[str, Any] = {
        "type": TYPE + code,
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
    }
    if problems:
        document["errors"] = [{"pointer": p.path, "code": p.code, "message": p.message} for p in problems[:MOST_ERRORS]]
    if hint:
        document["hint"] = hint
    return ProblemResponse(msgspec.json.encode(document), status, headers)


def rejection_response(refusal: RequestRejected) -> Response:
    code, default = CODES[refusal.status]
    headers = {"Connection": "close"} if refusal.status == 408 else {}  # the rest of the body belongs to no request
    return problem_response(refusal.status, code, refusal.detail or default, problems=refusal.problems, headers=headers)


def error_response(error: TenutoError, *, in_query: bool = False) -> Response:
    """The response for a Tenuto error. Its message is meant for callers: it never contains payloads or secrets.

    `in_query`: its problems point into the query, not into a body. An error with status 500 is raised again, so that
    it is logged like any other server error.
    """
    status = error.http_status
    if status == 500:
        raise error
    problems: tuple[Problem, ...] = getattr(error, "problems", ())
    if in_query:
        problems = tuple(p if p.path.startswith("/query/") else replace(p, path=f"/query{p.path}") for p in problems)
    detail = error.message.split("\n", 1)[0]
    return problem_response(
        status, error.code, detail, problems=problems, hint=error.hint, headers=_headers(status, error)
    )


def _headers(status: int, error: TenutoError) -> dict[str, str]:
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if status == 429 or isinstance(error, errors.RequestInFlight | errors.StorageError):
        return {"Retry-After": str(max(1, math.ceil(getattr(error, "retry_after", 1))))}
    return {}


def add_error_handlers(app: FastAPI) -> None:
    """Turns every exception of a route into a problem."""

    @app.exception_handler(TenutoError)
    async def _(request: Request, error: Exception) -> Response:
        assert isinstance(error, TenutoError)
        return error_response(error, in_query=request.method == "GET")

    @app.exception_handler(RequestRejected)
    async def _(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestRejected)
        return rejection_response(error)

    @app.exception_handler(RequestValidationError)
    async def _(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return _invalid(error)

    @app.exception_handler(HTTPException)
    async def _(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code, detail = CODES.get(error.status_code, ("http_error", str(error.detail)))
        headers, hint = error.headers, None
        if error.status_code == 405:
            headers = {"Allow": ", ".join(sorted(_methods_at(app, path_of(request.scope))))}
        elif error.status_code == 404:
            hint = "/openapi.json lists the paths; TENUTO_SERVER of a client needs no path unless a proxy adds one"
        return problem_response(error.status_code, code, detail, headers=headers, hint=hint)

    @app.exception_handler(Exception)
    async def _(request: Request, error: Exception) -> Response:
        return problem_response(500, *CODES[500])


def _methods_at(app: FastAPI, path: str) -> set[str]:
    """The methods of all routes that match this path: a route knows only its own."""
    taking = [each for each in app.routes if isinstance(each, APIRoute) and each.path_regex.match(path)]
    return {method for route in taking for method in route.methods or ()}


def _invalid(error: RequestValidationError) -> Response:
    """The response for invalid models: a pointer into the body or the parameters (`/query/limit`) for each error."""
    found = []
    for each in error.errors():
        path = list(each["loc"])
        at = pointer(path[1:] if path[0] == "body" else path)
        found.append(Problem(at, each["type"], own_words(str(each["msg"]))))
    if any(each["type"] == "json_invalid" for each in error.errors()):
        return problem_response(400, *CODES[400])
    return problem_response(422, "request_invalid", "The request is not valid.", problems=tuple(found))
