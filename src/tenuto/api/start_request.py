"""What a request to start something is made of, and when two of them are the same."""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Raw

from tenuto.errors import ExpressionError, InvalidInput
from tenuto.kernel.address import fingerprint
from tenuto.kernel.definition import plain_name
from tenuto.kernel.expression import evaluate_key
from tenuto.kernel.plan import Plan
from tenuto.values.names import check_name, check_text

MAX_HEADERS = 16 * 1024


def headers_of(given: Mapping[str, str] | None) -> dict[str, str]:
    if not given:
        return {}
    headers = dict(given)
    if not all(isinstance(part, str) for pair in headers.items() for part in pair):
        raise InvalidInput.at("/headers", "type", "names and values of headers are text")
    for name, value in headers.items():
        check_text(name + value, "headers")
    if sum(len(part.encode("utf-8", "replace")) for pair in headers.items() for part in pair) > MAX_HEADERS:
        raise InvalidInput.at("/headers", "too_large", f"at most {MAX_HEADERS:,} bytes, names and values together")
    return headers


def concurrency_key_of(plan: Plan, input: Raw, variables: Mapping[str, Raw]) -> str:
    assert plan.concurrency_key is not None
    scope = {
        "input": msgspec.json.decode(input),
        "variables": {name: msgspec.json.decode(value) for name, value in variables.items()},
        "steps": {},
        "context": {"saga": plain_name(plan.definition.name), "version": plan.definition.version},
    }
    try:
        key = evaluate_key(plan.concurrency_key, scope)
    except ExpressionError as error:
        raise InvalidInput.at("", "concurrency_key", error.message) from None
    check_name(key, "concurrency_key")
    return key


def digest_of(
    name: str,
    version: int | None,
    input: Raw,
    target: tuple[str, str] | None,
    variables: Mapping[str, Raw],
    *,
    priority: str = "normal",
    concurrency_key: str | None = None,
    by_step: bool = False,
    each: Iterable[str] = (),
) -> str:
    """What makes two requests the same. Headers and the correlation id may differ: a caller's retry has its own.

    The key is the one that was asked for: what the definition makes of the input is in the input.
    """
    given = [part for key in sorted(variables) for part in (key, bytes(variables[key]).decode())]
    if priority != "normal" or concurrency_key is not None or by_step:
        given.append(fingerprint(priority, concurrency_key or "", "by step" if by_step else "", *sorted(each)))
    return fingerprint(name, str(version or ""), bytes(input).decode(), *(target or ("", "")), *given)
