"""The OpenAPI document: schemas of responses, common problems, and permissions."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

import tenuto
from tenuto.api.definitions import DefinitionSummary, Validation
from tenuto.views import (
    AttemptRow,
    AuditDocument,
    AuditRecord,
    CloneDocument,
    DeadLetterRow,
    EventDocument,
    ExecutionDocument,
    ExecutionSummary,
    IdentityDocument,
    LimitRow,
    ReviewRow,
    SessionDocument,
    TenantLimitRow,
    WorkerRow,
)
from tenuto.views.graph import GraphDocument
from tenuto.views.overview import OverviewDocument

from .error_responses import TYPE
from .examples import FEED, PROBLEMS, STREAM, example_of, example_of_body
from .session_cookie import CSRF_HEADER, SECURE_NAME

_REF = "#/components/schemas/{name}"
_SHAPES = (
    DefinitionSummary,
    Validation,
    ExecutionDocument,
    ExecutionSummary,
    CloneDocument,
    AttemptRow,
    EventDocument,
    ReviewRow,
    DeadLetterRow,
    AuditDocument,
    AuditRecord,
    WorkerRow,
    LimitRow,
    TenantLimitRow,
    IdentityDocument,
    SessionDocument,
    GraphDocument,
    OverviewDocument,
)

PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "Problem",
    "description": "RFC 9457. `code` never changes once released.",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "hint": {"type": "string", "description": "what to do"},
        "request_id": {"type": "string", "description": "with 5xx: the id of this request in the log"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["pointer", "code", "message"],
                "properties": {name: {"type": "string"} for name in ("pointer", "code", "message")},
            },
        },
    },
}


_IDS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
REPROCESSED: dict[str, Any] = {
    "type": "object",
    "required": ["reprocessed", "pending", "refused", "next_cursor"],
    "properties": {
        "reprocessed": _IDS,
        "pending": {**_IDS, "description": "requested, verdict not known yet"},
        "next_cursor": {"type": ["string", "null"], "description": "`cursor` of the next call; null if no more match"},
        "refused": {
            "type": "array",
            "items": {"type": "object", "properties": {name: {"type": "string"} for name in ("id", "code", "detail")}},
        },
    },
}


def _acted(word: str) -> dict[str, Any]:
    return {
        "type": "object",
        "required": [word, "pending", "refused", "chosen", "remaining", "next_cursor"],
        "properties": {
            word: _IDS,
            "pending": REPROCESSED["properties"]["pending"],
            "refused": REPROCESSED["properties"]["refused"],
            "chosen": {**_IDS, "description": "with `dry_run`: the executions that match"},
            "remaining": {
                "type": "integer",
                "description": "further matches; at most 10,000 are counted, fewer if counting takes long",
            },
            "next_cursor": REPROCESSED["properties"]["next_cursor"],
        },
    }


COUNTS: dict[str, Any] = {
    "type": "object",
    "required": ["counts"],
    "properties": {"counts": {"type": "object", "additionalProperties": {"type": "integer"}}},
}
STATUSES: dict[str, Any] = {
    "type": "object",
    "required": ["statuses"],
    "properties": {"statuses": {"type": "object", "additionalProperties": {"type": "string"}}},
}
VERIFIED: dict[str, Any] = {
    "type": "object",
    "required": ["tenant", "rows", "head", "broken_at"],
    "properties": {
        "tenant": {"type": "string"},
        "rows": {"type": "integer"},
        "head": {"type": "string"},
        "broken_at": {"type": ["integer", "null"]},
        "cut": {"type": "boolean"},
    },
}


def documented(answers: dict[int, str], *problems: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of an operation. `[Shape]` is a page of that shape, `[One|Other]` of either."""
    found: dict[int | str, dict[str, Any]] = {}
    for status, shape in answers.items():
        found[status] = {"description": _said(status), "content": {"application/json": {"schema": _schema(shape)}}}
    for status in sorted({400, 401, 403, 422, 429, 503, *problems}):
        found[status] = _problem(status)
    return found


def streamed(responses: dict[int | str, dict[str, Any]]) -> dict[int | str, dict[str, Any]]:
    """With the stream of an execution's events as the answer."""
    return _stream("Events; the last one is `end`", STREAM, responses)


def feed_streamed(responses: dict[int | str, dict[str, Any]]) -> dict[int | str, dict[str, Any]]:
    """With the feed as the answer."""
    return _stream("Events `status`, `event` and `reset`", FEED, responses)


