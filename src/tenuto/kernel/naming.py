"""The names of steps as users see them: the author's id, and for a clone its label.

A path contains the index of a clone (`notify#0`), never its label. Users see and enter the label (`notify#ada`). All
conversions between the two are in this module.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from .address import fan_of, step_id
from .events import Expanded
from .state import Execution, FanState


class _Given(msgspec.Struct):
    """A fan-out over items that came with the execution's input."""

    labels: list[str] = []


def labels_of(state: Execution, fan_path: str) -> Sequence[str]:
    """Returns the labels of the clones of a fan-out; empty if they are named by index."""
    id = step_id(fan_path)
    if id in state.each:
        return _given(state, id)
    fan = state.nodes.get(fan_path)
    return fan.labels if isinstance(fan, FanState) else ()


def labels_in(state: Execution, event: Expanded) -> Sequence[str]:
    """Returns the labels as of the event, because a later round may have other items."""
    id = step_id(event.path)
    return _given(state, id) if id in state.each else event.labels


def _given(state: Execution, id: str) -> list[str]:
    given = msgspec.json.decode(state.input, type=dict[str, Raw]).get(id)
    return [] if given is None else msgspec.json.decode(given, type=_Given).labels


def clone_name(fan_path: str, index: int, labels: Sequence[str]) -> str:
    return f"{step_id(fan_path)}#{labels[index] if index < len(labels) else index}"


def shown_step(state: Execution, path: str) -> str:
    """Returns the author's name of the step at a path, without its scopes and visits."""
    clone = fan_of(path)
    return step_id(path) if clone is None else clone_name(clone[0], clone[1], labels_of(state, clone[0]))
