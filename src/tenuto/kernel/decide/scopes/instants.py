"""How long a wait lasts, or until when: durations and points in time as an author's template gives them."""

import re

from tenuto.errors import ExpressionError
from tenuto.kernel.definition import JSON


def milliseconds(value: JSON) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ExpressionError("`duration_ms` must be a number of milliseconds, not below zero", code="bad_duration")
    return int(value)


def instant_ms(value: JSON) -> int:
    """A point in time: milliseconds since 1970, or RFC 3339 text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value)
    parsed = _parse_rfc3339(value) if isinstance(value, str) else None
    if parsed is None:
        raise ExpressionError("`until` must be milliseconds since 1970 or an RFC 3339 time", code="bad_time")
    return parsed


_RFC3339 = re.compile(r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d\d):(\d\d))")


def _parse_rfc3339(text: str) -> int | None:
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    # Days since 1970-01-01 of a date of the Gregorian calendar, counting years from March.
    march_year = year - (month <= 2)
    era, of_era = divmod(march_year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    offset = 0
    if match[8] is not None:
        offset = (int(match[9]) * 60 + int(match[10])) * (1 if match[8] == "+" else -1)
    fraction = int((match[7] or "0").ljust(3, "0")[:3])
    return ((days * 24 + hour) * 60 + minute - offset) * 60_000 + second * 1_000 + fraction
