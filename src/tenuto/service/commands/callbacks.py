"""Callbacks of platform workers: who may send them, what they say, and their verdicts."""

from typing import Any, Final, get_args

import msgspec

from tenuto.access.principal import Principal
from tenuto.errors import InvalidInput, NotFound, NotPermitted, PayloadError, Problem, TenutoError
from tenuto.kernel.definition import ErrorClass
from tenuto.service.http.caller import Caller
from tenuto.values.redaction import summary
from tenuto.values.schema import Schema
from tenuto.views.jobs import CallbackRow, Verdict
from tenuto.views.projections import AuditRow

from .envelope import tenant_mismatch

_ID: Final = {"type": "string", "minLength": 1, "maxLength": 256}
_WORKSPACE: Final = {"type": ["string", "null"], "maxLength": 2_048, "examples": ["s3://docs/acme/w/1"]}
_BOUND: Final[dict[str, Any]] = {
    "jobId": {**_ID, "examples": ["1a1e1c763e38d8d06329bb"]},
    "stepId": {**_ID, "examples": ["ocr"]},
    "tenant_id": {**_ID, "examples": ["acme"]},
    "attempt_no": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1, "examples": [1]},
    "lease_id": {**_ID, "examples": ["7d0c0c2f1b6a4c0f9d3e5a7b8c9d0e1f"]},
}
ACK: Final[dict[str, Any]] = {
    "title": "Ack",
    "type": "object",
    "additionalProperties": False,
    "required": list(_BOUND),
    "properties": {**_BOUND, "workspace_ref": _WORKSPACE},
}
RESULT: Final[dict[str, Any]] = {
    "title": "Result",
    "type": "object",
    "additionalProperties": False,
    "required": [*_BOUND, "status"],
    "properties": {
        **_BOUND,
        "status": {"enum": ["SUCCEEDED", "FAILED", "FAILED_FINAL"], "examples": ["SUCCEEDED"]},
        "result": {"description": "of a step that succeeded; any JSON", "examples": [{"pages": 12}]},
        "error": {
            "type": "object",
            "additionalProperties": False,
            "required": ["class", "code"],
            "properties": {
                "class": {"enum": list(get_args(ErrorClass))},
                "code": {"type": "string", "minLength": 1, "maxLength": 128},
                "message": {"type": "string", "maxLength": 2_000},
            },
            "description": "required with FAILED; optional with FAILED_FINAL",
        },
        "workspace_ref": _WORKSPACE,
    },
    "if": {"properties": {"status": {"const": "FAILED"}}},
    "then": {"required": ["error"]},
}
_SCHEMAS: Final = {"ack": Schema(ACK), "result": Schema(RESULT)}


class Callback(msgspec.Struct, frozen=True, kw_only=True):
    """A callback that is valid and authorised."""

    kind: str
    body: dict[str, Any]

    def text(self, name: str) -> str:
        return str(self.body[name])


