"""What is recorded of an attempt that failed, or did not answer."""

from tenuto.kernel.events import Failure
from tenuto.kernel.facts import Failed, Outcome, Pending


def wanted_delay(outcome: Outcome) -> int | None:
    """How long it asks to be left alone."""
    return outcome.retry_after_ms if isinstance(outcome, Failed | Pending) else None


def failure_of(outcome: Outcome, path: str, who: str) -> Failure:
    if isinstance(outcome, Failed):
        return Failure(outcome.error_class, outcome.code, outcome.summary, path)
    return Failure("TRANSIENT", "attempt_timeout", f"no answer from the {who} in time", path)
