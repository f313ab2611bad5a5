"""Paths of requests: as this application sees them, as routes match them, and as logs and metrics show them."""

import re
from typing import Any

from fastapi.routing import APIRoute
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.types import Scope

FAST_ROUTE = "tenuto.route"  # in a request's scope: the template of its path, if it took a fast path


def path_of(scope: Scope) -> str:
    """The path without the prefix at which an outer application has mounted this one."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if f"{path}/".startswith(f"{root}/") else path


def route_of(scope: Scope) -> str | None:
    """The template of a request's path, once it is known. It contains no ids."""
    found: str | None = scope.get(FAST_ROUTE) or getattr(scope.get("route"), "path_format", None)
    return found


class ExactRoute(APIRoute):
    """A route whose pattern ends with `\\Z`: the `$` of the framework also matches before a trailing line feed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.path_regex = re.compile(self.path_regex.pattern.removesuffix("$") + r"\Z")


class PlainSegment(StringConvertor):
    """`{id:plain}`: a path segment without a colon, because a verb follows the colon."""

    regex = "[^/:]+"


class WholeName(StringConvertor):
    """`{name:whole}`: a name that users choose, up to its verb or the end. It may contain colons, slashes and lines."""

    regex = "(?s:.+)"


register_url_convertor("plain", PlainSegment())
register_url_convertor("whole", WholeName())
