"""Checks `with` of the built-in handlers when a definition is published.

The values of expressions are not known at that time and are not checked. All other problems are reported together, each
with its pointer. The rest is found when the step runs.
"""

from collections.abc import Callable, Collection, Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin
from urllib.parse import urlsplit

import msgspec

from tenuto.errors import Problem
from tenuto.kernel.definition import Definition, Step
from tenuto.kernel.validation import Tree
from tenuto.values.schema import pointer

from .given import SHAPES, header_problem, one_address, reserved_problem
from .settings import is_loopback

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_STATUS = range(100, 600)


def with_problems(definition: Definition, own: Collection[str] = ()) -> list[Problem]:
    """Returns the problems of `with`. `own` are handler names that the user has registered, which accept anything."""
    found: list[Problem] = []
    for place in Tree(definition).places:
        if isinstance(place.node, Step):
            for handler, given, name in _calls(place.node):
                if handler in SHAPES and handler not in own:
                    found += _of_call(handler, given, f"{place.pointer}/{name}")
    return found


def _calls(step: Step) -> Iterator[tuple[str | None, Any, str]]:
    yield step.handler, step.with_, "with"
    yield step.compensation_handler, step.compensation_with, "compensation_with"


def _of_call(handler: str, given: Any, at: str) -> Iterator[Problem]:
    if given is None or _is_open(given):  # the execution's input, or an expression
        return
    if not isinstance(given, dict):
        yield Problem(at, "bad_with", f"the handler {handler!r} takes an object")
        return
    shape = SHAPES[handler]
    fields = {field.encode_name: field for field in msgspec.structs.fields(shape)}
    for name in [name for name in given if name not in fields]:
        known = ", ".join(fields)
        yield Problem(f"{at}{pointer([name])}", "unknown_field", f"the handler {handler!r} takes {known}")
    for name, field in fields.items():
        if name in given:
            yield from _of_value(given[name], field.type, f"{at}{pointer([name])}")
        elif field.required:
            yield Problem(at, "missing", f"the handler {handler!r} needs `{name}`")
    yield from _SENSE[handler](given, at)


def _of_value(value: Any, kind: Any, at: str) -> Iterator[Problem]:
    if _is_open(value):
        return
    inner = _inner(kind, value)
    if inner is not None:
        places = value.items() if isinstance(value, dict) else enumerate(value)
        for place, each in places:
            yield from _of_value(each, inner, f"{at}{pointer([place])}")
        return
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        yield Problem(at, "bad_with", str(error))


def _inner(kind: Any, value: Any) -> Any:
    """Returns the expected type of the members of an object or a list; None for other values."""
    if get_origin(kind) in (Union, UnionType):
        return next((found for part in get_args(kind) if (found := _inner(part, value)) is not None), None)
    if isinstance(value, dict) and get_origin(kind) is dict:
        return get_args(kind)[1]
    return get_args(kind)[0] if isinstance(value, list) and get_origin(kind) is list else None


def _is_open(value: Any) -> bool:
    """Returns whether the value contains an expression. `$${` is plain text."""
    return isinstance(value, str) and "${" in value.replace("$${", "")


# -- Rules beyond the types --------------------------------------------------------------------------------------------


def _of_http(given: dict[str, Any], at: str) -> Iterator[Problem]:
    method = given.get("method", "GET")
    if isinstance(method, str) and not _is_open(method) and method.upper() not in _METHODS:
        yield Problem(f"{at}/method", "bad_with", f"{method!r} is not one of {', '.join(_METHODS)}")
    if "json" in given and given.get("text") is not None:
        yield Problem(f"{at}/text", "bad_with", "either `json` or `text`, not both")
    if given.get("secret_headers") and _is_readable_on_the_way(given.get("url")):
        yield Problem(f"{at}/url", "bad_with", "secrets are sent over https only")
    yield from _of_address(given, at)


def _is_readable_on_the_way(url: object) -> bool:
    if not isinstance(url, str) or _is_open(url) or not _can_be_called(url):
        return False
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


def _of_webhook(given: dict[str, Any], at: str) -> Iterator[Problem]:
    for name in ("data", "type"):
        if "json" in given and name in given:
            yield Problem(f"{at}/{name}", "bad_with", f"either `json`, which is the whole body, or `{name}`, not both")
    yield from _of_address(given, at)


def _of_address(given: dict[str, Any], at: str) -> Iterator[Problem]:
    url = given.get("url")
    if isinstance(url, str) and not _is_open(url) and not _can_be_called(url):
        yield Problem(f"{at}/url", "bad_with", "it must begin with http:// or https:// and a host")
    for field in ("headers", "secret_headers"):
        headers = given.get(field)
        for name, value in headers.items() if isinstance(headers, dict) else ():
            text = value if isinstance(value, str) and field == "headers" and not _is_open(value) else ""
            if (why := header_problem(name, text) or reserved_problem(name)) is not None:
                yield Problem(f"{at}/{field}{pointer([name])}", "bad_with", why)
    classify = given.get("classify")
    for status in classify if isinstance(classify, dict) else ():
        if not status.isdecimal() or int(status) not in _STATUS:
            yield Problem(f"{at}/classify{pointer([status])}", "bad_with", "a status is a number, as in '404'")


def _can_be_called(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def _of_email(given: dict[str, Any], at: str) -> Iterator[Problem]:
    for name in ("to", "cc", "bcc", "reply_to", "from"):
        value = given.get(name)
        listed = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
        for place, address in listed:
            if isinstance(address, str) and not _is_open(address) and one_address(address) is None:
                where = pointer([name] if place is None else [name, place])
                yield Problem(f"{at}{where}", "bad_with", "must be exactly one address")
    if given.get("to") == []:
        yield Problem(f"{at}/to", "bad_with", "name at least one recipient")


def _nothing(given: dict[str, Any], at: str) -> Iterator[Problem]:
    return iter(())


_SENSE: dict[str, Callable[[dict[str, Any], str], Iterator[Problem]]] = {
    "http": _of_http,
    "webhook": _of_webhook,
    "email": _of_email,
    "log": _nothing,
}
