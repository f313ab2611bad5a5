"""Definitions with one step, which calls a built-in handler."""

from typing import Any

from tenuto import Engine, SagaResult

RUNTIMES = ["memory", "sqlite"]


def document(handler: str, given: dict[str, Any] | str, **fields: Any) -> dict[str, Any]:
    step = {
        "step_id": "work",
        "type": "external_call",
        "handler": handler,
        "with": given,
        "idempotency_strategy": "SAFE_TO_RETRY",
        "retry_policy": {"max_attempts": 1, "initial_delay_ms": 1, "max_delay_ms": 1},
        **fields,
    }
    return {"name": "one", "version": 1, "steps": [step]}


async def run(
    engine: Engine, handler: str, given: dict[str, Any] | str, input: object = None, **fields: Any
) -> SagaResult[Any]:
    await engine.apply(document(handler, given, **fields))
    return await engine.execute("one", input or {})
