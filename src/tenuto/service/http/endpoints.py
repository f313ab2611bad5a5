"""Endpoints: routes with their permissions, their checks of the query, and their fast paths."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar, get_origin

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from tenuto.access.permission import Permission
from tenuto.errors import InvalidInput, Problem
from tenuto.values.schema import pointer

from .caller import Caller, allow, authenticated, caller_of
from .fast_path import FastRoute
from .paths import ExactRoute

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

ANY_CREDENTIAL = "any credential"  # in the place of a permission


class EndpointRouter(APIRouter):
    """A router whose endpoints each have a permission, so that none is open by mistake."""

    def __init__(self, tags: list[str]) -> None:
        super().__init__(tags=[*tags], route_class=ExactRoute)
        self.fast_routes: list[FastRoute[Any]] = []
        self._permissions: dict[Callable[..., Any], tuple[Permission, ...]] = {}

    def operation(self, method: str, path: str, *permissions: Permission, **options: Any) -> Callable[[F], F]:
        """Adds an endpoint. Any one of the permissions is enough to call it."""
        assert permissions, "every endpoint needs a permission"

        def add(endpoint: F) -> F:
            self._permissions[endpoint] = permissions
            return self._add(method, path, endpoint, allow(*permissions), " or ".join(permissions), options)

        return add

    def common_operation(self, method: str, path: str, **options: Any) -> Callable[[F], F]:
        """Adds an endpoint that every credential may call."""

        def add(endpoint: F) -> F:
            return self._add(method, path, endpoint, authenticated, ANY_CREDENTIAL, options)

        return add

    def open_operation(self, method: str, path: str, **options: Any) -> Callable[[F], F]:
        """Adds an endpoint that needs no credential."""

        def add(endpoint: F) -> F:
            return self._add(method, path, endpoint, None, None, options)

        return add

    def _add(
        self,
        method: str,
        path: str,
        endpoint: F,
        allowed: Callable[..., Any] | None,
        permission: str | None,
        options: dict[str, Any],
    ) -> F:
        body = options.pop("body", {})  # of an endpoint that reads its body itself
        self.add_api_route(
            path,
            endpoint,
            methods=[method],
            operation_id=endpoint.__name__,
            dependencies=[*([] if allowed is None else [Depends(allowed)]), Depends(known_parameters)],
            openapi_extra={**body, **({} if permission is None else {"x-permission": permission})},
            **options,
        )
        return endpoint

    def add_fast_path(
        self,
        operation: Callable[..., Any],
        read: Callable[[Scope], T | None],
        answer: Callable[[Caller, T], Awaitable[Response]],
    ) -> None:
        """Adds a fast path to an endpoint, with the same permissions and the same response."""
        route = next(each for each in self.routes if isinstance(each, APIRoute) and each.endpoint is operation)
        permissions = self._permissions[operation]

        async def authorised(scope: Scope, given: T) -> Response:
            caller = await caller_of(scope)
            caller.engine.scope.require(*permissions)
            return await answer(caller, given)

        method = next(iter(route.methods or ()))
        self.fast_routes.append(FastRoute(method, route.path_regex, route.path_format, read, authorised))


async def known_parameters(request: Request) -> None:
    """The dependency of every endpoint that rejects unknown and repeated query parameters.

    A client with a misspelled filter would otherwise get everything, and act on everything.
    """
    if request.scope["query_string"]:
        given = [name for name, _ in request.query_params.multi_items()]
        if problems := list(_problems(given, _taken(request.scope["route"]))):
            raise InvalidInput("The query is not valid.", problems=problems, code="request_invalid")


def _taken(route: Any) -> dict[str, bool]:
    """The query parameters of a route, each with whether it may be repeated."""
    fields = route.dependant.query_params
    return {field.alias: get_origin(field.field_info.annotation) is list for field in fields}


def _problems(given: list[str], taken: dict[str, bool]) -> Iterator[Problem]:
    known = f"use {', '.join(taken)}" if taken else "this endpoint has none"
    for name in dict.fromkeys(given):
        if name not in taken:
            yield Problem(pointer(["query", name]), "unknown_parameter", f"unknown parameter; {known}")
        elif given.count(name) > 1 and not taken[name]:
            yield Problem(pointer(["query", name]), "repeated_parameter", "the parameter may be given only once")
