"""Parses rates such as `"14/s"`, `"100/m"` and `"100/10s"` to a count and a period in milliseconds."""

from tenuto.errors import InvalidInput

from .durations import milliseconds

_PERIODS_MS = {"s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))


def parse_rate(text: str) -> tuple[int, int]:
    number, _, period = text.replace(" ", "").partition("/")
    try:
        period_ms = _PERIODS_MS[period] if period in _PERIODS_MS else milliseconds(period)
        count = int(number)
    except ValueError:
        count = period_ms = 0
    if count < 1 or period_ms < 1:
        raise InvalidInput.at("/rate", "rate", f'{text!r} is not a rate: write "14/s", "100/m" or "100/10s"')
    return count, period_ms


def rate_text(count: int, period_ms: int) -> str:
    unit, length = next((unit, length) for unit, length in _UNITS if period_ms % length == 0)
    number = period_ms // length
    return f"{count}/{unit if number == 1 and unit != 'ms' else f'{number}{unit}'}"