class Callbacks:
    """Checks callbacks and brings them to their executions."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._engine = caller.service.engine

    async def read(self, kind: str, body: Any) -> Callback:
        """Returns a callback, or raises. One that is refused for its contents is logged as rejected."""
        problems = _SCHEMAS[kind].problems(body, msgspec.json.encode(body))
        callback = Callback(kind=kind, body=body if isinstance(body, dict) else {})
        if problems:
            await self._log(callback, "rejected")
            raise InvalidInput("The callback is not valid.", problems=problems, code="callback_invalid")
        await self._authorise(callback)
        return callback

    async def _authorise(self, callback: Callback) -> None:
        principal = self._caller.principal
        self._caller.engine.scope.require("callbacks:write")
        if principal.callback is not None:
            _check_bound(principal, callback)
            return
        if principal.tenant not in ("*", callback.text("tenant_id")):
            raise tenant_mismatch()
        if "admin" in principal.roles:
            await self._audit(principal, callback)
            return
        await self._check_owner(principal, callback)

    async def _check_owner(self, principal: Principal, callback: Callback) -> None:
        """Only the service that owns a step may answer for it."""
        engine = self._engine.scoped(tenant=callback.text("tenant_id"), actor=principal.actor)
        job = await engine.jobs.step_service(callback.text("jobId"), callback.text("stepId"))
        if principal.service is None or (job is not None and job != principal.service):
            raise NotPermitted(
                f"The key does not answer for step {callback.text('stepId')!r}.",
                code="not_the_owner",
                hint="use the directive's callback_token, or a key made with --role worker --service NAME",
            )

    async def _audit(self, principal: Principal, callback: Callback) -> None:
        note = AuditRow(
            tenant=callback.text("tenant_id"),
            at=self._engine.now_ms,
            actor=principal.actor,
            action="callback.sent",
            object_type="callback",
            object_id=callback.text("jobId"),
            reason=f"{callback.kind} of {callback.text('stepId')}",
        )
        await self._engine.registry.note(note)

    async def tell(self, callback: Callback) -> Verdict:
        """Brings the callback to its execution, and returns the verdict."""
        principal, body = self._caller.principal, callback.body
        engine = self._engine.scoped(tenant=callback.text("tenant_id"), actor=principal.actor, roles=["worker"])
        handle = engine.get(callback.text("jobId"))
        bound: Any = {
            "attempt": body["attempt_no"],
            "lease": body["lease_id"],
            "workspace": body.get("workspace_ref") or "",
        }
        try:
            if callback.kind == "ack":
                return await handle.acknowledge(body["stepId"], **bound)
            return await handle.answer(body["stepId"], **bound, **_answer(body))
        except NotFound:
            await self._log(callback, "unknown")
            return "unknown"
        except (InvalidInput, PayloadError) as error:
            await self._log(callback, "rejected")
            raise _rejected(error) from None

    async def _log(self, callback: Callback, verdict: Verdict) -> None:
        """Logs a callback on which no execution decides."""
        principal, body = self._caller.principal, callback.body
        error = body.get("error") if isinstance(body.get("error"), dict) else {}
        assert error is not None
        row = CallbackRow(
            id=self._engine.new_id(),
            execution=_short(body.get("jobId")),
            tenant=principal.tenant if principal.tenant != "*" else _short(body.get("tenant_id")),
            step=_short(body.get("stepId")),
            kind=callback.kind,
            attempt=_small(body.get("attempt_no")),
            lease_id=_short(body.get("lease_id")),
            status=_short(body.get("status")),
            error_class=_short(error.get("class")),
            error_code=_short(error.get("code")),
            verdict=verdict,
            actor=principal.actor,
            received_at=self._engine.now_ms,
        )
        await self._engine.jobs.note_callback(row)


def _check_bound(principal: Principal, callback: Callback) -> None:
    claims = principal.callback
    assert claims is not None
    body = callback.body
    said = (body["tenant_id"], body["jobId"], body["stepId"], body["attempt_no"], body["lease_id"])
    if said != (claims.tenant, claims.job, claims.step, claims.attempt, claims.lease):
        raise NotPermitted(
            "The callback token is for another attempt than the body names.",
            code="callback_mismatch",
            hint="send each directive's own token, with its jobId, stepId, tenant_id, attempt_no and lease_id",
        )


def _answer(body: dict[str, Any]) -> dict[str, Any]:
    if body["status"] == "SUCCEEDED":
        return {"result": body.get("result")}
    error = body.get("error") or {"class": "NON_RETRYABLE", "code": "failed_final"}
    final = body["status"] == "FAILED_FINAL"
    return {
        "error": summary(error.get("message") or f"the worker reported {body['status']}"),
        "error_class": "NON_RETRYABLE" if final else error["class"],
        "error_code": error["code"],
    }


def _rejected(error: TenutoError) -> InvalidInput:
    problems = getattr(error, "problems", ()) or [Problem("/result", error.code, error.message)]
    return InvalidInput("The callback is not valid.", problems=list(problems), code="callback_invalid")


def _short(value: object) -> str:
    """A field of a callback that was not valid, as far as it can be logged."""
    return value[:256] if isinstance(value, str) else ""


def _small(value: object) -> int:
    return value if type(value) is int and 0 <= value < 2**31 else 0
