"""A compiled expression, and its value in a scope."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

from tenuto.errors import ExpressionError
from tenuto.kernel.definition import JSON, PAYLOAD_LIMIT

from .kinds import Fault, a_kind
from .parser import Parser
from .results import spend_on, to_json, to_text
from .running import MAX_WORK, Budget, Compute, Exhausted, Run, TooLarge
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
    builds: bool = field(repr=False)  # the result may be larger than what it reads
    work: int = field(repr=False)  # units of one evaluation, beside the rounds of its loops


def compile_expression(source: str, allowed: frozenset[str] = ROOTS) -> Expression:
    """Compiles, once per source, or raises `expression_invalid`. `allowed` are the roots that it may read."""
    return _compile(source, allowed)


def evaluate(
    expression: Expression, scope: Mapping[str, JSON], budget: Budget | None = None, *, limit: int = PAYLOAD_LIMIT
) -> JSON:
    """The value as JSON. It may share parts with the scope, so neither is to be changed.

    Raises `expression_failed`; `expression_too_costly` if it takes more than is left of the budget (a whole one, if
    none is given); `expression_too_large` if what it makes is larger than `limit` bytes of JSON.
    """
    budget = budget or Budget()
    run = Run(scope, budget.left, limit)
    try:
        return _evaluated(expression, run)
    finally:
        budget.left = max(run.work, 0)


def _evaluated(expression: Expression, run: Run) -> JSON:
    try:
        run.spend(expression.work)
        value = expression.compute(run)
        if expression.builds or not expression.is_json:
            spend_on(run, value, run.limit)
        return cast(JSON, value) if expression.is_json else to_json(value)
    except Fault as failure:
        reason = str(failure)
    except Exhausted:
        raise too_costly(expression.source) from None
    except TooLarge:
        raise too_large(expression.source, run.limit) from None
    except RecursionError:
        reason = "a value is nested too deeply"
    raise _failed(expression, reason)  # out here, so that no exception it is chained to shows a value


def evaluate_bool(expression: Expression, scope: Mapping[str, JSON], budget: Budget | None = None) -> bool:
    value = evaluate(expression, scope, budget)
    if isinstance(value, bool):
        return value
    raise _failed(expression, f"it must give true or false, not {a_kind(value)}")


def evaluate_list(
    expression: Expression, scope: Mapping[str, JSON], budget: Budget | None = None, *, limit: int = PAYLOAD_LIMIT
) -> list[JSON]:
    value = evaluate(expression, scope, budget, limit=limit)
    if isinstance(value, list):
        return value
    raise _failed(expression, f"it must give a list, not {a_kind(value)}")


def evaluate_key(expression: Expression, scope: Mapping[str, JSON], budget: Budget | None = None) -> str:
    """A name made of a string, an integer or a bool, for concurrency keys and suffixes of clones. Never blank."""
    return _key(expression, evaluate(expression, scope, budget))


def evaluate_keys(
    expression: Expression, scope: Mapping[str, JSON], items: Sequence[JSON], budget: Budget
) -> Iterator[str]:
    """A key for each item, which the expression reads as `item` and `index`."""
    inner = dict(scope)
    run = Run(inner, budget.left, PAYLOAD_LIMIT)
    try:
        for index, item in enumerate(items):
            inner["item"] = item
            inner["index"] = index
            yield _key(expression, _evaluated(expression, run))
    finally:
        budget.left = max(run.work, 0)


def _key(expression: Expression, value: JSON) -> str:
    if isinstance(value, bool | int | str) and (key := to_text(value)).strip():
        return key
    what = "a blank one" if isinstance(value, str) else a_kind(value)
    raise _failed(expression, f"a key is made of a string, an integer or a bool, not of {what}")


def too_costly(source: str) -> ExpressionError:
    return ExpressionError(
        f"The expression {quoted(source)} is too costly: together with the others that are evaluated at the"
        f" same time it takes more than {MAX_WORK:,} units of work.",
        code="expression_too_costly",
        hint="read shorter lists, or compute the value in a step",
    )


def too_large(source: str, limit: int) -> ExpressionError:
    return ExpressionError(
        f"The expression {quoted(source)} makes a value of more than {limit:,} bytes of JSON.",
        code="expression_too_large",
        hint="keep large values in a store of your own and pass references",
    )


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
        builds=parser.builds,
        work=parser.work,
    )


def quoted(source: str) -> str:
    return repr(source if len(source) <= 200 else f"{source[:199]}…")
