"""Definitions: drafted, checked, published once and for all, deprecated."""

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
    summary="Keep a draft",
    responses=documented({201: "Definition", 200: "Definition"}, 409, 422),
)
async def draft_definition(
    document: Document, request: Request, caller: Called, key: IdempotencyKey = None
) -> Response:
    """Answers 201, or 200 if this very draft is there already. What is not valid is refused, and nothing is kept."""

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
    summary="A definition with its status",
    responses=documented({200: "Definition"}, 404),
)
async def get_definition(name: Name, version: Version, caller: Called) -> Response:
    return json_response(await caller.engine.catalog.get(name, version))


@router.operation(
    "PUT",
    "/v1/definitions/{name:plain}/{version:plain}",
    "definitions:write",
    summary="Change a draft",
    responses=documented({200: "Definition"}, 404, 409, 422),
)
async def replace_definition(name: Name, version: Version, document: Document, caller: Called) -> Response:
    return json_response(await caller.engine.catalog.replace(name, version, document))


@router.operation(
    "POST",
    "/v1/definitions/{name:plain}/{version:plain}:publish",
    "definitions:write",
    summary="Publish: from now on it can be started, and never changes",
    responses=documented({200: "Definition"}, 404, 409, 422),
)
async def publish_definition(name: Name, version: Version, caller: Called, body: NoFields | None = None) -> Response:
    return json_response(await caller.engine.catalog.publish(name, version))


@router.operation(
    "POST",
    "/v1/definitions/{name:plain}/{version:plain}:deprecate",
    "definitions:write",
    summary="Deprecate: no more of it is started, what runs goes on",
    responses=documented({200: "Definition"}, 404, 409),
)
async def deprecate_definition(name: Name, version: Version, caller: Called, body: NoFields | None = None) -> Response:
    return json_response(await caller.engine.catalog.deprecate(name, version))


@router.operation(
    "POST",
    "/v1/definitions/{name:plain}/{version:plain}:validate",
    "definitions:read",
    summary="What publishing it would say",
    responses=documented({200: "Validation"}, 404),
)
async def validate_definition(name: Name, version: Version, caller: Called, body: NoFields | None = None) -> Response:
    return json_response(await caller.engine.catalog.validate(name, version))


@router.operation(
    "POST",
    "/v1/definitions:validate",
    "definitions:read",
    summary="What publishing a document would say; nothing is stored",
    responses=documented({200: "Validation"}, 422),
)
async def validate_document(document: Document, caller: Called) -> Response:
    """All that is wrong with it, each with a pointer into the document; also that its name and version are taken."""
    return json_response(await caller.engine.catalog.check(document))


@router.operation(
    "GET",
    "/v1/schemas/definition.json",
    "definitions:read",
    summary="The JSON Schema of definitions, for editors",
    responses=documented({200: "Schema"}),
)
async def get_definition_schema(caller: Called) -> Response:
    return json_response(definition_schema())
