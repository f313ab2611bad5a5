"""What an evaluation hands out: JSON, or text, of a bounded size."""

import json
from typing import cast

from tenuto.kernel.definition import JSON

from .kinds import MAPS, kind_of
from .library import ask
from .running import Exhausted, Run, TooLarge

_PLAIN = frozenset({int, float, bool, type(None)})


def spend_on(run: Run, value: object, limit: int) -> int:
    """How many characters of JSON a value takes at least, or `TooLarge` as soon as it is more than the limit.

    A value that is in a result many times is one object, but is written as often: three loops over a list of a few
    kilobytes make gigabytes of text.
    """
    size = 0
    parts = [value]
    while parts:
        part = parts.pop()
        kind = type(part)
        run.work -= 2
        if kind is str:
            size += len(cast(str, part)) + 2
        else:
            size += 1
            if kind not in _PLAIN and isinstance(part, (list, *MAPS)):
                size += len(part)
                if isinstance(part, list):
                    parts += part
                else:
                    run.work -= len(part)
                    size += len(part) + sum(map(len, part))
                    parts += part.values()
        if run.work < 0:
            raise Exhausted
        if size > limit:
            raise TooLarge
    return size


def to_json(value: object) -> JSON:
    if isinstance(value, list):
        return [to_json(each) for each in value]
    if isinstance(value, MAPS):
        return {key: to_json(each) for key, each in value.items()}
    if kind_of(value) in ("timestamp", "duration"):
        return str(ask("string", "string(a)", value)).replace("+00:00", "Z")
    return cast(JSON, value)


def to_text(value: JSON) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
