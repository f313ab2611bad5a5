"""Warnings about attempts, on a logger below `tenuto`. Each text has the ids: by default Python prints nothing else."""

import logging

from tenuto.kernel import facts as f
from tenuto.kernel.definition import plain_name

from .attempt import Attempt

logger = logging.getLogger("tenuto.executions")


def log_failure(attempt: Attempt, failure: f.Failed) -> None:
    """Logs the error and where it was raised, for engines without telemetry."""
    state, ref = attempt.state, attempt.ref
    logger.warning(
        "Attempt %d of step %r failed, execution %s of %s: %s (%s)%s",
        ref.number,
        ref.path,
        state.id,
        plain_name(state.plan.definition.name),
        failure.summary or failure.code,
        failure.error_class,
        f"\n{failure.trace}" if failure.trace else "",
        extra={
            "action": "attempt_failed",
            **_ids(attempt),
            "error_class": failure.error_class,
            "error_code": failure.code,
        },
    )


def log_blocked_loop(attempt: Attempt, seconds: float) -> None:
    """Logs that an async handler stopped everything else in its process."""
    logger.warning(
        "Step %r of %s blocked the event loop for %.1f s, execution %s: nothing else in this process could run. "
        "Make the handler a plain `def`, which runs in a thread, or use `asyncio.to_thread` for the call that blocks.",
        attempt.ref.path,
        plain_name(attempt.state.plan.definition.name),
        seconds,
        attempt.state.id,
        extra={"action": "event_loop_blocked", **_ids(attempt), "blocked_ms": round(seconds * 1_000)},
    )


def _ids(attempt: Attempt) -> dict[str, object]:
    state, ref = attempt.state, attempt.ref
    return {
        "execution_id": state.id,
        "definition": plain_name(state.plan.definition.name),
        "version": state.plan.definition.version,
        "tenant": state.tenant,
        "correlation_id": state.correlation_id,
        "step_id": attempt.role.node.id,
        "path": ref.path,
        "phase": ref.phase,
        "attempt": ref.number,
    }
