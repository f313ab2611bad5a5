"""Examples for the OpenAPI document, as a real service returns them.

One invoice waits for approval. Another was rejected and left a dead letter.
"""

import json
from collections.abc import Mapping
from typing import Any

DEFINITION: dict[str, Any] = {
    "name": "invoice-approval",
    "version": 1,
    "input_schema": {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "integer"}}},
    "steps": [
        {"step_id": "approve", "type": "human_approval", "timeout_ms": 3_600_000, "on_success": "tell"},
        {"step_id": "tell", "type": "notify", "handler": "log", "with": {"message": "${input.amount} may be paid"}},
    ],
}
ID = "1a1e1c763e38d8d06329bb"
_REJECTED = "1a1e1c8a02b7d8d06329bc"
_AT, _LATER, _DUE = "2026-01-15T09:30:00.000Z", "2026-01-15T09:45:01.250Z", "2026-01-15T10:30:00.000Z"
_PAUSED_UNTIL = "2026-01-22T09:45:01.250Z"
_HASH = "9f2c1d64a7b80e35f1c4d2937ae6b05849c3e1f7206d8ab45e9173c0f2d86b1a"
_ACTOR = "key:shop:4fK2mQ9xLp"
_COMMENT = "compared with the order"

_REJECTION = {"error_class": "NON_RETRYABLE", "code": "rejected", "summary": _COMMENT, "step_id": "approve"}


def _step(step_id: str, kind: str, status: str, **more: Any) -> dict[str, Any]:
    return {
        "step_id": step_id,
        "path": step_id if status in ("pending", "skipped") else f"{step_id}@1",
        "type": kind,
        "status": status,
        "attempts": 0,
        "error": None,
        "retry_at": None,
        "review_id": None,
        "compensation": "none",
        "progress": None,
        "clones": None,
        **more,
    }


def _steps(approve: str, tell: str, **of_approve: Any) -> list[dict[str, Any]]:
    return [_step("approve", "human_approval", approve, **of_approve), _step("tell", "notify", tell)]


_WAITING = _steps("awaiting_approval", "pending", review_id=f"{ID}.2")
_BLOCKED = {
    "reason": "approval",
    "review_id": f"{ID}.2",
    "since": _AT,
    "waiting_for": "approve",
    "next_check": _DUE,
    "commands": ["approve", "reject", "cancel"],
}
_SUMMARY = {
    "execution_id": ID,
    "definition_id": "invoice-approval",
    "definition_version": 1,
    "status": "waiting_approval",
    "tenant_id": "acme",
    "target_object_type": "Invoice",
    "target_object_id": "inv-42",
    "correlation_id": "c-7",
    "started_at": _AT,
    "completed_at": None,
}
_DEFINED = {
    "definition_id": "invoice-approval",
    "name": "invoice-approval",
    "version": 1,
    "status": "published",
    "hash": _HASH,
    "created_at": _AT,
    "published_at": _AT,
}
_AUDIT = {
    "action": "execution.started",
    "actor": _ACTOR,
    "at": _AT,
    "tenant": "acme",
    "object_type": "execution",
    "object_id": ID,
    "reason": "",
    "hash": _HASH,
}

_ACTED = {"pending": [], "refused": [], "chosen": [], "remaining": 0, "next_cursor": None}
_GRAPH_NODE: dict[str, Any] = {
    "id": "approve",
    "path": "approve@1",
    "scope": "",
    "kind": "step",
    "name": "approve",
    "step_type": "human_approval",
    "status": "awaiting_approval",
    "phase": "forward",
    "attempts": 0,
    "started_at": _AT,
    "ended_at": None,
    "clones": None,
    "error": None,
    "blocked": "approval",
    "compensation_status": None,
}

_REVIEW: dict[str, Any] = {
    "id": f"{ID}.2",
    "kind": "approval",
    "execution_id": ID,
    "step_id": "approve",
    "path": "approve@1",
    "reason": "approval",
    "permission": "",
    "opened_at": _AT,
    "due_at": _DUE,
    "state": "open",
    "requests": [],
}

