"""What the OpenAPI document says of the command gateway: schemas, and one job as the example."""

from typing import Any, Final

import msgspec

from tenuto.views.jobs import CallbackDocument, JobAttemptDocument, JobDocument, JobStepDocument, JobSummary

from .callbacks import ACK, RESULT
from .envelope import ENVELOPE

_REF: Final = "#/components/schemas/{name}"
_SHAPES: Final = (JobSummary, JobDocument, JobStepDocument, JobAttemptDocument, CallbackDocument)
ID: Final = "1a1e1c763e38d8d06329bb"
_AT, _LATER, _DUE = "2026-01-15T09:30:00.000Z", "2026-01-15T09:45:01.250Z", "2026-01-15T09:45:31.250Z"
_OCR, _EMBEDDING = "7d0c0c2f1b6a4c0f9d3e5a7b8c9d0e1f", "a93e4f5061728394a5b6c7d8e9f00112"
_WORKSPACE: Final = "s3://docs/acme/w/1"


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


_TEXT: dict[str, Any] = {"type": "string"}
_COUNT: dict[str, Any] = {"type": "integer"}
_TIME: dict[str, Any] = {"type": "string", "format": "date-time"}
_MESSAGE = _object(
    id=_TEXT,
    lock_token=_TEXT,
    locked_until=_TIME,
    delivery_count=_COUNT,
    topic=_TEXT,
    directive={"type": "object", "description": "what the worker is to do; the guide on commands has its fields"},
)
_TOPIC = _object(
    topic=_TEXT,
    service=_TEXT,
    waiting=_COUNT,
    locked=_COUNT,
    dead_letters=_COUNT,
    oldest_at={"type": ["string", "null"], "format": "date-time"},
)


def schemas() -> dict[str, Any]:
    """The schemas of requests and responses, by name."""
    _, shapes = msgspec.json.schema_components(_SHAPES, ref_template=_REF)
    return {
        **shapes,
        "Command": ENVELOPE,
        "Ack": ACK,
        "Result": RESULT,
        "CommandAccepted": _object(jobId=_TEXT, status=_TEXT, replayed={"type": "boolean"}),
        "CallbackAnswer": _object(
            applied={"type": "boolean"},
            verdict={"type": ["string", "null"], "description": "null if the verdict is not known yet"},
        ),
        "JobAttempts": _object(items={"type": "array", "items": {"$ref": _REF.format(name="JobAttemptDocument")}}),
        "BusMessages": _object(messages={"type": "array", "items": _MESSAGE}),
        "BusTopics": _object(topics={"type": "array", "items": _TOPIC}),
    }


def _step(step_id: str, step_type: str, service: str, status: str, lease: str | None) -> dict[str, Any]:
    return {
        "job_id": ID,
        "step_id": step_id,
        "step_type": step_type,
        "service": service,
        "status": status,
        "attempt_no": 0 if lease is None else 1,
        "lease_id": lease,
        "lane": 8,
        "routing_key_used": "acmedoc-42",
        "workspace_ref": None if lease is None else _WORKSPACE,
        "error": None,
    }


_SUMMARY: Final[dict[str, Any]] = {
    "job_id": ID,
    "tenant_id": "acme",
    "protocol_id": "ingest",
    "protocol_version": 1,
    "request_type": "document.ingest",
    "status": "IN_PROGRESS",
    "current_step_id": "embedding",
    "created_at": _AT,
    "updated_at": _LATER,
    "ended_at": None,
    "correlation_id": "case-7",
    "mode": "BURST",
    "doc_id": "doc-42",
    "input_ref": "s3://docs/acme/42.pdf",
    "output_ref": "s3://docs/acme/out/42",
    "lane": 8,
    "routing_key_used": "acmedoc-42",
    "blocked": {"reason": "callback", "waiting_for": "embedding"},
    "error": None,
}
_ATTEMPT: Final[dict[str, Any]] = {
    "job_id": ID,
    "step_id": "ocr",
    "attempt_no": 1,
    "lease_id": _OCR,
    "status": "SUCCEEDED",
    "lane": 8,
    "routing_key_used": "acmedoc-42",
    "workspace_ref": _WORKSPACE,
    "created_at": _AT,
    "published_at": _AT,
    "acked_at": _AT,
    "ended_at": _LATER,
    "error": None,
}
EXAMPLES: Final[dict[str, Any]] = {
    "CommandAccepted": {"jobId": ID, "status": "QUEUED", "replayed": False},
    "CallbackAnswer": {"applied": True, "verdict": "applied"},
    "JobSummary": _SUMMARY,
    "JobDocument": {
        **_SUMMARY,
        "steps": [
            _step("ocr", "OCR", "ocr", "SUCCEEDED", _OCR),
            _step("embedding", "EMBEDDING", "embedding", "INITIATED", _EMBEDDING),
            _step("sis", "SIS", "sis", "PENDING", None),
        ],
    },
    "JobAttempts": {"items": [_ATTEMPT]},
    "CallbackDocument": {
        "id": "1a1e1c8a02b7d8d06329bc",
        "job_id": ID,
        "step_id": "ocr",
        "kind": "result",
        "attempt_no": 1,
        "lease_id": _OCR,
        "status": "SUCCEEDED",
        "error": None,
        "verdict": "applied",
        "actor": "service:ocr",
        "received_at": _LATER,
    },
    "BusMessages": {
        "messages": [
            {
                "id": f"{ID}/embedding/1/{_EMBEDDING}",
                "lock_token": "5f2c9d0e1b3a47c65f2c9d0e1b3a47c6",
                "locked_until": _DUE,
                "delivery_count": 1,
                "topic": "global-bus-p8",
                "directive": {"jobId": ID, "stepId": "embedding", "attempt_no": 1, "payload": {"model": "small"}},
            }
        ]
    },
    "BusTopics": {
        "topics": [
            {
                "topic": "global-bus-p8",
                "service": "embedding",
                "waiting": 1,
                "locked": 0,
                "dead_letters": 0,
                "oldest_at": _LATER,
            }
        ]
    },
}
