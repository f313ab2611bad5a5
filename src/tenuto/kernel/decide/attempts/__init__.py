"""Decides reports on attempts: success, another attempt, a probe, a review, or a failure that moves up."""

from .dispatch import acked, begun, dispatch_refused, dispatched
from .forward import time_out
from .losses import lost, returned, taken
from .reports import reported
from .steps import fail_step, go_on, grant_probe, mark_of, open_review, step_disposition, try_again

__all__ = [
    "acked",
    "begun",
    "dispatch_refused",
    "dispatched",
    "fail_step",
    "go_on",
    "grant_probe",
    "lost",
    "mark_of",
    "open_review",
    "reported",
    "returned",
    "step_disposition",
    "taken",
    "time_out",
    "try_again",
]