SHAPES: dict[str, Any] = {
    "Definition": {**DEFINITION, **_DEFINED},
    "DefinitionSummary": _DEFINED,
    "Validation": {"valid": True, "errors": [], "missing_handlers": []},
    "ExecutionDocument": {
        **_SUMMARY,
        "phase": "forward",
        "input": {"amount": 1200},
        "output": None,
        "outcome": "",
        "error": None,
        "cancelled_at": None,
        "duration_ms": None,
        "idempotency_key": "invoice-42",
        "attempt_count": 1,
        "cancel_requested": False,
        "pause_reason": None,
        "blocked": _BLOCKED,
        "steps": _WAITING,
    },
    "ExecutionSummary": {**_SUMMARY, "error_class": None},
    "StepDocument": _WAITING[0],
    "GraphDocument": {
        "seq": 2,
        "nodes": [
            _GRAPH_NODE,
            {
                **_GRAPH_NODE,
                "id": "tell",
                "path": "tell",
                "name": "tell",
                "step_type": "notify",
                "status": "pending",
                "started_at": None,
                "blocked": None,
            },
        ],
        "scopes": [{"path": "", "parent": None, "mode": "flow", "status": "running", "label": ""}],
        "edges": [{"from": "approve", "to": "tell", "kind": "success"}],
    },
    "AttemptRow": {
        "step_execution_id": f"{ID}/tell@1/forward/1",
        "execution_id": ID,
        "step_id": "tell",
        "path": "tell@1",
        "kind": "forward",
        "status": "succeeded",
        "attempt_number": 1,
        "generation": 1,
        "run": 1,
        "started_at": _LATER,
        "finished_at": _LATER,
        "worker": "worker-1",
        "error_class": None,
        "error_code": None,
        "error_summary": None,
        "retry_after_at": None,
        "idempotency_key": _HASH,
        "result": None,
        "logs_ref": None,
        "error_trace": None,
        "look_up_at": None,
        "answer": None,
        "override": None,
    },
    "EventDocument": {
        "seq": 2,
        "at": _AT,
        "type": "review",
        "actor": _ACTOR,
        "cause": None,
        "epoch": 1,
        "data": {
            "id": f"{ID}.2",
            "kind": "approval",
            "path": "approve@1",
            "reason": "approval",
            "permission": "",
            "due_at": 1_768_473_000_000,
            "failure": None,
            "attempts": 0,
        },
        "grants": [],
    },
    "ReviewRow": _REVIEW,
    "DeadLetterRow": {
        "id": f"{_REJECTED}.5",
        "execution_id": _REJECTED,
        "step_id": "approve",
        "path": "approve@1",
        "error_class": "NON_RETRYABLE",
        "error_summary": _COMMENT,
        "attempts": 0,
        "created_at": _LATER,
        "state": "open",
        "requests": [],
    },
    "AuditDocument": _AUDIT,
    "AuditRecord": {**_AUDIT, "n": 5},
    "WorkerRow": {
        "id": "1a1e1c5446c80c6aefc871",
        "worker": "worker-1",
        "build": "",
        "queues": ["default"],
        "started_at": _AT,
        "expires_at": _LATER,
        "executions": 12,
    },
    "IdentityDocument": {
        "actor": _ACTOR,
        "tenant": "acme",
        "roles": ["approver"],
        "permissions": [
            "approvals:write",
            "credits:read",
            "definitions:read",
            "dlq:read",
            "executions:read",
            "reviews:read",
            "runs:read",
        ],
        "version": "0.1.0",
        "csrf_token": _HASH,
        "expires_at": _DUE,
        "method": "session",
    },
    "SessionDocument": {
        "id": "7pQ2mK9xLf",
        "actor": _ACTOR,
        "roles": ["approver"],
        "created_at": _AT,
        "last_used_at": _AT,
        "expires_at": _DUE,
        "current": True,
    },
    "OverviewDocument": {
        "at": _LATER,
        "counted_to": 10_000,
        "counts": {
            "running": 0,
            "waiting_approval": 1,
            "paused": 0,
            "succeeded": 0,
            "failed": 0,
            "canceled": 0,
        },
        "reviews": {
            "open": {"approval": 1, "compensation": 0, "compensation_failed": 0, "indeterminate": 0, "escalation": 0},
            "due": [_REVIEW],
        },
        "dlq": {"open": 0},
        "oldest_due": None,
        "workers": None,
        "queues": [],
    },
    "LimitRow": {"name": "ses", "rate": "14/s", "concurrency": 20, "running": 3, "waiting": 0},
    "TenantLimitRow": {"tenant": "acme", "max_in_flight": 500, "in_flight": 12},
    "Schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"},
    "Reprocessed": {"reprocessed": [f"{_REJECTED}.5"], "pending": [], "refused": [], "next_cursor": None},
    "Canceled": {**_ACTED, "canceled": [ID]},
    "Retried": {**_ACTED, "retried": [_REJECTED]},
    "Counts": {"counts": {"failed": 1, "waiting_approval": 1}},
    "Statuses": {"statuses": {ID: "waiting_approval"}},
    "Verified": {"tenant": "acme", "rows": 12, "head": _HASH, "broken_at": None, "cut": False},
}
_ENDED = {"phase": "finished", "completed_at": _LATER, "duration_ms": 901_250, "blocked": None}
_AGAIN = {
    "execution_id": _REJECTED,
    "attempt_count": 2,
    "blocked": {**_BLOCKED, "review_id": f"{_REJECTED}.9", "since": _LATER},
    "steps": _steps("awaiting_approval", "pending", review_id=f"{_REJECTED}.9"),
}
# Fields that the operation changes.
_AFTER: dict[str, dict[str, Any]] = {
    "draft_definition": {"status": "draft", "published_at": None},
    "replace_definition": {"status": "draft", "published_at": None},
    "deprecate_definition": {"status": "deprecated"},
    "pause_execution": {
        "status": "paused",
        "pause_reason": "the books are closed",
        "blocked": {
            "reason": "paused",
            "review_id": None,
            "since": _LATER,
            "waiting_for": "the books are closed",
            "next_check": _PAUSED_UNTIL,
            "commands": ["resume", "approve", "reject", "cancel"],
        },
    },
    "approve_step": {"status": "running", "blocked": None, "steps": _steps("succeeded", "running")},
    "reject_step": {
        **_ENDED,
        "status": "failed",
        "error": _REJECTION,
        "steps": _steps("failed", "skipped", error=_REJECTION),
    },
    "cancel_execution": {
        **_ENDED,
        "status": "canceled",
        "cancelled_at": _LATER,
        "steps": _steps("canceled", "skipped"),
    },
    "retry_execution": _AGAIN,
    "retry_step": _AGAIN,
    "resolve_review": {"state": "resolved"},
    "get_dead_letter": {"error_trace": None},
    "reprocess_dead_letter": {"state": "resolved"},
    "discard_dead_letter": {"state": "resolved"},
}
_EVENT = SHAPES["EventDocument"]
STREAM = (
    f"id: {_EVENT['seq']}\nevent: {_EVENT['type']}\ndata: {json.dumps(_EVENT, separators=(',', ':'))}\n\n"
    f'event: end\ndata: {{"execution_id":"{ID}","status":"waiting_approval"}}\n\n'
)

