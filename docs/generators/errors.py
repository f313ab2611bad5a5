"""`reference/errors.md`: every error, its code, when it comes and what to do."""

import ast
from pathlib import Path

import tenuto
from tenuto import errors
from tenuto.errors import StepError, TenutoError

from .source import NOTE, first_line

# What follows from each, for whoever raises it (errors of steps) or meets it (the others).
TO_DO = {
    "TenutoError": "The base of all: catch it where any of them will do.",
    "StepError": "Raise one of the seven below instead, which say more.",
    "TransientError": "Raise it for what passes by itself. Tried again: 100 ms, doubling, up to 30 s.",
    "RetryableError": "Raise it when you know no better; what no table knows counts as this. Delays as above.",
    "NonRetryableError": "Raise it for a definite no: nothing happened, and nothing will. The step fails at once.",
    "RateLimitedError": "Raise it with `retry_after` if you were told when. Tried again: 1 s, doubling, up to 5 min.",
    "DependencyFailedError": "Raise it if what you call lacks what it needs. Tried again: 5 s, doubling, up to 5 min.",
    "CompensationRequiredError": "Raise it when somebody must look first. The execution waits; see `engine.reviews()`.",
    "IndeterminateError": "Raise it when you cannot tell. Repeated if safe; else looked up, or left to a person.",
    "ValidationError": "Read `problems`: all that is wrong, each with its place.",
    "DefinitionError": "Mend the saga; nothing was registered. If a stored plan changed, give it a new `version`.",
    "InvalidInput": "Mend what was passed; nothing was started or changed.",
    "BadCursor": "Pass `next_cursor` of the page before, with the same filters and order; or start with no cursor.",
    "SettingsError": "Mend the variable or the line of `tenuto.toml` that it names; nothing was started.",
    "ExpressionError": "Mend the expression.",
    "PayloadError": "Pass and return data: JSON, dataclasses, models, dates, decimals, UUIDs. Keep large things apart. "
    "Keys of one dict must differ as text: `1` and `'1'` are one key in JSON.",
    "UnknownHandler": "Register the function under that name: `@handler(name)` and `register`, or `engine.handler`.",
    "NotAuthenticated": "Send `Authorization: Bearer` with a key that is neither expired nor revoked, or a valid JWT.",
    "NotPermitted": "Use a credential with the role that the message names, or ask somebody who has it.",
    "NotFound": "Check the id or the name, and which tenant you act for.",
    "InvalidTransition": "Look at `handle.status()`: it says where the execution stands, and which commands it takes.",
    "DefinitionConflict": "Give the definition a new version: what is published stays as it is.",
    "IdempotencyConflict": "Use a new key for a new request; the same key is for the same one.",
    "RequestInFlight": "Send the same request again after `Retry-After`.",
    "ConcurrencyConflict": 'Try later, or let it wait: `on_conflict="queue"`.',
    "TenantLimit": "Try later.",
    "RateExceeded": "Wait as long as `retry_after` says, then go on more slowly.",
    "ExecutionFailed": "Read `status`, `error_class` and `blocked`; `result.report()` shows every step.",
    "ResultTimeout": "Ask again: the execution, or the command, goes on.",
    "StorageError": "See the hint: the database cannot be reached, is full, is locked, or has another schema.",
    "ServiceError": "See the hint: the service is away, its answer was lost, or something else answers there.",
    "NotSupported": "See the hint: another runtime may be able to, or this version cannot yet.",
    "EngineClosed": "Use the engine inside `async with Engine(…) as engine:`.",
}

# What a refusal of the kernel is raised as, by its code; all others are `InvalidTransition`.
REFUSED_AS = {"not_found": "NotFound", "forbidden": "NotPermitted", "four_eyes": "NotPermitted"}

OPENING = """\
# Errors

All are in `tenuto.errors`, under `TenutoError`. Each has a `code` that does not change, a `message`, and sometimes a
`hint`. An error can have a more exact code than its class; those are listed at the end.

## Raised by handlers

They say what kind of failure it was, and that decides what follows: the [retry table](retries.md) has every case. All
take `code`, `retry_after` and `partial_effect`.

"""


def page() -> str:
    known = {name: cls for name, cls in vars(errors).items() if _is_error(cls)}
    assert TO_DO.keys() == known.keys(), TO_DO.keys() ^ known.keys()
    of_steps = [cls for cls in known.values() if issubclass(cls, StepError)]
    others = [cls for cls in known.values() if not issubclass(cls, StepError)]
    exact = _exact_codes(known)
    return "".join(
        [
            f"{NOTE}\n{OPENING}",
            "| error | class | code | what it says | when to raise it, and what follows |\n|---|---|---|---|---|\n",
            *(f"| `{cls.__name__}` | {cls.error_class} {_rest(cls)}" for cls in of_steps),
            "\n## Raised by Tenuto\n\n",
            "| error | code | when | what to do |\n|---|---|---|---|\n",
            *(f"| `{cls.__name__}` {_rest(cls)}" for cls in others),
            "\n## More exact codes\n\n",
            *(f"- `{name}`: {', '.join(f'`{code}`' for code in codes)}\n" for name, codes in exact.items()),
        ]
    )


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, TenutoError)


def _rest(cls: type[TenutoError]) -> str:
    return f"| `{cls.code}` | {first_line(cls)} | {TO_DO[cls.__name__]} |\n"


def _exact_codes(known: dict[str, type[TenutoError]]) -> dict[str, list[str]]:
    """The codes that the source gives to single errors, where it names them."""
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
