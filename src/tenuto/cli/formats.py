"""What people read: times, lengths of time, signs and colours of statuses."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from .printer import Cell

SIGNS = {
    "pending": "·",
    "running": "▶",
    "waiting": "…",
    "retrying": "↻",
    "awaiting_approval": "?",
    "succeeded": "✓",
    "failed": "✗",
    "timed_out": "✗",
    "canceled": "–",
    "skipped": "–",
    "undone": "↩",
}
STYLES = {
    "pending": "dim",
    "running": "cyan",
    "waiting": "cyan",
    "retrying": "yellow",
    "awaiting_approval": "bold yellow",
    "waiting_approval": "bold yellow",
    "paused": "yellow",
    "succeeded": "green",
    "failed": "red",
    "timed_out": "red",
    "canceled": "magenta",
    "skipped": "dim",
    "undone": "magenta",
    "published": "green",
    "draft": "yellow",
    "deprecated": "dim",
}


def status_cell(status: str) -> Cell:
    return (status, STYLES.get(status, ""))


def moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def ago(text: str | None) -> str:
    """`3 min ago`, `in 20 s`: how far a moment is from now."""
    at = moment(text)
    if at is None:
        return ""
    apart = datetime.now(UTC) - at
    if apart < timedelta():
        return f"in {duration(-apart)}"
    return "just now" if apart < timedelta(seconds=1) else f"{duration(apart)} ago"


def duration(span: timedelta | float) -> str:
    """A length of time, in one unit."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if seconds < 1:
        return f"{seconds * 1_000:.0f} ms"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def since(text: str | None) -> str:
    """How long ago a moment was."""
    at = moment(text)
    return "" if at is None else duration(max(datetime.now(UTC) - at, timedelta()))


def between(started: str | None, ended: str | None) -> str:
    begin, end = moment(started), moment(ended)
    return "" if begin is None or end is None else duration(end - begin)


def clock(text: str | None) -> str:
    """The time of day, here, to the millisecond."""
    at = moment(text)
    return "" if at is None else at.astimezone().isoformat(timespec="milliseconds")[11:23]


def full_time(text: str | None) -> str:
    at = moment(text)
    return "" if at is None else at.astimezone().isoformat(sep=" ", timespec="seconds")


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def pending_requests(row: Mapping[str, Any]) -> list[str]:
    """The pending requests about a review or a dead letter, which need a second person."""
    return [f"requested by {each['actor']}, {ago(each['at'])}: {each['reason']}" for each in row["requests"]]


def error_text(error: Mapping[str, Any] | None) -> str:
    return "" if error is None else failure(error["error_class"], error["code"], error["summary"])


def failure(error_class: str, code: str | None, summary: str | None) -> str:
    """Class, code and summary; a code that only repeats the class is left out."""
    exact = f" ({code})" if code and code != error_class.lower() else ""
    return f"{error_class}{exact}: {summary}"
