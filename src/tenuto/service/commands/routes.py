"""Endpoints of the command gateway: commands, jobs, callbacks, and the embedded bus."""

from typing import Annotated, Any

import msgspec
from fastapi import Header, Path, Query
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from tenuto.access.callback_tokens import Claims
from tenuto.errors import InvalidTransition, NotFound, NotPermitted, TenantLimit
from tenuto.kernel.address import fingerprint
from tenuto.runtime.bus.embedded import EmbeddedBus
from tenuto.service.http.caller import Called, Caller
from tenuto.service.http.endpoints import EndpointRouter
from tenuto.service.http.fast_path import BODY
from tenuto.service.http.idempotency import REPLAYED, IdempotencyKey, exclusive_start, unquoted_key
from tenuto.service.http.openapi import documented
from tenuto.service.http.request_models import Timestamp
from tenuto.service.http.responses import Cursor, Limit, json_response, page_response
from tenuto.storage.bus_messages import Delivery
from tenuto.views.jobs import JobStatus, Verdict, job_document
from tenuto.views.shapes import rfc3339

from .bodies import AbandonBody, CancelJobBody, DeadLetterBody, ReceiveBody, RenewBody, SettleBody
from .callbacks import Callbacks
from .gateway import Gateway

router = EndpointRouter(tags=["commands"])

Job = Annotated[str, Path(max_length=256)]
Service = Annotated[str, Path(max_length=64)]


def gateway_of(caller: Caller) -> Gateway:
    gateway = caller.service.gateway
    assert isinstance(gateway, Gateway)
    return gateway


def _body(name: str) -> dict[str, Any]:
    """The body of an operation that checks it itself, so that all problems are reported at once."""
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


# -- Commands ----------------------------------------------------------------------------------------------------------


@router.operation(
    "POST",
    "/v1/commands",
    "executions:start",
    status_code=202,
    summary="Create a job from a command",
    responses=documented({202: "CommandAccepted"}, 409, 422, 429),
    body=_body("Command"),
)
async def send_command(caller: Called, request: Request, key: IdempotencyKey = None) -> Response:
    """Returns 202 once the job is durable. A repeated idempotency key returns the same job with `replayed`."""
    gateway = gateway_of(caller)
    command = gateway.envelopes.read(
        request.scope.get(BODY), caller.principal.tenant, unquoted_key(key), gateway.protocols.configuration
    )
    name = None
    if command.idempotency_key is not None:
        name = job_key(caller.principal.tenant, command.request_type, command.idempotency_key)
    headers = {} if command.traceparent is None else {"traceparent": command.traceparent}
    version = None if name is not None else command.protocol.version
    with exclusive_start(caller, name):
        try:
            handle = await caller.engine.start(
                command.protocol.definition,
                command.input,
                idempotency_key=name,
                headers=headers,
                correlation_id=command.correlation_id,
                version=version,
            )
        except TenantLimit:
            caller.service.limiter.refused_starts.remember(caller.credential.authorization, caller.principal.tenant)
            raise
    record = await caller.engine.jobs.record(handle.id)
    document = {"jobId": handle.id, "status": record.job.status, "replayed": not handle.created}
    location = {"Location": f"/v1/jobs/{handle.id}"}
    return json_response(document, 202, location if handle.created else {**location, **REPLAYED})


def job_key(tenant: str, request_type: str, key: str) -> str:
    """The idempotency key of a job's execution. Keys of other starts cannot equal it by accident."""
    return f"job:{fingerprint(tenant, request_type, key)}"


# -- Jobs --------------------------------------------------------------------------------------------------------------


