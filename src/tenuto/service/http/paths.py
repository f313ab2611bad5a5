"""The path of a request within this application, and routes that take one only as it is written."""

import re
from typing import Any

from fastapi.routing import APIRoute
from starlette.types import Scope


def path_of(scope: Scope) -> str:
    """Without what an outer application has it mounted at: whole parts of the path, as the router takes them off."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if f"{path}/".startswith(f"{root}/") else path


class Exact(APIRoute):
    """A `$`, with which the framework ends the pattern of a path, also stands before a line feed that ends it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.path_regex = re.compile(self.path_regex.pattern.removesuffix("$") + r"\Z")
