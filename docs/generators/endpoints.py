"""`reference/http.md`: every operation of the service, from its OpenAPI document."""

from collections.abc import Iterator
from typing import Any

from docs import openapi

from .source import NOTE

OPENING = """\
# HTTP

How it is used is in [the guide](../guides/http.md); `Engine("https://…", api_key=…)` speaks it for you:
[the client](../guides/client.md). A running service has the same at `/openapi.json`. Bodies and responses
are JSON; errors are [problems](#problem) with a stable `code`: [the list](errors.md).

Every operation may return 400 (malformed request), 401 (no valid credential), 403 (missing permission), 429 (too many
requests, with `Retry-After`) and 503 (database unavailable); operations with a body also 413 and 415. The other
statuses are listed below.

Every response has an `X-Request-ID`, which the service generates. Problems with 5xx repeat it as `request_id`, and the
log has it as `request_id`. The service returns `X-Correlation-ID` and `traceparent` as they were sent.

"""
EVERYWHERE = {"400", "401", "403", "413", "415", "429", "503"}
SERVICE = "service"


def page() -> str:
    document = openapi.document()
    return "".join(
        [
            f"{NOTE}\n{OPENING}",
            *_contents(document),
            *_operations(document),
            *_shapes(document["components"]["schemas"]),
        ]
    )


def _by_tag(document: dict[str, Any]) -> dict[str, list[tuple[str, str, dict[str, Any]]]]:
    found: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            tag = (operation.get("tags") or [SERVICE])[0]
            found.setdefault(tag, []).append((method.upper(), path, operation))
    return found


def _contents(document: dict[str, Any]) -> Iterator[str]:
    yield "| | | needs |\n|---|---|---|\n"
    for operations in _by_tag(document).values():
        for method, path, operation in operations:
            yield f"| `{method} {path}` | {operation['summary']} | {_permission(operation)} |\n"


def _permission(operation: dict[str, Any]) -> str:
    return f"`{operation['x-permission']}`" if "x-permission" in operation else ""


def _operations(document: dict[str, Any]) -> Iterator[str]:
    schemas = document["components"]["schemas"]
    for tag, operations in _by_tag(document).items():
        yield f"\n## {tag.capitalize()}\n"
        for method, path, operation in operations:
            yield f"\n### {method} {path}\n\n{_plain(operation['summary'])}."
            yield f" {_plain(operation['description'])}.\n" if operation.get("description") else "\n"
            yield from _parameters(operation.get("parameters", []))
            yield from _body(operation, schemas)
            yield from _answers(operation["responses"])


def _parameters(parameters: list[dict[str, Any]]) -> Iterator[str]:
    if not parameters:
        return
    yield "\n| parameter | in | type | |\n|---|---|---|---|\n"
    for each in parameters:
        kind = _type(each["schema"]).removesuffix(" or null")
        yield f"| `{each['name']}` | {each['in']} | {kind} | {_about(each)} |\n"


def _about(parameter: dict[str, Any]) -> str:
    text = _plain(parameter.get("description") or parameter["schema"].get("description") or "")
    default = parameter["schema"].get("default")
    return text if default in (None, "") else f"{text}{'; ' if text else ''}default: {_value(default)}"


def _body(operation: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    if "requestBody" not in operation:
        return
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    options = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    name = options[0].get("$ref", "").rpartition("/")[2]
    if not name:
        yield "\nThe body is a definition: its fields are in the JSON Schema at `/v1/schemas/definition.json`.\n"
    elif schemas[name].get("properties"):
        yield "\n| body | type | |\n|---|---|---|\n"
        yield from _fields(schemas[name])


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    required = schema.get("required", [])
    for name, field in schema["properties"].items():
        text = _about({"schema": field})
        needed = "required" if name in required and not text else f"required; {text}" if name in required else text
        yield f"| `{name}` | {_type(field)} | {needed} |\n"


def _answers(responses: dict[str, Any]) -> Iterator[str]:
    told = []
    for status, response in sorted(responses.items()):
        if status in EVERYWHERE:
            continue
        content = next(iter(response.get("content", {}).items()), None)
        shape = "" if content is None else f", {_type(content[1]['schema'])}" if "schema" in content[1] else ""
        told.append(f"{status}{shape if status < '300' else ''}")
    if told:
        yield f"\nReturns: {'; '.join(told)}.\n"


def _shapes(schemas: dict[str, Any]) -> Iterator[str]:
    yield "\n## Shapes\n"
    for name, schema in sorted(schemas.items()):
        if name.endswith("Body") or not schema.get("properties"):
            continue
        yield f"\n### {name}\n\n"
        yield f"{_plain(schema['description'])}\n\n" if schema.get("description") else ""
        yield "| field | type | |\n|---|---|---|\n"
        yield from (
            f"| `{field}` | {_type(found)} | {_about({'schema': found})} |\n"
            for field, found in schema["properties"].items()
        )


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return "object" if name == "Schema" else f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if "next_cursor" in schema.get("properties", {}):
        return f"a page of {_type(schema['properties']['items']['items'])}"
    found = schema.get("type", "anything")
    return " or ".join(found) if isinstance(found, list) else str(found)


def _value(default: object) -> str:
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").rstrip(".")
