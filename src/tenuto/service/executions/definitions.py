"""Endpoints of definitions: draft, validate, publish, deprecate."""

from typing import Annotated, Any, Literal

from fastapi import Body, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from tenuto.authoring.document import definition_schema
from tenuto.service.http.caller import Called
from tenuto.service.http.endpoints import EndpointRouter
from tenuto.service.http.idempotency import IdempotencyKey, run_once
from tenuto.service.http.openapi import documented
from tenuto.service.http.request_models import NoFields
from tenuto.service.http.responses import Cursor, Limit, json_response, page_response

router = EndpointRouter(tags=["definitions"])

Name = Annotated[str, Path(max_length=128)]
Version = Annotated[int, Path(ge=1, le=2**31 - 1)]
Document = Annotated[dict[str, Any], Body()]


@router.operation(
    "POST",
    "/v1/definitions",
    "definitions:write",
    status_code=201,
    summary="Create a draft",
    responses=documented({201: "Definition", 200: "Definition"}, 409, 422),
)
async def draft_definition(
    document: Document, request: Request, caller: Called, key: IdempotencyKey = None
) -> Response:
    """Returns 201, or 200 if the same draft exists. An invalid document is refused and not stored."""

    async def work() -> Response:
        made, new = await caller.engine.catalog.draft(document)
        return json_response(made, 201 if new else 200)

    done = await run_once(caller, "POST /v1/definitions", key, await request.body(), work)
    done.headers["Location"] = f"/v1/definitions/{document['name']}/{document['version']}"
    return done


@router.operation(
    "GET",
    "/v1/definitions",
    "definitions:read",
    summary="List definitions",
    responses=documented({200: "[DefinitionSummary]"}, 422),
)
async def list_definitions(
    caller: Called,
    name: Annotated[str | None, Query(max_length=128)] = None,
    status: Literal["draft", "published", "deprecated"] | None = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    found = await caller.engine.catalog.list(name=name, status=status, cursor=cursor, limit=limit)
    return page_response(found)


@router.operation(
    "GET",
    "/v1/definitions/{name:plain}/{version:plain}",
    "definitions:read",
    summary="Get a definition with its status",
    responses=documented({200: "Definition"}, 404),
)
async def get_definition(name: Name, version: Version, caller: Called) -> Response:
    return json_response(await caller.engine.catalog.get(name, version))


@router.operation(
    "PUT",
    "/v1/definitions/{name:plain}/{version:plain}",
    "definitions:write",
    summary="Replace a draft",
    responses=documented({200: "Definition"}, 404, 409, 422),
)
async def replace_definition(name: Name, version: Version, document: Document, caller: Called) -> Response:
    return json_response(await caller.engine.catalog.replace(name, version, document))


@router.operation(
    "POST",
    "/v1/definitions/{name:plain}/{version:plain}:publish",
    "definitions:write",
    summary="Publish a definition: it can be started and never changes",
    responses=documented({200: "Definition"}, 404, 409, 422),
)
async def publish_definition(name: Name, version: Version, caller: Called, body: NoFields | None = None) -> Response:
    return json_response(await caller.engine.catalog.publish(name, version))


@router.operation(
    "POST",
    "/v1/definitions/{name:plain}/{version:plain}:deprecate",
    "definitions:write",
    summary="Deprecate a definition: no new executions, running ones continue",
    responses=documented({200: "Definition"}, 404, 409),
)
async def deprecate_definition(name: Name, version: Version, caller: Called, body: NoFields | None = None) -> Response:
    return json_response(await caller.engine.catalog.deprecate(name, version))


@router.operation(
    "POST",
    "/v1/definitions/{name:plain}/{version:plain}:validate",
    "definitions:read",
    summary="Validate a stored definition",
    responses=documented({200: "Validation"}, 404),
)
async def validate_definition(name: Name, version: Version, caller: Called, body: NoFields | None = None) -> Response:
    return json_response(await caller.engine.catalog.validate(name, version))


@router.operation(
    "POST",
    "/v1/definitions:validate",
    "definitions:read",
    summary="Validate a document without storing it",
    responses=documented({200: "Validation"}, 422),
)
async def validate_document(document: Document, caller: Called) -> Response:
    """Lists every error with a pointer into the document, including a name and version already in use."""
    return json_response(await caller.engine.catalog.check(document))


@router.operation(
    "GET",
    "/v1/schemas/definition.json",
    "definitions:read",
    summary="Get the JSON Schema of definitions",
    responses=documented({200: "Schema"}),
)
async def get_definition_schema(caller: Called) -> Response:
    return json_response(definition_schema())
