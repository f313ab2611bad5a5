"""`reference/errors.md`: every error, its codes, its meaning and what to do."""

import ast
import inspect
from pathlib import Path

import tenuto
from tenuto import errors
from tenuto.errors import StepError, TenutoError

from .source import NOTE, first_line

# The error class of a refusal by the kernel, by its code; all others are `InvalidTransition`.
REFUSED_AS = {"not_found": "NotFound", "forbidden": "NotPermitted", "four_eyes": "NotPermitted"}

OPENING = """\
# Errors

All errors are in `tenuto.errors` and derive from `TenutoError`. Each has a stable `code`, a `message`, and sometimes a
`hint`. The table has the status of its [HTTP problem](http.md) and the [exit code](commands.md#exit-codes) of a
command. An error can have a more exact code than its class; these codes are listed at the end.

## Raised by handlers

Handlers raise these errors to classify a failure. The class decides what happens next: see the
[retry table](retries.md). All take `code`, `retry_after` and `partial_effect`.

"""


def page() -> str:
    known = {name: cls for name, cls in vars(errors).items() if _is_error(cls)}
    of_steps = [cls for cls in known.values() if issubclass(cls, StepError)]
    others = [cls for cls in known.values() if not issubclass(cls, StepError)]
    exact = _exact_codes(known)
    return "".join(
        [
            f"{NOTE}\n{OPENING}",
            "| error | class | code | meaning | when to raise it |\n|---|---|---|---|---|\n",
            *(f"| `{cls.__name__}` | {cls.error_class} {_rest(cls)}" for cls in of_steps),
            "\n## Raised by Tenuto\n\n",
            "| error | code | HTTP | exit | when | what to do |\n|---|---|---:|---:|---|---|\n",
            *(f"| `{cls.__name__}` {_rest(cls, _codes(cls))}" for cls in others),
            "\n## More exact codes\n\n",
            *(f"- `{name}`: {', '.join(f'`{code}`' for code in codes)}\n" for name, codes in exact.items()),
        ]
    )


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, TenutoError)


def _rest(cls: type[TenutoError], codes: str = "") -> str:
    return f"| `{cls.code}` {codes}| {first_line(cls)} | {_what_to_do(cls)} |\n"


def _codes(cls: type[TenutoError]) -> str:
    return f"| {cls.http_status} | {cls.exit_code} "


def _what_to_do(cls: type[TenutoError]) -> str:
    """The last paragraph of the docstring."""
    _, *rest = inspect.cleandoc(cls.__doc__ or "").split("\n\n")
    assert rest, f"the docstring of {cls.__name__} does not say what to do"
    return " ".join(rest[-1].split()).replace("|", "\\|")


def _exact_codes(known: dict[str, type[TenutoError]]) -> dict[str, list[str]]:
    """The codes that the source passes to single errors."""
    found: dict[str, set[str]] = {}
    for path in sorted(Path(tenuto.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id=name), keywords=keywords) if name in known:
                    for keyword in keywords:
                        if keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
                            found.setdefault(name, set()).add(str(keyword.value.value))
                case ast.Call(func=ast.Name(id="Refused"), args=[ast.Constant(value=str(code)), *_]):
                    found.setdefault(REFUSED_AS.get(code, "InvalidTransition"), set()).add(code)
    own = {name: codes - {known[name].code} for name, codes in found.items()}
    return {name: sorted(own[name]) for name in known if own.get(name)}
