"""Definitions that the tests of the service draft."""

from typing import Any


def flow(name: str = "flow", version: int = 1, **changes: Any) -> dict[str, Any]:
    """One person, then one call of a function."""
    return {
        "name": name,
        "version": version,
        "input_schema": {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "integer"}}},
        "steps": [
            {"step_id": "ok", "type": "human_approval", "on_success": "pay"},
            {"step_id": "pay", "type": "task", "handler": "pay", "idempotency_strategy": "SAFE_TO_RETRY"},
        ],
        **changes,
    }


def simple(definition: str = "simple", version: int = 1, handler: str = "pay", **changes: Any) -> dict[str, Any]:
    step = {"step_id": "pay", "type": "task", "handler": handler, "idempotency_strategy": "SAFE_TO_RETRY"}
    return {"name": definition, "version": version, "steps": [{**step, **changes}]}
