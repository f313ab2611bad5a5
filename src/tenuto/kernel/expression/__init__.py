"""Expressions: a closed and pure part of CEL, compiled with the plan, and `${…}` templates made of them.

Laws
  1. Same source, same scope, same answer: in every process, release and store. So no clock, chance or environment is
     in reach, and a map is walked in the order of its keys, whatever order it arrived in.
  2. Work is bounded: length, nesting and nested loops when compiled; when evaluated, the operations of all expressions
     of one decision, and the size of what they make. Both are counted, so that the answer is the same everywhere.
  3. An error names the expression and the kind of failure; of the payload, not one value.

Syntax and meaning are CEL's (github.com/google/cel-spec), the types are JSON's. Where the two differ:
  - a number is a number: `input.amount * 2` works for 10 and for 10.5, and is a double if either side is. Integers
    divide as in CEL: `7 / 2 == 3`. Results are 64-bit integers or finite doubles; larger integers of the payload can
    be passed on and compared, exactly.
  - keys of maps are strings, and there are no bytes; `1u` is 1; `type(x)` is the name of a type; `matches` takes its
    pattern as a literal.
  - a result is JSON: a timestamp becomes "2026-01-31T12:00:00Z", a duration "1h30m0s", both to the microsecond.
"""

from .compiled import (
    MAX_SOURCE,
    NODE_ROOTS,
    ROOTS,
    START_ROOTS,
    Expression,
    compile_expression,
    evaluate,
    evaluate_bool,
    evaluate_key,
    evaluate_keys,
    evaluate_list,
    too_costly,
    too_large,
)
from .parser import MAX_DEPTH
from .patterns import pattern_of
from .running import MAX_WORK, Budget, Exhausted
from .templates import Template, compile_template, template_problems

__all__ = [
    "MAX_DEPTH",
    "MAX_SOURCE",
    "MAX_WORK",
    "NODE_ROOTS",
    "ROOTS",
    "START_ROOTS",
    "Budget",
    "Exhausted",
    "Expression",
    "Template",
    "compile_expression",
    "compile_template",
    "evaluate",
    "evaluate_bool",
    "evaluate_key",
    "evaluate_keys",
    "evaluate_list",
    "pattern_of",
    "template_problems",
    "too_costly",
    "too_large",
]
