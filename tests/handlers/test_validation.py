"""What is wrong with `with` of a built-in handler is told when the definition is published, all of it at once."""

from typing import Any

import pytest

from tenuto import Engine
from tenuto.errors import DefinitionError

SAFE = {"idempotency_strategy": "SAFE_TO_RETRY"}


def document(*steps: dict[str, Any]) -> dict[str, Any]:
    ids = [f"s{number}" for number in range(len(steps))]
    follows = [{"on_success": id} for id in ids[1:]] + [{}]
    numbered = zip(ids, steps, follows, strict=True)
    listed = [{"step_id": id, "type": "external_call", **SAFE, **step, **then} for id, step, then in numbered]
    return {"name": "calls", "version": 1, "steps": listed}


async def problems_of(*steps: dict[str, Any], **handlers: Any) -> dict[str, str]:
    """Pointers and codes."""
    async with Engine(worker=False) as engine:
        for name, function in handlers.items():
            engine.handler(name, function)
        try:
            await engine.apply(document(*steps))
        except DefinitionError as error:
            return {found.path: found.code for found in error.problems}
    return {}


WRONG: dict[str, tuple[str, Any, dict[str, str]]] = {
    "no url": ("http", {"method": "POST"}, {"/steps/0/with": "missing"}),
    "a misspelt field": (
        "http",
        {"url": "http://a.example", "jason": {}},
        {"/steps/0/with/jason": "unknown_field"},
    ),
    "no URL": ("http", {"url": "a.example/pay"}, {"/steps/0/with/url": "bad_with"}),
    "another scheme": ("webhook", {"url": "ftp://a.example"}, {"/steps/0/with/url": "bad_with"}),
    "no method": ("http", {"url": "http://a.example", "method": "SEND"}, {"/steps/0/with/method": "bad_with"}),
    "a number in headers": (
        "http",
        {"url": "http://a.example", "headers": {"a": "1", "b/c": 2}},
        {"/steps/0/with/headers/b~1c": "bad_with"},
    ),
    "no headers": (
        "webhook",
        {"url": "http://a.example", "headers": {"two words": "${input.a}", "X-A": "1\r\nX-B: 2"}},
        {"/steps/0/with/headers/two words": "bad_with", "/steps/0/with/headers/X-A": "bad_with"},
    ),
    "two bodies": ("http", {"url": "http://a.example", "json": 1, "text": "1"}, {"/steps/0/with/text": "bad_with"}),
    "two webhooks": (
        "webhook",
        {"url": "http://a.example", "json": 1, "data": 1, "type": "a"},
        {"/steps/0/with/data": "bad_with", "/steps/0/with/type": "bad_with"},
    ),
    "statuses and classes": (
        "http",
        {"url": "http://a.example", "classify": {"odd": "TRANSIENT", "404": "SOMETIMES"}},
        {"/steps/0/with/classify/odd": "bad_with", "/steps/0/with/classify/404": "bad_with"},
    ),
    "not an object": ("log", ["x"], {"/steps/0/with": "bad_with"}),
    "a level": ("log", {"message": "x", "level": "loud"}, {"/steps/0/with/level": "bad_with"}),
    "mail to nobody": ("email", {"to": [], "subject": "x"}, {"/steps/0/with/to": "bad_with"}),
    "mail": (
        "email",
        {"to": ["ann@a.example", "bob", 7], "text": "x", "from": "me"},
        {
            "/steps/0/with": "missing",
            "/steps/0/with/to/1": "bad_with",
            "/steps/0/with/to/2": "bad_with",
            "/steps/0/with/from": "bad_with",
        },
    ),
}


@pytest.mark.parametrize("what", WRONG)
async def test_what_is_wrong_is_told_with_its_pointer(what: str) -> None:
    handler, given, expected = WRONG[what]
    assert await problems_of({"handler": handler, "with": given}) == expected


async def test_all_of_it_is_told_at_once_undoing_and_structure_included() -> None:
    found = await problems_of(
        {"handler": "http", "with": {"url": "x"}, "compensation_handler": "http", "compensation_with": {"urls": 1}},
        {"handler": "log", "with": {"message": 5}, "when": "input."},
    )
    assert found == {
        "/steps/0/with/url": "bad_with",
        "/steps/0/compensation_with": "missing",
        "/steps/0/compensation_with/urls": "unknown_field",
        "/steps/1/with/message": "bad_with",
        "/steps/1/when": "expression",
    }


@pytest.mark.parametrize(
    ("handler", "given"),
    [
        ("http", None),  # the execution's input
        ("http", "${input.call}"),
        ("http", {"url": "${input.url}", "method": "${input.method}", "headers": "${input.headers}"}),
        ("http", {"url": "https://a.example/${input.id}", "json": ["${input.a}", 1], "headers": {"a": "${input.a}"}}),
        ("http", {"url": "https://a.example", "query": {"n": 1, "x": "${input.x}"}}),
        ("webhook", {"url": "https://a.example", "data": {"x": 1}, "classify": {"409": "NON_RETRYABLE"}}),
        ("email", {"to": "Ann <ann@a.example>", "subject": "x", "cc": ["${input.boss}"]}),
        ("email", {"to": "${input.people}", "subject": "${input.subject}"}),
        ("log", {"message": "$${ is plain", "level": "${input.level}", "fields": {"a": {"b": 1}}}),
    ],
)  # fmt: skip
async def test_what_can_be_right_is_published(handler: str, given: Any) -> None:
    assert await problems_of({"handler": handler, "with": given}) == {}


async def test_a_function_of_ones_own_takes_what_it_takes() -> None:
    async def log(given: Any) -> None: ...

    assert await problems_of({"handler": "log", "with": {"text": 1}}, log=log) == {}
