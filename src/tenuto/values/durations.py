"""Converts durations such as `"5s"` to whole milliseconds."""

import math
import re
from datetime import timedelta
from typing import TypeAlias

Duration: TypeAlias = str | float | timedelta

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")
_TEXTS = 'write "200ms", "5s", "10m", "24h" or "2d"'
_FORMS = f"{_TEXTS}, or give a timedelta or a number of seconds"


def milliseconds(duration: Duration) -> int:
    """Returns whole milliseconds: `"1.5s"`, `timedelta(seconds=1.5)` and `1.5` are 1500."""
    if isinstance(duration, str):
        amount = _of_text(duration)
    elif isinstance(duration, timedelta):
        amount = duration / timedelta(milliseconds=1)
    elif type(duration) in (int, float):  # excludes bool
        amount = duration * 1_000
    else:
        raise ValueError(f"a {type(duration).__name__} is not a duration: {_FORMS}")
    return _whole(amount, duration)


def patience(duration: Duration) -> int:
    """Converts a timeout to milliseconds. A remainder below one millisecond is rounded up to one."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    return 1 if isinstance(seconds, float) and 0 < seconds < 0.001 else milliseconds(duration)


def _of_text(text: str) -> float:
    compact = text.strip().replace(" ", "")
    if not _WHOLE.fullmatch(compact):
        raise ValueError(f"{text!r} is not a duration: {_TEXTS}")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(compact))


def _whole(amount: float, duration: object) -> int:
    if not math.isfinite(amount):
        raise ValueError("a duration must be finite")
    if amount < 0:
        raise ValueError(f"{duration!r} is negative, and a duration cannot be")
    whole = round(amount)
    if whole == 0 and amount > 0:
        raise ValueError(f"{duration!r} is shorter than a millisecond, the shortest there is")
    return whole
