"""`${…}` templates: JSON values with expressions in their strings."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tenuto.errors import ExpressionError
from tenuto.kernel.definition import JSON, PAYLOAD_LIMIT

from .compiled import ROOTS, Expression, compile_expression, evaluate, quoted, too_costly, too_large
from .results import spend_on, to_text
from .running import Budget, Exhausted, Run, TooLarge
from .tokens import Invalid, tokens

Render: TypeAlias = Callable[["_Rendering"], JSON]


class _Rendering:
    """One use of a template: what it reads, and what is left of its budget and of its size."""

    __slots__ = ("budget", "is_single", "left", "limit", "scope")

    def __init__(self, scope: Mapping[str, JSON], budget: Budget, limit: int, *, is_single: bool) -> None:
        self.scope = scope
        self.budget = budget
        self.limit = limit
        self.left = limit
        self.is_single = is_single

    def value(self, expression: Expression) -> JSON:
        """Its value. If the template has several expressions, their values together are bounded."""
        value = evaluate(expression, self.scope, self.budget, limit=self.limit)
        if not self.is_single:
            run = Run(self.scope, self.budget.left, self.limit)
            try:
                self.left -= spend_on(run, value, self.left)
            except Exhausted:
                raise too_costly(expression.source) from None
            except TooLarge:
                raise too_large(expression.source, self.limit) from None
            finally:
                self.budget.left = max(run.work, 0)
        return value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Template:
    """A JSON value with `${expression}` in its strings, at any depth; keys are left alone.

    A string that is one expression becomes its value, of whatever type. Inside text, strings appear as they are, null
    as nothing, everything else as compact JSON with sorted keys. `$${` stands for a literal `${`.
    """

    value: JSON
    constant: bool  # nothing to render: `render` gives the value itself
    roots: tuple[str, ...]
    steps: tuple[str, ...]
    reads_all_steps: bool
    source: str = field(repr=False)  # of its first expression, to name it by
    is_single: bool = field(repr=False)  # it has one expression, which is all of a value
    renderer: "Render | None" = field(repr=False)

    def render(self, scope: Mapping[str, JSON], budget: Budget | None = None, *, limit: int = PAYLOAD_LIMIT) -> JSON:
        """Raises as `evaluate` does, saying where in the template. `limit` is for all of its expressions together."""
        if self.renderer is None:
            return self.value
        return self.renderer(_Rendering(scope, budget or Budget(), limit, is_single=self.is_single))


def compile_template(value: JSON, allowed: frozenset[str] = ROOTS) -> Template:
    """Compiles, or raises `expression_invalid` with all the problems, each with its JSON pointer."""
    survey = _Survey(allowed)
    renderer = survey.visit(value, "")
    if survey.problems:
        raise ExpressionError("\n".join(_located(*problem) for problem in survey.problems), code="expression_invalid")
    return Template(
        value=value,
        constant=renderer is None,
        roots=tuple(sorted({root for expression in survey.found for root in expression.roots})),
        steps=tuple(sorted({step for expression in survey.found for step in expression.steps})),
        reads_all_steps=any(expression.reads_all_steps for expression in survey.found),
        source=survey.found[0].source if survey.found else "",
        is_single=len(survey.found) == 1 and not survey.has_text,
        renderer=renderer,
    )


def template_problems(value: JSON, allowed: frozenset[str] = ROOTS) -> list[tuple[str, str]]:
    """Everything that is wrong with a template: (JSON pointer, message)."""
    survey = _Survey(allowed)
    survey.visit(value, "")
    return survey.problems


class _Survey:
    """One walk through a template: its expressions, its problems, and a renderer for each part that is not constant."""

    def __init__(self, allowed: frozenset[str]) -> None:
        self.allowed = allowed
        self.found: list[Expression] = []
        self.problems: list[tuple[str, str]] = []
        self.has_text = False  # with an expression inside

    def visit(self, value: JSON, pointer: str) -> Render | None:
        if isinstance(value, str):
            return self.text(value, pointer) if "${" in value else None
        if isinstance(value, list):
            items = [(each, self.visit(each, f"{pointer}/{index}")) for index, each in enumerate(value)]
            if any(render for _, render in items):
                return lambda run: [render(run) if render else each for each, render in items]
        if isinstance(value, dict):
            fields = {key: (each, self.visit(each, f"{pointer}/{_escape(key)}")) for key, each in value.items()}
            if any(render for _, render in fields.values()):
                return lambda run: {k: render(run) if render else each for k, (each, render) in fields.items()}
        return None

    def text(self, text: str, pointer: str) -> Render | None:
        try:
            parts = list(_parts(text, self.allowed))
        except ExpressionError as error:
            self.problems.append((pointer, error.message))
            return None
        self.found.extend(part for part in parts if isinstance(part, Expression))
        if len(parts) == 1 and isinstance(alone := parts[0], Expression):
            return lambda run: _value_at(pointer, alone, run)
        self.has_text = True
        return lambda run: "".join(p if isinstance(p, str) else to_text(_value_at(pointer, p, run)) for p in parts)


def _value_at(pointer: str, expression: Expression, run: _Rendering) -> JSON:
    try:
        return run.value(expression)
    except ExpressionError as error:
        raise ExpressionError(_located(pointer, error.message), code=error.code, hint=error.hint) from None


def _parts(text: str, allowed: frozenset[str]) -> Iterator[str | Expression]:
    at = 0
    while (opening := text.find("${", at)) >= 0:
        if text[at:opening].endswith("$"):
            yield f"{text[at : opening - 1]}${{"
            at = opening + 2
            continue
        if opening > at:
            yield text[at:opening]
        closing = _closing_brace(text, opening + 2)
        yield compile_expression(text[opening + 2 : closing].strip(), allowed)
        at = closing + 1
    if at < len(text):
        yield text[at:]


def _closing_brace(text: str, start: int) -> int:
    depth = 0
    try:
        for token in tokens(text, start):
            if token.text == "}" and depth == 0:
                return token.start
            depth += (token.text == "{") - (token.text == "}")
        reason = "it is never closed"
    except Invalid as problem:
        reason = str(problem)
    message = f"The '${{' at character {start - 1} of {quoted(text)} does not enclose an expression: {reason}."
    raise ExpressionError(f"{message} ('$${{' stands for a literal '${{'.)", code="expression_invalid")


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _located(pointer: str, message: str) -> str:
    return f"At {pointer}: {message}" if pointer else message
