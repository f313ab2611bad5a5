"""The parameters of a query: one that an operation does not have, or has once and gets twice, is refused.

Whoever misspells a filter, and is given everything, acts on everything.
"""

from collections.abc import Iterator
from typing import Any, get_origin

from starlette.requests import Request

from tenuto.errors import InvalidInput, Problem
from tenuto.values.schema import pointer


async def known_parameters(request: Request) -> None:
    """A dependency of every operation."""
    if request.scope["query_string"]:
        given = [name for name, _ in request.query_params.multi_items()]
        if problems := list(_problems(given, _taken(request.scope["route"]))):
            raise InvalidInput("The query is not understood.", problems=problems, code="request_invalid")


def _taken(route: Any) -> dict[str, bool]:
    """The parameters of a route's query, each with whether it may come more than once."""
    fields = route.dependant.query_params
    return {field.alias: get_origin(field.field_info.annotation) is list for field in fields}


def _problems(given: list[str], taken: dict[str, bool]) -> Iterator[Problem]:
    known = f"there are {', '.join(taken)}" if taken else "there are none here"
    for name in dict.fromkeys(given):
        if name not in taken:
            yield Problem(pointer(["query", name]), "unknown_parameter", f"there is no such parameter; {known}")
        elif given.count(name) > 1 and not taken[name]:
            yield Problem(
                pointer(["query", name]), "repeated_parameter", "it is given more than once, and there is one"
            )
