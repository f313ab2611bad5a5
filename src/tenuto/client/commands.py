"""Commands, encoded as HTTP requests."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple

from msgspec import Raw

from tenuto.errors import ResultTimeout
from tenuto.kernel import facts as f
from tenuto.kernel.address import fan_of
from tenuto.kernel.events import NULL
from tenuto.kernel.naming import shown_step
from tenuto.kernel.state import Execution
from tenuto.runtime.shared.bulk_requests import BulkRequest, ReprocessRequest
from tenuto.runtime.start_request import StartRequest, Submitted
from tenuto.views import DeadLetterRow
from tenuto.views.bulk_results import BulkResult, RefusedItem

from .definitions import RemotePrograms
from .executions import RemoteExecutions
from .lists import timestamp
from .refusals import check_tenant, refuse
from .start import start_body, start_headers
from .transport import Answer, Transport, quoted, quoted_name


class RemoteCommands:
    """Implements `Commands` and `CompositeCommands` over HTTP."""

    def __init__(
        self,
        transport: Transport,
        programs: RemotePrograms,
        executions: RemoteExecutions,
        new_id: Callable[[], str],
    ) -> None:
        self._transport = transport
        self._programs = programs
        self._executions = executions
        self._new_id = new_id

    async def submit(self, request: StartRequest) -> Submitted:
        if request.connection is not None:
            refuse("A caller's transaction", "start it with an engine on the database: Engine(url of the database)")
        check_tenant(request.tenant)
        version = request.version
        if version is None and self._programs.is_own(request.program):
            version = request.program.version  # this process has the code of one version
        body, headers = start_body(request, version), start_headers(request)
        answer = await self._transport.send("POST", "/v1/executions", body=body, headers=headers, repeats=True)
        return Submitted(answer.document("execution_id")["execution_id"], created=answer.status == 201)

    async def tell(self, tenant: str | None, execution_id: str, fact: f.Fact) -> f.Answer:
        """Sends a command. A refusal is an error response, so any other response means that it was applied."""
        check_tenant(tenant)
        if fact.actor is not None:  # the service would record its caller, and the other name would be lost
            refuse("Another actor than that of the API key", "leave `actor` out, or use an API key of that actor")
        request = _request_of(execution_id, fact, self._executions.last_known(execution_id))
        answer = await self._transport.send("POST", request.path, body=request.body, repeats=request.repeats)
        answer.document("execution_id")
        _check_verdict(answer)
        return f.APPLIED

    # The service carries out these commands as a whole, so the client sends one request and does not call `command`.

    async def for_executions(self, request: BulkRequest, command: Callable[[str], Awaitable[None]]) -> BulkResult:
        wanted = request.wanted
        check_tenant(wanted.tenant)
        body: dict[str, Any] = _given(
            status=wanted.status if request.verb == "cancel" else None,
            definition=wanted.definition,
            target_id=wanted.target_id,
            correlation_id=wanted.correlation_id,
            since=timestamp(wanted.since_ms),
            before=timestamp(wanted.before_ms),
        )
        body |= {"reason": request.reason, "limit": request.limit, "cursor": request.cursor}
        body["dry_run"] = request.dry_run
        if request.verb == "cancel":
            body["mode"] = request.mode
        return _bulk_result(await self._send_bulk(f"/v1/executions:{request.verb}", body, has="refused"))

    async def for_dead_letters(
        self, request: ReprocessRequest, command: Callable[[str], Awaitable[None]]
    ) -> BulkResult:
        wanted = request.wanted
        check_tenant(wanted.tenant)
        body: dict[str, Any] = _given(
            definition=wanted.definition, error_class=wanted.error_class, before=timestamp(wanted.before)
        )
        body |= {"reason": request.reason, "limit": request.limit, "cursor": request.cursor}
        return _bulk_result(await self._send_bulk("/v1/dlq:reprocess", body, has="reprocessed"))

    async def for_dead_letter(
        self,
        verb: Literal["reprocess", "discard"],
        id: str,
        reason: str,
        command: Callable[[], Awaitable[DeadLetterRow]],
    ) -> DeadLetterRow:
        answer = await self._transport.send("POST", f"/v1/dlq/{quoted(id)}:{verb}", body={"reason": reason})
        _check_verdict(answer)
        found: DeadLetterRow = answer.document("error_class")
        return found

    async def _send_bulk(self, path: str, body: Mapping[str, Any], *, has: str) -> dict[str, Any]:
        key = {"Idempotency-Key": self._new_id()}  # makes a retry safe
        answer = await self._transport.send("POST", path, body=body, headers=key, repeats=True)
        found: dict[str, Any] = answer.document(has)
        return found


class Request(NamedTuple):
    path: str
    body: dict[str, Any]
    repeats: bool = False


def _request_of(execution_id: str, fact: f.Fact, state: Execution | None) -> Request:
    """Returns the request for a command. `state` is the last known state of the execution."""
    at = f"/v1/executions/{quoted(execution_id)}"
    match fact:
        case f.Pause():
            return Request(f"{at}:pause", {"reason": fact.reason})
        case f.Resume():
            return Request(f"{at}:resume", {})
        case f.Cancel():
            return Request(f"{at}:cancel", {"mode": fact.mode, "reason": fact.reason})
        case f.Retry():
            start = None if fact.start is None else _name(state, fact.start)
            return Request(f"{at}:retry", {"from": start, "again": fact.again, "reason": fact.reason})
        case f.Signal():  # signals with the same id count once
            return Request(
                f"{at}/signals/{quoted_name(fact.name)}", {"payload": fact.payload, "id": fact.id}, repeats=True
            )
        case f.Decide():
            return _decision(fact, state)
    refuse(
        "Answering a callback step",
        "answer with an engine on the database: Engine(url of the database).get(id).answer(…)",
    )


def _decision(fact: f.Decide, state: Execution | None) -> Request:
    """The service checks the authority of the client's credential and ignores the authority in the fact."""
    found = fact.review
    assert found is not None, "a decision names its review"
    review = None if state is None else state.reviews.get(found)
    if review is not None and review.kind == "dead_letter" and fact.resolution == "dismiss":
        return Request(f"/v1/dlq/{quoted(found)}:discard", {"reason": fact.reason})
    body = {"resolution": fact.resolution, "reason": fact.reason, "again": fact.again}
    return Request(
        f"/v1/reviews/{quoted(found)}:resolve", body if _is_nothing(fact.result) else {**body, "result": fact.result}
    )


def _name(state: Execution | None, path: str) -> str:
    """Names a clone by its label, because its index may be the label of another clone."""
    return path if state is None or fan_of(path) is None or "/" in path else shown_step(state, path)


def _is_nothing(result: Raw) -> bool:
    return bytes(result) == bytes(NULL)


def _given(**fields: str | None) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _bulk_result(document: Mapping[str, Any]) -> BulkResult:
    return BulkResult(
        done=document.get("canceled") or document.get("retried") or document.get("reprocessed") or [],
        pending=document["pending"],
        refused=[RefusedItem(**each) for each in document["refused"]],
        chosen=document.get("chosen", []),
        remaining=document.get("remaining", 0),
        next_cursor=document["next_cursor"],
    )


def _check_verdict(answer: Answer) -> None:
    if answer.status == 202:
        raise ResultTimeout(
            "The command was accepted, but its verdict is not known yet.",
            code="verdict_unknown",
            hint="check the state of the execution; do not send the command again",
        )
