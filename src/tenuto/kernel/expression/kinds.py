"""The kinds of values that expressions know, and what an operation says when it is given another than it needs."""

from collections.abc import Mapping


class Fault(Exception):
    """What CEL calls an error: `false && error` is false. It names kinds and places, never a value."""


MAPS = (dict, Mapping)
_KINDS = {
    "NoneType": "null_type",
    "float": "double",
    "str": "string",
    "bool": "bool",
    "int": "int",
    "list": "list",
    "datetime": "timestamp",  # by name, because the kernel may not import a clock
    "timedelta": "duration",
}
TYPES = ("bool", "double", "int", "list", "map", "null_type", "string")
NUMBERS = frozenset({"int", "double"})


def kind_of(value: object) -> str:
    return _KINDS.get(type(value).__name__, "map")


def a_kind(value: object) -> str:
    return {"null_type": "null", "int": "an int"}.get(kind := kind_of(value), f"a {kind}")


def need_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise Fault(f"true or false is needed, not {a_kind(value)}")


def need_string(value: object) -> str:
    if isinstance(value, str):
        return value
    raise Fault(f"a string is needed, not {a_kind(value)}")


def need_map(value: object, wanted: str = "a map") -> Mapping[str, object]:
    if isinstance(value, MAPS):
        return value
    raise Fault(f"{wanted} is needed, not {a_kind(value)}")
