"""Why an execution is blocked, in a sentence, and the commands that unblock it."""

import re
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

from .connection import Connection
from .formats import ago, error_text, since

_SENTENCES = {
    "approval": "It waits for a person to approve {it}.",
    "review": "A person has to judge {it}: the engine cannot tell what is right.",
    "compensation_required": "{It} failed halfway, and a person has to say whether it is undone.",
    "signal": "It waits for the signal {it}.",
    "timer": "It waits in {it}, as defined.",
    "retry": "{It} failed, and is tried again.",
    "callback": "It waits for an answer from outside to {it}.",
    "concurrency_key": "Another execution holds its key {it}; this one goes on when that is over.",
    "limit": "The limit {it} is used up; it goes on when there is room.",
    "tenant_limit": "The tenant has as many executions in flight as it may.",
    "slot": "All slots of its worker are taken; {it} runs when one is free.",
    "paused": "It is paused{because}.",
    "no_worker": "No running worker has the code{handler}.",
    "incompatible": "The code that is running cannot read what is stored{because}.",
    "worker_lost": "The worker that ran {it} is gone; it is tried again.",
    "reconcile": "Whether {it} took effect is not known; its outcome is being looked up.",
}

_NOT_SERVED = "No worker that serves the queue {queue!r} is running."
_NOT_THERE = "No worker that serves the queue {queue!r} has the code of {handler!r}."
_BUSY = "All slots of the workers that serve the queue {queue!r} are taken; it runs when one is free."
_UNDO_FAILED = "The undo of {it} failed, and a person has to say what becomes of it."
_UNKNOWN = "It is not known whether the effect of {it} was made, and a person has to find out."

# What happens at the next check.
_NEXT = {
    "retry": "next attempt",
    "worker_lost": "next attempt",
    "reconcile": "asked",
    "timer": "over",
    "paused": "canceled",
}

_HELP = {
    "approve": "approve {id} {step}",
    "reject": "reject {id} {step}",
    "resume": "resume {id}",
    "pause": "pause {id}",
    "cancel": "cancel {id}",
    "signal": "signal {id} {step} --payload JSON",
    "retry": "retry {id} --reason TEXT",
}
_FIRST = {
    "no_worker": "worker --app MODULE",
    "incompatible": "worker --app MODULE",
    "limit": "limits",
    "tenant_limit": "limits",
}

# What cannot go on cannot be awaited either: only this is sure to end it.
_SURE_END = "cancel {id} --mode terminate"
_TERMINATE = "The last command ends it at once, as it stands: nothing is awaited, and nothing undone."
_NOTES = {
    "no_worker": _TERMINATE,
    "incompatible": f"A worker with the earlier code, which stored it, goes on with it. {_TERMINATE}",
}


def sentence(blocked: Mapping[str, Any]) -> str:
    """What it waits for, since when, and when it is looked at again."""
    reason, what = blocked["reason"], blocked["waiting_for"]
    it = repr(what) if what else "a step"
    text = _of_queue(reason, what) or _sentence_of(reason, blocked["commands"]).format(
        it=it,
        It=f"{it[:1].upper()}{it[1:]}",
        because=f": {what}" if what else "",
        handler=f" of {it}" if what else "",
    )
    times = [f"for {since(blocked['since'])}"] if blocked["since"] else []
    if blocked["next_check"]:
        times.append(f"{_NEXT.get(reason, 'due')} {ago(blocked['next_check'])}")
    return f"{text[:-1]} ({', '.join(times)})." if times else text


# `queue gpu`, or `film.render in queue gpu`, as the engine names what an attempt of a queue waits for.
_QUEUE = re.compile("(?:(?P<handler>.+) in )?queue (?P<queue>.+)")


def _queue(reason: str, what: str | None) -> "re.Match[str] | None":
    return _QUEUE.fullmatch(what or "") if reason in ("no_worker", "slot") else None


def _of_queue(reason: str, what: str | None) -> str | None:
    found = _queue(reason, what)
    if found is None:
        return None
    text = _BUSY if reason == "slot" else _NOT_THERE if found["handler"] else _NOT_SERVED
    return text.format_map(found.groupdict())


def _sentence_of(reason: str, commands: Sequence[str]) -> str:
    """Of a review, what is asked shows in what may be answered."""
    if reason == "review" and "resolve:retry" in commands and "resolve:not_completed" not in commands:
        return _UNDO_FAILED
    if reason == "review" and "resolve:not_completed" in commands and "resolve:retry" not in commands:
        return _UNKNOWN
    return _SENTENCES.get(reason, f"It waits ({reason}).")


def commands(connection: Connection, execution_id: str, blocked: Mapping[str, Any]) -> list[str]:
    """Lines to type, the most helpful first."""
    lines = _first(blocked["reason"], blocked["waiting_for"])
    for name in blocked["commands"]:
        if name.startswith("resolve:"):
            word = name.removeprefix("resolve:")
            lines.append(f"reviews resolve {blocked['review_id']} {word} --reason TEXT")
        elif name in _HELP:
            # A paused execution is resumed as a whole; other commands name the step.
            step = "" if blocked["reason"] == "paused" else quote(blocked["waiting_for"] or "STEP")
            form = _SURE_END if name == "cancel" and blocked["reason"] in _NOTES else _HELP[name]
            lines.append(form.format(id=execution_id, step=step).rstrip())
    return list(map(connection.command_line, lines))


def note(blocked: Mapping[str, Any]) -> str:
    """What is to be known of the commands, where they do not say it themselves."""
    return _NOTES.get(blocked["reason"], "") if "cancel" in blocked["commands"] else ""


def _first(reason: str, what: str | None) -> list[str]:
    queue = _queue(reason, what)
    if reason == "no_worker" and queue is not None:
        return [f"worker --app MODULE --queue {quote(queue['queue'])}"]
    return [_FIRST[reason]] if reason in _FIRST else []


def why_over(connection: Connection, document: Mapping[str, Any]) -> tuple[str, list[str]] | None:
    """Of one that failed: why, and what can be done about it."""
    if document["status"] != "failed":
        return None
    error = document["error"]
    where = f" in {error['step_id']!r}" if error and error["step_id"] else ""
    what = f": {error_text(error)}" if error else "."
    return f"It failed{where}{what}", [connection.command_line(f"retry {document['execution_id']} --reason TEXT")]