@router.operation(
    "GET",
    "/v1/jobs",
    "executions:read",
    summary="List jobs, newest first",
    responses=documented({200: "[JobSummary]"}, 422),
)
async def list_jobs(
    caller: Called,
    status: JobStatus | None = None,
    protocol: Annotated[str | None, Query(max_length=64, description="the id of a protocol")] = None,
    since: Annotated[Timestamp | None, Query(description="created at this time or later (RFC 3339)")] = None,
    before: Annotated[Timestamp | None, Query(description="created before this time")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    found = await caller.engine.jobs.page(
        status=status, protocol=protocol, since=since, before=before, cursor=cursor, limit=limit
    )
    return page_response(found)


@router.operation(
    "GET",
    "/v1/jobs/{jobId:plain}",
    "executions:read",
    summary="Get a job with its steps, from the ledger",
    responses={**documented({200: "JobDocument"}, 404), 304: {"description": "The job has not changed"}},
)
async def get_job(
    jobId: Job,
    caller: Called,
    known: Annotated[str | None, Header(alias="If-None-Match", max_length=1_000)] = None,
) -> Response:
    """The `ETag` is the version of the job. With `If-None-Match`, 304 says that it has not changed."""
    found = await caller.engine.jobs.record(jobId)
    etag = f'"{found.job.seq}"'
    if known is not None and etag in {part.strip().removeprefix("W/") for part in known.split(",")}:
        return Response(status_code=304, headers={"ETag": etag})
    return json_response(job_document(found.job, found.steps), headers={"ETag": etag})


@router.operation(
    "GET",
    "/v1/jobs/{jobId:plain}/steps",
    "executions:read",
    summary="List the attempts of a job's steps, from the ledger",
    responses=documented({200: "JobAttempts"}, 404),
)
async def list_job_steps(
    jobId: Job,
    caller: Called,
    step_id: Annotated[str | None, Query(max_length=64, description="only of this step")] = None,
) -> Response:
    return json_response({"items": await caller.engine.jobs.attempts(jobId, step_id)})


@router.operation(
    "GET",
    "/v1/jobs/{jobId:plain}/callbacks",
    "executions:read",
    summary="List the callbacks of a job with their verdicts, oldest first",
    responses=documented({200: "[CallbackDocument]"}, 404),
)
async def list_job_callbacks(
    jobId: Job,
    caller: Called,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    return page_response(await caller.engine.jobs.callbacks(jobId, cursor=cursor, limit=limit))


@router.operation(
    "POST",
    "/v1/jobs/{jobId:plain}:cancel",
    "executions:write",
    status_code=202,
    summary="Cancel a job: nothing more starts, and its current step ends it",
    responses=documented({202: "JobDocument"}, 404, 409),
)
async def cancel_job(
    jobId: Job,
    caller: Called,
    body: CancelJobBody | None = None,
) -> Response:
    jobs = caller.engine.jobs
    await caller.has_verdict(jobs.cancel(jobId, reason="" if body is None else body.reason))
    return json_response(await jobs.get(jobId), 202)


# -- Callbacks ---------------------------------------------------------------------------------------------------------

_ANSWERED = documented({200: "CallbackAnswer", 202: "CallbackAnswer"}, 422)


@router.operation(
    "POST",
    "/v1/callbacks/ack",
    "callbacks:write",
    summary="Acknowledge a directive",
    responses=_ANSWERED,
    body=_body("Ack"),
)
async def send_ack(caller: Called, request: Request) -> Response:
    """Send the directive's `callback_token` as `Authorization: Bearer …`."""
    return await _called_back(caller, "ack", request.scope.get(BODY))


@router.operation(
    "POST",
    "/v1/callbacks/result",
    "callbacks:write",
    summary="Report the result of a directive",
    responses=_ANSWERED,
    body=_body("Result"),
)
async def send_result(caller: Called, request: Request) -> Response:
    """A late, repeated or stale result is logged with its verdict and changes nothing."""
    return await _called_back(caller, "result", request.scope.get(BODY))


async def _called_back(caller: Caller, kind: str, body: Any) -> Response:
    callbacks = Callbacks(caller)
    callback = await callbacks.read(kind, body)
    verdicts: list[Verdict] = []

    async def tell() -> None:
        verdicts.append(await callbacks.tell(callback))

    if not await caller.has_verdict(tell()):
        return json_response({"applied": False, "verdict": None}, 202)
    return json_response({"applied": verdicts[0] == "applied", "verdict": verdicts[0]})


# -- The embedded bus --------------------------------------------------------------------------------------------------


def _bus(caller: Caller) -> EmbeddedBus:
    bus = gateway_of(caller).bus
    if bus is None:
        raise NotFound("This deployment has no embedded bus.", hint="receive from the broker of TENUTO_BUS_URL")
    return bus


def _check_service(caller: Caller, service: str) -> str | None:
    """Returns the tenant whose messages the caller may have; None for all."""
    principal = caller.principal
    if principal.callback is not None:
        raise NotPermitted("A callback token does not receive messages.", hint="use a key of the service")
    if "admin" not in principal.roles and principal.service != service:
        raise NotPermitted(
            f"The key is not for the service {service!r}.",
            code="not_the_owner",
            hint=f"tenuto keys create --role worker --service {service}",
        )
    return None if principal.tenant == "*" else principal.tenant


@router.operation(
    "POST",
    "/v1/bus/{service}:receive",
    "callbacks:write",
    summary="Receive directives of a service",
    responses=documented({200: "BusMessages"}, 404, 422),
)
async def receive_messages(service: Service, caller: Called, body: ReceiveBody | None = None) -> Response:
    """Waits for the first message at most `wait_ms`. Each message is locked until `locked_until`: settle it before."""
    tenant = _check_service(caller, service)
    wanted = body or ReceiveBody()
    bus = _bus(caller)
    with caller.stream_slot():
        found = await bus.receive(
            service, limit=wanted.max, wait_ms=wanted.wait_ms, lock_ms=wanted.lock_ms, tenant=tenant
        )
    gateway = gateway_of(caller)
    return json_response({"messages": [_message(gateway, service, delivery) for delivery in found]})


def _message(gateway: Gateway, service: str, delivery: Delivery) -> dict[str, Any]:
    """A delivered message. Its callback token is made now, and stored nowhere."""
    directive: dict[str, Any] = msgspec.json.decode(delivery.body)
    claims = Claims(
        tenant=directive["tenant_id"],
        job=directive["jobId"],
        step=directive["stepId"],
        attempt=directive["attempt_no"],
        lease=directive["lease_id"],
        service=service,
        expires_at=delivery.expires_at,
    )
    return {
        "id": delivery.id,
        "lock_token": delivery.lock_token,
        "locked_until": rfc3339(delivery.locked_until),
        "delivery_count": delivery.deliveries,
        "topic": delivery.topic,
        "directive": {**directive, "callback_token": gateway.tokens.sign(claims)},
    }


async def _owned(caller: Caller, id: str) -> EmbeddedBus:
    """The bus, if the message is one of the caller's service and tenant."""
    bus = _bus(caller)
    found = await caller.service.engine.job_store.messages.service_of(id)
    if found is not None:
        tenant = _check_service(caller, found[0])
        found = found if tenant in (None, found[1]) else None
    if found is None:
        raise _lock_lost()
    return bus


def _lock_lost() -> InvalidTransition:
    return InvalidTransition("The message is not locked with this token.", code="lock_lost", hint="receive it again")


def _settled(settled: bool) -> Response:
    if not settled:
        raise _lock_lost()
    return Response(status_code=204)


_SETTLED = documented({}, 404, 409, 422)


@router.operation(
    "POST",
    "/v1/bus/messages/{id:whole}:complete",
    "callbacks:write",
    status_code=204,
    summary="Complete a message: it is removed",
    responses=_SETTLED,
)
async def complete_message(id: str, caller: Called, body: SettleBody) -> Response:
    return _settled(await (await _owned(caller, id)).complete(id, body.lock_token))


@router.operation(
    "POST",
    "/v1/bus/messages/{id:whole}:abandon",
    "callbacks:write",
    status_code=204,
    summary="Abandon a message: it is delivered again",
    responses=_SETTLED,
)
async def abandon_message(id: str, caller: Called, body: AbandonBody) -> Response:
    return _settled(await (await _owned(caller, id)).abandon(id, body.lock_token, body.delay_ms))


@router.operation(
    "POST",
    "/v1/bus/messages/{id:whole}:renew",
    "callbacks:write",
    status_code=204,
    summary="Renew the lock of a message",
    responses=_SETTLED,
)
async def renew_message(id: str, caller: Called, body: RenewBody) -> Response:
    return _settled(await (await _owned(caller, id)).renew(id, body.lock_token, body.lock_ms) is not None)


@router.operation(
    "POST",
    "/v1/bus/messages/{id:whole}:dead_letter",
    "callbacks:write",
    status_code=204,
    summary="Set a message aside: it is not delivered again",
    responses=_SETTLED,
)
async def dead_letter_message(id: str, caller: Called, body: DeadLetterBody) -> Response:
    return _settled(await (await _owned(caller, id)).dead_letter(id, body.lock_token, body.reason))


@router.operation(
    "GET",
    "/v1/bus",
    "limits:write",
    summary="List the topics of the embedded bus with their depth",
    responses=documented({200: "BusTopics"}, 404),
)
async def list_topics(caller: Called) -> Response:
    """The messages of all tenants are counted, so this needs an admin of the tenant `default`."""
    if not caller.engine.scope.is_deployment:
        raise NotPermitted("This needs an admin of the tenant `default`.")
    found = await _bus(caller).depths()
    topics = [
        {
            "topic": each.topic,
            "service": each.service,
            "waiting": each.waiting,
            "locked": each.locked,
            "dead_letters": each.dead,
            "oldest_at": None if each.oldest_at is None else rfc3339(each.oldest_at),
        }
        for each in found
    ]
    return json_response({"topics": topics})


def routes() -> list[BaseRoute]:
    return list(router.routes)
