"""Encodes commands for an execution as HTTP requests."""

from typing import Any, NamedTuple

from msgspec import Raw

from tenuto.errors import NotSupported
from tenuto.kernel import facts as f
from tenuto.kernel.address import fan_of
from tenuto.kernel.events import NULL
from tenuto.kernel.naming import shown_step
from tenuto.kernel.state import Execution

from .transport import quoted, quoted_name


class Request(NamedTuple):
    path: str
    body: dict[str, Any]
    repeats: bool = False


def request_of(execution_id: str, fact: f.Fact, state: Execution | None) -> Request:
    """Returns the request for a command. `state` is the last known state of the execution."""
    at = f"/v1/executions/{quoted(execution_id)}"
    match fact:
        case f.Pause():
            return Request(f"{at}:pause", {"reason": fact.reason})
        case f.Resume():
            return Request(f"{at}:resume", {})
        case f.Cancel():
            return Request(f"{at}:cancel", {"mode": fact.mode, "reason": fact.reason})
        case f.Retry():
            start = None if fact.start is None else _name(state, fact.start)
            return Request(f"{at}:retry", {"from": start, "again": fact.again, "reason": fact.reason})
        case f.Signal():  # signals with the same id count once
            return Request(
                f"{at}/signals/{quoted_name(fact.name)}", {"payload": fact.payload, "id": fact.id}, repeats=True
            )
        case f.Decide():
            return _decision(fact, state)
    raise NotSupported(
        "Callback steps cannot be answered over HTTP.",
        code="not_over_http",
        hint="answer with an engine on the database: Engine(url of the database).get(id).answer(…)",
    )


def _decision(fact: f.Decide, state: Execution | None) -> Request:
    """The service checks the authority of the client's credential and ignores the authority in the fact."""
    found = fact.review
    assert found is not None, "a decision names its review"
    review = None if state is None else state.reviews.get(found)
    if review is not None and review.kind == "dead_letter" and fact.resolution == "dismiss":
        return Request(f"/v1/dlq/{quoted(found)}:discard", {"reason": fact.reason})
    body = {"resolution": fact.resolution, "reason": fact.reason, "again": fact.again}
    return Request(
        f"/v1/reviews/{quoted(found)}:resolve", body if _is_nothing(fact.result) else {**body, "result": fact.result}
    )


def _name(state: Execution | None, path: str) -> str:
    """Names a clone by its label, because its index may be the label of another clone."""
    return path if state is None or fan_of(path) is None or "/" in path else shown_step(state, path)


def _is_nothing(result: Raw) -> bool:
    return bytes(result) == bytes(NULL)
