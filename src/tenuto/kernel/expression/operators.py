"""The operators, in the order of their strength."""

import operator
import re
from collections.abc import Callable
from math import inf, isfinite
from typing import cast

from .kinds import MAPS, NUMBERS, Fault, a_kind, kind_of, need_bool, need_map
from .running import Operator, Run

_ORDERED = frozenset({"bool", "string", "timestamp", "duration"})
_JOINED = re.compile(
    r"(string|list|duration)\+\1|timestamp[+-]duration|duration(\+timestamp|-duration)|timestamp-timestamp"
)


def negation(run: Run, value: object) -> bool:
    return not need_bool(value)


def negative(run: Run, value: object) -> object:
    return _minus(run, 0, value)


def _equal(run: Run, left: object, right: object) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right  # to Python, True == 1
    if isinstance(left, list) and isinstance(right, list):
        run.spend(len(left))
        return len(left) == len(right) and all(_equal(run, a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, MAPS) and isinstance(right, MAPS):
        run.spend(len(left))
        return len(left) == len(right) and all(k in right and _equal(run, v, right[k]) for k, v in left.items())
    return left == right


def _within(run: Run, item: object, container: object) -> bool:
    if isinstance(container, list):
        run.spend(len(container))
        return any(_equal(run, item, each) for each in container)
    found = need_map(container, "a list or a map")
    return isinstance(item, str) and item in found


def _ordered(sign: str, compare: Callable[[float, float], bool]) -> Operator:
    def ordered(run: Run, left: object, right: object) -> bool:
        kinds = kind_of(left), kind_of(right)
        if NUMBERS.issuperset(kinds) or (kinds[0] == kinds[1] and kinds[0] in _ORDERED):
            return compare(cast(float, left), cast(float, right))
        raise Fault(f"{sign!r} does not apply to {a_kind(left)} and {a_kind(right)}")

    return ordered


def _arithmetic(sign: str, calculate: Callable[[float, float], float]) -> Operator:
    def arithmetic(run: Run, left: object, right: object) -> object:
        kinds = kind_of(left), kind_of(right)
        numbers = NUMBERS.issuperset(kinds) and (sign != "%" or "double" not in kinds)
        if not numbers and not _JOINED.fullmatch(f"{kinds[0]}{sign}{kinds[1]}"):
            raise Fault(f"{sign!r} does not apply to {a_kind(left)} and {a_kind(right)}")
        if sign in "/%" and right == 0:
            raise Fault("division by zero")
        if isinstance(left, list | str) and isinstance(right, list | str):
            run.spend((len(left) + len(right)) // (64 if isinstance(left, str) else 1))
        try:
            result = calculate(cast(float, left), cast(float, right))
        except OverflowError:  # an integer beyond all doubles, or a time
            numbers, result = True, inf
        if not numbers or (isfinite(result) if "double" in kinds else fits(result)):
            return result
        raise Fault(f"the result of {sign!r} is out of range")

    return arithmetic


def fits(number: float) -> bool:
    return -(1 << 63) <= number < 1 << 63


def _quotient(left: float, right: float) -> float:
    if isinstance(left, int) and isinstance(right, int):
        return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)  # towards zero; Python's goes down
    return left / right


_minus = _arithmetic("-", operator.sub)
OPERATORS: tuple[dict[str, Operator], ...] = (  # weakest first
    {
        "==": _equal,
        "!=": lambda run, left, right: not _equal(run, left, right),
        "<": _ordered("<", operator.lt),
        "<=": _ordered("<=", operator.le),
        ">": _ordered(">", operator.gt),
        ">=": _ordered(">=", operator.ge),
        "in": _within,
    },
    {"+": _arithmetic("+", operator.add), "-": _minus},
    {
        "*": _arithmetic("*", operator.mul),
        "/": _arithmetic("/", _quotient),
        "%": _arithmetic("%", lambda left, right: left - right * _quotient(left, right)),
    },
)
