"""The functions and methods that an expression may call."""

import re
from contextlib import suppress
from math import isfinite
from typing import TypeAlias, cast

from .kinds import NUMBERS, Fault, a_kind, kind_of, need_map, need_string
from .library import ask
from .operators import LONG_NUMBER, SHORT, fits
from .patterns import Pattern
from .results import to_json, to_text
from .running import Operator, Run

Function: TypeAlias = tuple[int, Operator]  # how many operands it has: one or two


def _size(run: Run, value: object, _: object) -> int:
    return len(value) if isinstance(value, str | list) else len(need_map(value, "a string, a list or a map"))


def _int(run: Run, value: object, _: object) -> object:
    if isinstance(value, float) or (isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,19}", value)):
        value = int(value)
    if kind_of(value) == "int" and fits(cast(int, value)):
        return value
    raise Fault(f"int() does not accept this {kind_of(value)}")


def _double(run: Run, value: object, _: object) -> object:
    _spend_on_digits(run, value)
    if kind_of(value) in NUMBERS or (isinstance(value, str) and re.fullmatch(r"[0-9.eE+-]+", value)):
        with suppress(OverflowError, ValueError):
            if isfinite(number := float(cast(float, value))):
                return number
    raise Fault(f"double() does not accept this {kind_of(value)}")


def _text_of(run: Run, value: object, _: object) -> str:
    if type(value) is int and fits(value):
        return str(value)
    _spend_on_digits(run, value)
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if kind_of(value) in ("null_type", "list", "map"):
        raise Fault(f"string() does not accept {a_kind(value)}")
    return to_text(to_json(value))


def _spend_on_digits(run: Run, value: object) -> None:
    if isinstance(value, str):
        run.spend(len(value) // 8)
    elif isinstance(value, int) and not fits(value):
        run.spend(LONG_NUMBER)


def _timestamp(run: Run, value: object, _: object) -> object:
    if isinstance(value, str) and _TIMESTAMP.fullmatch(value):
        # By way of the epoch, because the library keeps the offset, and getHours() is to answer in UTC.
        epoch = 'timestamp("1970-01-01T00:00:00Z")'
        return ask("timestamp", f"{epoch} + (timestamp(a) - {epoch})", value)
    if kind_of(value) == "timestamp":
        return value
    raise Fault(f"timestamp() does not accept this {kind_of(value)}")


def _duration(run: Run, value: object, _: object) -> object:
    _spend_on_digits(run, value)
    if isinstance(value, str) and _DURATION.fullmatch(value):
        return ask("duration", "duration(a)", value)
    if kind_of(value) == "duration":
        return value
    raise Fault(f"duration() does not accept this {kind_of(value)}")


def _contains(run: Run, text: object, part: object) -> bool:
    run.spend(len(need_string(text)) // SHORT)
    return need_string(part) in need_string(text)


def _starts(run: Run, text: object, part: object) -> bool:
    run.spend(len(need_string(part)) // SHORT)
    return need_string(text).startswith(need_string(part))


def _ends(run: Run, text: object, part: object) -> bool:
    run.spend(len(need_string(part)) // SHORT)
    return need_string(text).endswith(need_string(part))


def matcher(pattern: Pattern) -> Operator:
    """`matches` for one pattern, which the library compiles every time."""

    def matches(run: Run, text: object, literal: object) -> object:
        size = len(need_string(text))
        run.spend(_MATCH + pattern.compiling + (size * _SIMULATED if pattern.is_ambiguous else size // _READ))
        return ask("matches", "a.matches(b)", text, literal)

    return matches


def _part_of_time(name: str) -> Operator:
    def part(run: Run, value: object, _: object) -> object:
        if kind_of(value) in ("timestamp", "duration"):
            return ask(name, f"a.{name}()", value)
        raise Fault(f"{name}() does not apply to {a_kind(value)}")

    return part


# Units of work for a match, beside those of compiling its pattern.
_MATCH = 200
_READ = 32  # characters in one unit
_SIMULATED = 50  # units for one character, if the automaton is simulated

_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})"
)
# So many digits, because the library quietly stops at 292 years.
_DURATION = re.compile(
    r"-?(?=[0-9])"
    + "".join(rf"([0-9]{{1,{n}}}(\.[0-9]+)?{unit})?" for n, unit in ((6, "h"), (7, "m"), (9, "s"), (12, "ms")))
)
FUNCTIONS: dict[str, Function] = {
    "double": (1, _double),
    "duration": (1, _duration),
    "dyn": (1, lambda run, value, _: value),
    "int": (1, _int),
    "size": (1, _size),
    "string": (1, _text_of),
    "timestamp": (1, _timestamp),
    "type": (1, lambda run, value, _: kind_of(value)),
}
METHODS: dict[str, Function] = {
    "contains": (2, _contains),
    "endsWith": (2, _ends),
    "matches": (2, matcher(Pattern(0, is_ambiguous=False))),  # of each pattern, when it is parsed
    "size": (1, _size),
    "startsWith": (2, _starts),
}
for _name in (
    "getDate",
    "getDayOfWeek",
    "getFullYear",
    "getHours",
    "getMilliseconds",
    "getMinutes",
    "getMonth",
    "getSeconds",
):
    METHODS[_name] = (1, _part_of_time(_name))
CALL = 12  # units of work for a call
WORK = {"string": 12, "timestamp": 250, "duration": 150, "dyn": 2, "type": 5, "size": 5}  # if it differs
WORK |= dict.fromkeys((name for name in METHODS if name.startswith("get")), 100)
IMPURE = ("now", "today", "random", "rand", "uuid", "env", "getenv")
