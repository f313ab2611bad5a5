"""What of a history is the same in every runtime: all but times, ids, processes and letters.

Where one process starts and another runs it, the history says when it came into whose hands: that is left out. That an
attempt begins is recorded when a worker has come to it, beside whatever else happens: it is compared apart.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tenuto.kernel.address import clone_path
from tenuto.kernel.events import AttemptBegun, AttemptsGranted, AttemptsReturned, Entry, Grant

from .play import Played

A_TIME = 1_000_000_000_000  # ms since 1970; no other number is that large
_DIFFERS = frozenset({"worker", "build", "shift", "output_seq"})


def normalised(played: Played) -> list[str]:
    """The events in their order; then the attempts that were begun."""
    begun = sorted(_line(entry) for entry in played.entries if isinstance(entry.event, AttemptBegun))
    others = [_line(entry) for entry in _decided(played.entries) if not isinstance(entry.event, AttemptBegun)]
    return _without_ids([*others, *begun], played.id)


def _decided(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Without what only says that an execution came into other hands: attempts given back, and granted once more."""
    granted: set[Grant] = set()
    for entry in entries:
        passed_on = isinstance(entry.event, AttemptsGranted) and granted.issuperset(_single(entry))
        if not passed_on and not isinstance(entry.event, AttemptsReturned):
            yield entry
        granted.update(_single(entry))


def _single(entry: Entry) -> Iterator[Grant]:
    """Of a range of clones, one grant for each."""
    for grant in entry.grants:
        if grant.first < 0:
            yield grant
        for index in range(grant.first, grant.last + 1) if grant.first >= 0 else ():
            yield Grant(clone_path(grant.path, index), grant.phase, grant.number)


def _line(entry: Entry) -> str:
    event = {name: getattr(entry.event, name) for name in entry.event.__struct_fields__ if name not in _DIFFERS}
    words = [type(entry.event).__name__, event, entry.grants, entry.actor]
    return msgspec.json.encode(_without_times(msgspec.json.decode(msgspec.json.encode(words)))).decode()


def _without_times(value: object) -> Any:
    match value:
        case int(number) if number >= A_TIME:
            return "a time"
        case dict(items):
            return {key: _without_times(item) for key, item in items.items()}
        case list(items):
            return [_without_times(item) for item in items]
        case other:
            return other


def _without_ids(lines: list[str], id: str) -> list[str]:
    """Reviews are named by their entry's number: here by the order in which they appear."""
    named: dict[str, str] = {}

    def name(found: re.Match[str]) -> str:
        return named.setdefault(found.group(), f"review {len(named)}")

    return [re.sub(rf"{id}\.\d+", name, line).replace(id, "its id") for line in lines]
