"""Facts as requests: what a person or a program says to an execution, in the words of the HTTP surface."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import Raw

from tenuto.errors import NotSupported
from tenuto.kernel import facts as f
from tenuto.kernel.events import NULL
from tenuto.kernel.state import Review

from .wire import quoted


class Request(NamedTuple):
    path: str
    body: dict[str, Any]
    repeats: bool = False


def request_of(execution_id: str, fact: f.Fact, reviews: Mapping[str, Review]) -> Request:
    """`reviews` are those that are open, as far as is known here."""
    at = f"/v1/executions/{quoted(execution_id)}"
    match fact:
        case f.Pause():
            return Request(f"{at}:pause", {"reason": fact.reason})
        case f.Resume():
            return Request(f"{at}:resume", {})
        case f.Cancel():
            return Request(f"{at}:cancel", {"mode": fact.mode, "reason": fact.reason})
        case f.Retry():
            return Request(f"{at}:retry", {"from": fact.start, "again": fact.again, "reason": fact.reason})
        case f.Signal():  # the same id twice is one signal
            return Request(f"{at}/signals/{quoted(fact.name)}", {"payload": fact.payload, "id": fact.id}, repeats=True)
        case f.Decide():
            return _decision(at, fact, reviews)
    raise NotSupported(
        "Answers to callback steps do not go over this client.",
        code="not_over_http",
        hint="answer where the engine is: Engine(url of the database).get(id).answer(…)",
    )


def _decision(at: str, fact: f.Decide, reviews: Mapping[str, Review]) -> Request:
    found = fact.review or next((id for id, review in reviews.items() if review.path == fact.path), None)
    if found is None:  # nothing waits there: the service says so in its own words
        verb = "reject" if fact.resolution == "rejected" else "approve"
        name = (fact.path or "").rpartition("/")[2]  # with its clone: another one may be waiting
        return Request(f"{at}/steps/{quoted(name)}:{verb}", {"comment": fact.reason})
    review = reviews.get(found)
    if review is not None and review.kind == "dead_letter" and fact.resolution == "dismiss":
        return Request(f"/v1/dlq/{quoted(found)}:discard", {"reason": fact.reason})
    body = {"resolution": fact.resolution, "reason": fact.reason, "again": fact.again}
    return Request(
        f"/v1/reviews/{quoted(found)}:resolve", body if _is_nothing(fact.result) else {**body, "result": fact.result}
    )


def _is_nothing(result: Raw) -> bool:
    return bytes(result) == bytes(NULL)
