"""What an evaluation hands out: JSON, or text."""

import json
from typing import cast

from tenuto.kernel.definition import JSON

from .kinds import MAPS, kind_of
from .library import ask


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
