"""What an execution was told, in the words of the commands: who said so, and why."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Decision(NamedTuple):
    at: str
    run: int
    what: str
    why: str


def decisions(events: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> Iterator[Decision]:
    """What people said, and what was said in their place; `names` are what steps are called, by their paths."""
    reviews: dict[str, Mapping[str, Any]] = {}
    run, over = 1, False
    for event in events:
        kind, data = event["type"], event["data"]
        if kind == "review":
            reviews[data["id"]] = data
        elif kind == "finished":
            over = True
        elif kind == "run":
            run, over = data["run"], False
        if kind == "resolved":
            review = reviews[data["id"]]
            what = _resolved(data, review, _name(review["path"], names)) if _is_said(data, review, over=over) else ""
        else:
            what = _told(kind, data)
        if what:
            yield Decision(event["at"], run, what, _why(event))


def _told(kind: str, data: Mapping[str, Any]) -> str:
    match kind:
        case "paused":
            return "pause"
        case "resumed":
            return "resume"
        case "cancel":
            return f"cancel ({data['mode']})"
        case "run":
            start = f" from {data['from_step']}" if data["from_step"] else ""
            return f"retry{start}{', again' if data['again'] else ''}"
        case "signal":
            return f"signal {data['name']}"
        case "waited" if data["signal"]:  # a signal that had come before has its own line
            return f"signal {data['signal']}"
    return ""


def _is_said(data: Mapping[str, Any], review: Mapping[str, Any], *, over: bool) -> bool:
    """Leaves out reviews that were closed by something else, which is shown itself."""
    if data["verdict"] != "close":
        return True
    if review["kind"] == "escalation":
        return bool(data["resolution"] != "dismiss" and data["reason"] != "resumed")
    return over and bool(data["resolution"] != "retry")


def _resolved(data: Mapping[str, Any], review: Mapping[str, Any], step: str) -> str:
    word = data["resolution"]
    if review["kind"] == "approval":
        return f"{_APPROVAL.get(word, word)} {step}"
    if review["kind"] == "dead_letter":
        return f"dead letter: {word}"
    none = " (it has no undo)" if word == "compensate" and data["verdict"] in ("fail", "skip") else ""
    return f"resolve {step}: {word}{none}"


_APPROVAL = {"approved": "approve", "rejected": "reject"}


def _name(path: str, names: Mapping[str, str]) -> str:
    return names.get(path) or path.rpartition("/")[2].partition("@")[0]


def _why(event: Mapping[str, Any]) -> str:
    by = f"by {event['actor']}" if event["actor"] else ""
    return ": ".join(part for part in (by, event["data"].get("reason")) if part)
