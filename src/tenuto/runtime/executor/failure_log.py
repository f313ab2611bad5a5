"""The log of failed attempts, for engines without telemetry: one warning each, on a logger below `tenuto`."""

import logging

from tenuto.kernel import facts as f
from tenuto.kernel.definition import plain_name

from .attempt import Attempt

logger = logging.getLogger("tenuto.executions")


def log_failure(attempt: Attempt, failure: f.Failed) -> None:
    """Logs the error and where it was raised. The text has the ids, too: by default Python prints nothing else."""
    state, ref = attempt.state, attempt.ref
    definition = plain_name(state.plan.definition.name)
    logger.warning(
        "Attempt %d of step %r failed, execution %s of %s: %s (%s)%s",
        ref.number,
        ref.path,
        state.id,
        definition,
        failure.summary or failure.code,
        failure.error_class,
        f"\n{failure.trace}" if failure.trace else "",
        extra={
            "action": "attempt_failed",
            "execution_id": state.id,
            "definition": definition,
            "version": state.plan.definition.version,
            "tenant": state.tenant,
            "correlation_id": state.correlation_id,
            "step_id": attempt.role.node.id,
            "path": ref.path,
            "phase": ref.phase,
            "attempt": ref.number,
            "error_class": failure.error_class,
            "error_code": failure.code,
        },
    )
