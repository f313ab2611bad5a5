"""Validates the ranges of numbers. Every bound prevents an endless wait or an overflow."""

from collections.abc import Iterator

import msgspec

from tenuto.errors import Problem
from tenuto.kernel.definition import DAY, FAN_OUT_LIMIT, JSON

MAX_DURATION = 100 * 365 * DAY

Ranges = dict[str, tuple[float, float]]

MOST = (1 << 31) - 1
_TIME = (1, MAX_DURATION)
_COUNT = (1, 10_000)
_LIMIT = (0, FAN_OUT_LIMIT)
_PLANNER_RANGES: Ranges = {"max_children": _COUNT, "max_replans": (0, 10_000)}
RETRY_RANGES: Ranges = {
    "max_attempts": _COUNT,
    "initial_delay_ms": (0, MAX_DURATION),
    "max_delay_ms": (0, MAX_DURATION),
    "jitter": (0, 1),
    "timeout_ms": _TIME,
}
STEP_RANGES: Ranges = {
    "max_concurrency": _LIMIT,
    "timeout_ms": _TIME,
    "reconcile_timeout_ms": _TIME,
    "compensation_max_attempts": _COUNT,
    "compensation_backoff_ms": (0, MAX_DURATION),
    "compensation_timeout_ms": _TIME,
    "max_visits": _COUNT,
    "ack_timeout_ms": _TIME,
    "result_timeout_ms": _TIME,
    "estimate": (0, (1 << 53) - 1),
}
SCOPE_RANGES: Ranges = {
    "max_concurrency": _LIMIT,
    "max_rounds": _COUNT,
    "timeout_ms": _TIME,
    "max_visits": _COUNT,
    **_PLANNER_RANGES,
}
POLICY_RANGES: Ranges = {
    "timeout_ms": _TIME,
    "pending_timeout_ms": _TIME,
    "pause_limit_ms": _TIME,
    "max_concurrency": _LIMIT,
    "max_rounds": _COUNT,
    "retry_budget": (0, 10_000),
    **_PLANNER_RANGES,
}
RUN_RANGES: Ranges = {
    "max_attempts": _COUNT,
    "resume_timeout_ms": _TIME,
    "retry_timeout_ms": _TIME,
    "heartbeat_timeout_ms": _TIME,
    "planner_estimate": (0, (1 << 53) - 1),
}
ESCALATION_RANGES: Ranges = {"errors": _COUNT, "window_ms": _TIME, "error_rate": (0, 1), "min_sample": _COUNT}


def check_ranges(spec: msgspec.Struct, pointer: str, ranges: Ranges) -> Iterator[Problem]:
    for field, (least, most) in ranges.items():
        value = getattr(spec, field)
        if value is not None and not is_within(value, least, most):
            yield Problem(f"{pointer}/{field}", "out_of_range", f"it is {value}, and must be {between(least, most)}")


def is_within(value: JSON, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def between(least: float, most: float) -> str:
    return f"at least {least}" if most == MAX_DURATION else f"between {least} and {most}"