def _stream(said: str, example: str, responses: dict[int | str, dict[str, Any]]) -> dict[int | str, dict[str, Any]]:
    content = {"text/event-stream": {"schema": {"type": "string"}, "example": example}}
    return {200: {"description": said, "content": content}, **responses}


def _said(status: int) -> str:
    return {200: "The current state", 201: "Created", 202: "Accepted; the verdict is not known yet"}.get(status, "Done")


def _schema(shape: str) -> dict[str, Any]:
    if not shape.startswith("["):
        return {"$ref": _REF.format(name=shape)}
    refs = [{"$ref": _REF.format(name=name)} for name in shape[1:-1].split("|")]
    items = {"type": "array", "items": refs[0] if len(refs) == 1 else {"anyOf": refs}}
    cursor = {"type": ["string", "null"], "description": "`cursor` of the next page; null on the last"}
    return {
        "type": "object",
        "required": ["items", "next_cursor"],
        "properties": {"items": items, "next_cursor": cursor},
    }


def _problem(status: int) -> dict[str, Any]:
    example = {
        "type": f"{TYPE}{PROBLEMS[status]['code']}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        **PROBLEMS[status],
    }
    schema = {"$ref": _REF.format(name="Problem")}
    return {
        "description": PROBLEMS[status]["detail"],
        "content": {"application/problem+json": {"schema": schema, "example": example}},
    }


def add_openapi(app: FastAPI, schemas: Mapping[str, Any], examples: Mapping[str, Any]) -> None:
    """`schemas` and `examples` are those of routes that bring their own, by the name of their shape."""

    def make() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _complete(app, schemas, examples)
        return app.openapi_schema

    app.openapi = make  # type: ignore[method-assign]  # the framework's own way to extend the document


def _complete(app: FastAPI, own: Mapping[str, Any], examples: Mapping[str, Any]) -> dict[str, Any]:
    document = get_openapi(
        title="Tenuto",
        version=tenuto.__version__,
        description="Definitions, executions, and decisions about them. Errors are RFC 9457 problems.",
        routes=app.routes,
    )
    _, shapes = msgspec.json.schema_components(_SHAPES, ref_template=_REF)
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(
        {
            **shapes,
            "Definition": _definition(shapes["DefinitionSummary"]),
            "Problem": PROBLEM_SCHEMA,
            "Schema": {"type": "object"},
            "Reprocessed": REPROCESSED,
            "Canceled": _acted("canceled"),
            "Retried": _acted("retried"),
            "Counts": COUNTS,
            "Statuses": STATUSES,
            "Verified": VERIFIED,
            **own,
        }
    )
    components["securitySchemes"] = {
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "an API key `tnt_…`, or a JWT of a configured issuer",
        },
        "session": {
            "type": "apiKey",
            "in": "cookie",
            "name": SECURE_NAME,
            "description": f"a sign-in session of the console; writes also need the header {CSRF_HEADER}",
        },
    }
    for item in document["paths"].values():
        for operation in item.values():
            _finish(operation, components["schemas"], examples)
    components["schemas"].pop("HTTPValidationError", None)
    components["schemas"].pop("ValidationError", None)
    return document


def _definition(summary: dict[str, Any]) -> dict[str, Any]:
    """The schema of a definition: its summary, and the fields of its document."""
    steps = {"type": "array", "items": {"type": "object"}, "description": "with all other fields of the document"}
    return {
        **summary,
        "title": "Definition",
        "description": "A definition: its document and its status.",
        "properties": {**summary["properties"], "steps": steps},
        "required": [*summary["required"], "steps"],
    }


def _finish(operation: dict[str, Any], schemas: dict[str, Any], examples: Mapping[str, Any]) -> None:
    """What the framework says of its own errors is replaced by what is answered here."""
    responses = operation["responses"]
    if "application/json" in responses.get("422", {}).get("content", {}):
        responses["422"] = _problem(422)
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        content["example"] = example_of_body(content["schema"], schemas)
        responses.update({str(status): _problem(status) for status in (408, 413, 415)})
    for response in responses.values():  # only now: the framework would take everything out of them that is null
        content = response.get("content", {}).get("application/json", {})
        if (example := example_of(operation["operationId"], content.get("schema", {}), examples)) is not None:
            content["example"] = example
    if "x-permission" in operation:
        operation["security"] = [{"key": []}, {"session": []}]