_STATUS = {
    "execution_id": ID,
    "definition_id": "invoice-approval",
    "definition_version": 1,
    "status": "running",
    "seq": 4,
    "at": _LATER,
    "started_at": _AT,
    "completed_at": None,
    "error_class": None,
}
FEED = (
    f"event: event\ndata: {json.dumps({'execution_id': ID, **_EVENT}, separators=(',', ':'))}\n\n"
    f"id: 1204-4\nevent: status\ndata: {json.dumps(_STATUS, separators=(',', ':'))}\n\n"
)

PROBLEMS: dict[int, dict[str, Any]] = {
    400: {"code": "malformed", "detail": "The body is not JSON."},
    401: {"code": "unauthenticated", "detail": "The API key is not valid."},
    403: {"code": "forbidden", "detail": "This needs the permission `executions:write`."},
    404: {"code": "not_found", "detail": f"There is no execution '{ID}'."},
    408: {"code": "request_timeout", "detail": "The request took too long to arrive."},
    409: {"code": "invalid_transition", "detail": "The execution is succeeded: it cannot be paused."},
    413: {"code": "too_large", "detail": "A body has at most 1,048,576 bytes."},
    415: {"code": "unsupported_media_type", "detail": "The body must be JSON: send `Content-Type: application/json`."},
    422: {"code": "input_invalid", "detail": "The input does not fit what the definition asks for."},
    429: {"code": "rate_exceeded", "detail": "Too many requests."},
    503: {"code": "storage_error", "detail": "PostgreSQL cannot be reached."},
}


def example_of(operation: str, schema: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
    """Of an answer with this schema, which names a shape or is a page of some; None if there is none."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        found = own.get(name) or SHAPES.get(name)
        return {**found, **_AFTER[operation]} if found is not None and operation in _AFTER else found
    items = schema.get("properties", {}).get("items")
    if items is None:
        return None
    first, *_ = items["items"].get("anyOf", [items["items"]])
    return {"items": [example_of(operation, first, own)], "next_cursor": None}


def example_of_body(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """Of a request: of each field that has an example, that. What names no shape is a definition."""
    for part in (schema, *schema.get("anyOf", ())):
        if "$ref" in part:
            fields = schemas[part["$ref"].rpartition("/")[2]].get("properties", {})
            return {name: field["examples"][0] for name, field in fields.items() if field.get("examples")}
    return DEFINITION
