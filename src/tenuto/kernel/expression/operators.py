"""The operators, in the order of their strength."""

import operator
import re
from collections.abc import Callable
from math import inf, isfinite
from typing import cast

from .kinds import MAPS, NUMBERS, Fault, a_kind, kind_of, need_bool, need_map
from .running import Operator, Run

SHORT = 64  # characters that are copied or compared in one unit of work
COMPARED = 6  # units for each part of two values that are compared
LONG_NUMBER = 500  # units for arithmetic with an integer of many digits

_SLOW = 12  # units more for arithmetic of other kinds than integers and texts
_LOW, _HIGH = -(1 << 63), 1 << 63
_PLAIN = frozenset({int, float})
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
    if isinstance(left, str):
        if len(left) > SHORT:
            run.spend(len(left) // SHORT)
        return left == right
    if isinstance(left, list) and isinstance(right, list):
        run.spend(COMPARED * len(left))
        return len(left) == len(right) and all(_equal(run, a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, MAPS) and isinstance(right, MAPS):
        run.spend(COMPARED * len(left))
        return len(left) == len(right) and all(k in right and _equal(run, v, right[k]) for k, v in left.items())
    return left == right


def _within(run: Run, item: object, container: object) -> bool:
    if isinstance(container, list):
        run.spend(COMPARED * len(container))
        return any(_equal(run, item, each) for each in container)
    found = need_map(container, "a list or a map")
    return isinstance(item, str) and item in found


def _ordered(sign: str, compare: Callable[[float, float], bool]) -> Operator:
    def ordered(run: Run, left: object, right: object) -> bool:
        if type(left) in _PLAIN and type(right) in _PLAIN:
            return compare(cast(float, left), cast(float, right))
        kinds = kind_of(left), kind_of(right)
        if kinds[0] == kinds[1] and kinds[0] in _ORDERED:
            if isinstance(left, str):
                run.spend(len(left) // SHORT)
            return compare(cast(float, left), cast(float, right))
        raise Fault(f"{sign!r} does not apply to {a_kind(left)} and {a_kind(right)}")

    return ordered


def _arithmetic(sign: str, calculate: Callable[[float, float], float]) -> Operator:
    quick = sign in "+-*"  # what nothing but the range of its result can go wrong with

    def arithmetic(run: Run, left: object, right: object) -> object:
        if quick and type(left) is int and type(right) is int and _LOW <= left < _HIGH and _LOW <= right < _HIGH:
            number = calculate(left, right)
            if _LOW <= number < _HIGH:
                return number
        if sign == "+" and type(left) is str and type(right) is str:
            size = len(left) + len(right)
            run.make(size)
            run.spend(size // SHORT)
            return left + right
        run.spend(_SLOW)
        kinds = kind_of(left), kind_of(right)
        numbers = NUMBERS.issuperset(kinds) and (sign != "%" or "double" not in kinds)
        if not numbers and not _JOINED.fullmatch(f"{kinds[0]}{sign}{kinds[1]}"):
            raise Fault(f"{sign!r} does not apply to {a_kind(left)} and {a_kind(right)}")
        if sign in "/%" and right == 0:
            raise Fault("division by zero")
        if isinstance(left, list) and isinstance(right, list):
            run.make(len(left) + len(right))
            run.spend(len(left) + len(right))
        elif numbers and not (_is_small(left) and _is_small(right)):
            run.spend(LONG_NUMBER)
        try:
            result = calculate(cast(float, left), cast(float, right))
        except OverflowError:  # an integer beyond all doubles, or a time
            numbers, result = True, inf
        if not numbers or (isfinite(result) if "double" in kinds else fits(result)):
            return result
        raise Fault(f"the result of {sign!r} is out of range")

    return arithmetic


def _is_small(number: object) -> bool:
    return isinstance(number, float) or fits(cast(int, number))


def fits(number: float) -> bool:
    return _LOW <= number < _HIGH


def _quotient(left: float, right: float) -> float:
    if isinstance(left, int) and isinstance(right, int):
        return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)  # towards zero; Python's goes down
    return left / right


_minus = _arithmetic("-", operator.sub)
WORK = {"==": 5, "!=": 6, "in": 5, "<": 3, "<=": 3, ">": 3, ">=": 3, "%": 20}  # units, if it differs
ARITHMETIC = 4
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
