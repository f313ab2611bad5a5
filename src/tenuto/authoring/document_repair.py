"""Takes out of a document what the schema refuses, so that the rest of it can be validated in the same run."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any, Final

from tenuto.errors import Problem

_NODES: Final = ("steps", "children")
_EDGES: Final = (
    *_NODES,
    "step_id",
    "mode",
    "depends_on",
    "on_success",
    "on_failure",
    "on_timeout",
    "branches",
    "default",
)
_ABOUT_EDGES: Final = ("unreachable", "endless", "unknown_step", "misplaced")


class RepairedDocument:
    """A document of valid shape. `reports` tells which problems of it are also problems of the original."""

    def __init__(self, document: dict[str, Any], problems: Iterable[Problem]) -> None:
        self.document = deepcopy(document)
        self._removed: set[str] = set()
        self._has_all_edges = True
        for problem in problems:
            self._repair(problem.path.split("/")[1:])

    def reports(self, problem: Problem) -> bool:
        """Returns whether a problem is not a mere consequence of what was taken out."""
        if not self._has_all_edges and problem.code in _ABOUT_EDGES:
            return False
        parts = problem.path.split("/")
        return not any("/".join(parts[:length]) in self._removed for length in range(2, len(parts) + 1))

    def _repair(self, path: list[str]) -> None:
        """Removes the field at a path. A node that lacks its id, or is none, becomes a step without problems."""
        place: Any = self.document
        for depth, part in enumerate(path):
            is_last = depth == len(path) - 1
            if isinstance(place, list):
                if not part.isdecimal() or int(part) >= len(place):
                    return
                if is_last or not isinstance(place[int(part)], dict):
                    self._replace_node(place, int(part), path[: depth + 1])
                    return
                place = place[int(part)]
            elif isinstance(place, dict):
                inner = place.get(part)
                descends = isinstance(inner, dict) or (part in _NODES and isinstance(inner, list))
                if is_last or not descends:
                    self._remove(place, part, path[: depth + 1])
                    return
                place = inner

    def _replace_node(self, nodes: list[Any], index: int, path: list[str]) -> None:
        nodes[index] = {"step_id": f"_{'_'.join(path)}", "type": "task", "handler": "_"}
        self._has_all_edges = False
        self._removed.add(_pointer(path))

    def _remove(self, place: dict[str, Any], field: str, path: list[str]) -> None:
        place.pop(field, None)
        self._removed.add(_pointer(path))
        self._has_all_edges = self._has_all_edges and field not in _EDGES
        if field == "type":  # what the other fields mean depends on it
            self._removed.add(_pointer(path[:-1]))
        if field == "step_id":
            place[field] = f"_{'_'.join(path)}"
        elif field == "name" and len(path) == 1:
            place[field] = "_"
        elif field == "steps" and len(path) == 1:
            place[field] = []


def _pointer(path: list[str]) -> str:
    return "".join(f"/{part}" for part in path)
