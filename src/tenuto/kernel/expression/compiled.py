"""A compiled expression, and its value in a scope."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

from tenuto.errors import ExpressionError
from tenuto.kernel.definition import JSON

from .kinds import Fault, a_kind
from .parser import Parser
from .results import to_json, to_text
from .running import Compute, Exhausted, Run
from .tokens import Invalid

START_ROOTS = frozenset({"input", "variables", "context"})  # before there are steps
NODE_ROOTS = START_ROOTS | {"steps"}
ROOTS = NODE_ROOTS | {"item", "index"}  # in a fan-out
MAX_SOURCE = 4096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expression:
    """`roots` and `steps` are what it reads, sorted; `reads_all_steps` means that which ones only a run can tell."""

    source: str
    roots: tuple[str, ...]
    steps: tuple[str, ...]
    reads_all_steps: bool
    compute: Compute = field(repr=False)
    is_json: bool = field(repr=False)  # by construction: the result needs no conversion


def compile_expression(source: str, allowed: frozenset[str] = ROOTS) -> Expression:
    """Compiles, once per source, or raises `expression_invalid`. `allowed` are the roots that it may read."""
    return _compile(source, allowed)


def evaluate(expression: Expression, scope: Mapping[str, JSON]) -> JSON:
    """The value as JSON, or `expression_failed`. It may share parts with the scope, so neither is to be changed."""
    try:
        value = expression.compute(Run(scope))
        return cast(JSON, value) if expression.is_json else to_json(value)
    except (Fault, Exhausted) as failure:
        reason = str(failure)
    except RecursionError:
        reason = "a value is nested too deeply"
    raise _failed(expression, reason)  # out here, so that no exception it is chained to shows a value


def evaluate_bool(expression: Expression, scope: Mapping[str, JSON]) -> bool:
    value = evaluate(expression, scope)
    if isinstance(value, bool):
        return value
    raise _failed(expression, f"it must give true or false, not {a_kind(value)}")


def evaluate_list(expression: Expression, scope: Mapping[str, JSON]) -> list[JSON]:
    value = evaluate(expression, scope)
    if isinstance(value, list):
        return value
    raise _failed(expression, f"it must give a list, not {a_kind(value)}")


def evaluate_key(expression: Expression, scope: Mapping[str, JSON]) -> str:
    """A name made of a string, an integer or a bool, for concurrency keys and suffixes of clones. Never blank."""
    value = evaluate(expression, scope)
    if isinstance(value, bool | int | str) and (key := to_text(value)).strip():
        return key
    what = "a blank one" if isinstance(value, str) else a_kind(value)
    raise _failed(expression, f"a key is made of a string, an integer or a bool, not of {what}")


def _failed(expression: Expression, reason: str) -> ExpressionError:
    return ExpressionError(f"The expression {quoted(expression.source)} failed: {reason}.", code="expression_failed")


@lru_cache(maxsize=4096)
def _compile(source: str, allowed: frozenset[str]) -> Expression:
    try:
        if len(source) > MAX_SOURCE:
            raise Invalid(f"it is longer than {MAX_SOURCE} characters")
        parser = Parser(source, allowed)
        compute = parser.parse()
    except Invalid as problem:
        message = f"The expression {quoted(source)} is not valid: {problem}."
        raise ExpressionError(message, code="expression_invalid") from None
    return Expression(
        source=source,
        roots=tuple(sorted(parser.roots)),
        steps=tuple(sorted(parser.steps)),
        reads_all_steps=parser.reads_all_steps,
        compute=compute,
        is_json=not (parser.uses_time or parser.reads_all_steps),
    )


def quoted(source: str) -> str:
    return repr(source if len(source) <= 200 else f"{source[:199]}…")
