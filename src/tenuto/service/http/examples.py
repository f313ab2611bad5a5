"""Examples for the OpenAPI document: one answer of each shape, and one problem of each status."""

from collections.abc import Mapping
from typing import Any

ID = "01k9wq3z5n8r4t6v7x8y9z0a1b"
_AT, _LATER = "2026-01-15T09:30:00.000Z", "2026-01-15T09:30:01.250Z"
_HASH = "9f2c1d64a7b80e35f1c4d2937ae6b05849c3e1f7206d8ab45e9173c0f2d86b1a"

_STEP = {
    "step_id": "approve",
    "path": "approve@1",
    "type": "human_approval",
    "status": "awaiting_approval",
    "attempts": 0,
    "error": None,
    "retry_at": None,
    "review_id": f"{ID}.3",
    "compensation": "none",
    "progress": None,
    "clones": None,
}
_BLOCKED = {
    "reason": "approval",
    "review_id": f"{ID}.3",
    "since": _LATER,
    "waiting_for": "a person's decision on step 'approve'",
    "next_check": None,
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
_AUDIT = {
    "action": "execution.started",
    "actor": "key:shop:4fK2mQ9xLp",
    "at": _AT,
    "tenant": "acme",
    "object_type": "execution",
    "object_id": ID,
    "reason": "",
    "hash": _HASH,
}

_ACTED = {"pending": [], "refused": [], "chosen": [], "remaining": 0, "next_cursor": None}
SHAPES: dict[str, Any] = {
    "DefinitionSummary": {
        "definition_id": "invoice-approval",
        "name": "invoice-approval",
        "version": 1,
        "status": "published",
        "hash": _HASH,
        "created_at": _AT,
        "published_at": _LATER,
    },
    "Validation": {
        "valid": False,
        "errors": [{"pointer": "/steps/1/on_success", "code": "unknown_step", "message": "there is no step 'payy'"}],
        "missing_handlers": [],
    },
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
        "steps": [_STEP],
    },
    "ExecutionSummary": {**_SUMMARY, "error_class": None},
    "StepDocument": _STEP,
    "AttemptRow": {
        "step_execution_id": f"{ID}/pay@1/1",
        "execution_id": ID,
        "step_id": "pay",
        "path": "pay@1",
        "kind": "forward",
        "status": "succeeded",
        "attempt_number": 1,
        "generation": 1,
        "run": 1,
        "started_at": _AT,
        "finished_at": _LATER,
        "worker": "worker-1",
        "error_class": None,
        "error_code": None,
        "error_summary": None,
        "retry_after_at": None,
        "idempotency_key": _HASH,
        "result": {"status": 200},
        "logs_ref": None,
    },
    "ReviewRow": {
        "id": f"{ID}.3",
        "kind": "approval",
        "execution_id": ID,
        "step_id": "approve",
        "path": "approve@1",
        "reason": "",
        "permission": "invoices:approve",
        "opened_at": _LATER,
        "due_at": None,
        "state": "open",
        "requests": [],
    },
    "DeadLetterRow": {
        "id": f"{ID}.9",
        "execution_id": ID,
        "step_id": "pay",
        "path": "pay@1",
        "error_class": "NON_RETRYABLE",
        "error_summary": "the account is closed",
        "attempts": 1,
        "created_at": _LATER,
        "state": "open",
        "requests": [],
    },
    "AuditDocument": _AUDIT,
    "AuditRecord": {**_AUDIT, "n": 1042},
    "WorkerRow": {
        "id": "01k9wq3z5n8r4t6v7x8y9z0w00",
        "worker": "worker-1",
        "build": "",
        "queues": ["default"],
        "started_at": _AT,
        "expires_at": _LATER,
        "executions": 12,
    },
    "LimitRow": {"name": "ses", "rate": "14/s", "concurrency": 20, "running": 3, "waiting": 0},
    "TenantLimitRow": {"tenant": "acme", "max_in_flight": 500, "in_flight": 12},
    "Schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"},
    "Reprocessed": {
        "reprocessed": [f"{ID}.9"],
        "pending": [],
        "next_cursor": None,
        "refused": [{"id": f"{ID}.12", "code": "forbidden", "detail": "This needs the permission `effects:again`."}],
    },
    "Canceled": {**_ACTED, "canceled": [ID]},
    "Retried": {**_ACTED, "retried": [ID]},
    "Counts": {"counts": {"running": 12, "succeeded": 340}},
    "Statuses": {"statuses": {ID: "waiting_approval"}},
    "Verified": {"tenant": "acme", "rows": 1042, "head": _HASH, "broken_at": None, "cut": False},
}

PROBLEMS: dict[int, dict[str, Any]] = {
    400: {"code": "malformed", "detail": "The body is not JSON."},
    401: {"code": "unauthenticated", "detail": "The API key is not valid."},
    403: {"code": "forbidden", "detail": "This needs the permission `executions:write`."},
    404: {"code": "not_found", "detail": f"There is no execution '{ID}'."},
    408: {"code": "request_timeout", "detail": "The request took too long to arrive."},
    409: {"code": "invalid_transition", "detail": "The execution is succeeded: it cannot be paused."},
    413: {"code": "too_large", "detail": "A body has at most 1,048,576 bytes."},
    415: {"code": "unsupported_media_type", "detail": "Bodies are JSON: `Content-Type: application/json`."},
    422: {"code": "input_invalid", "detail": "The input does not fit what the definition asks for."},
    429: {"code": "rate_exceeded", "detail": "There were too many requests in too short a time."},
    503: {"code": "storage_error", "detail": "PostgreSQL cannot be reached."},
}


def example_of(schema: Mapping[str, Any]) -> Any:
    """Of an answer with this schema, which names a shape or is a page of some; None if there is none."""
    if "$ref" in schema:
        return SHAPES.get(schema["$ref"].rpartition("/")[2])
    items = schema.get("properties", {}).get("items")
    if items is None:
        return None
    first, *_ = items["items"].get("anyOf", [items["items"]])
    return {"items": [example_of(first)], "next_cursor": None}
