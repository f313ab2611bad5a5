"""Messages about executions for other systems: their contents, and the entries that cause them. Pure.

A message is thin: it names the execution, the event and the step, and contains no inputs or results. Receivers read
those through the API, with their own permissions. An entry causes at most one message, so its sequence number orders
messages.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from tenuto.errors import InvalidInput
from tenuto.kernel import events as e
from tenuto.kernel.definition import JSON, plain_name
from tenuto.kernel.state import Execution

from .projections import OutboxRow

Data: TypeAlias = dict[str, JSON]


class Message(Struct, frozen=True, kw_only=True):
    """A message. It may be delivered more than once, each time with the same `id`."""

    id: str
    kind: str
    execution_id: str
    seq: int
    at: datetime
    tenant: str
    definition: str
    version: int
    correlation_id: str
    data: Data = {}


def read_message(body: bytes) -> Message:
    return _READ.decode(body)


_READ = msgspec.json.Decoder(Message)


# -- Kinds and contents ------------------------------------------------------------------------------------------------


def _started(event: e.ExecutionStarted) -> Data:
    target = event.target
    return {} if target is None else {"target": {"type": target[0], "id": target[1]}}


def _finished(event: e.ExecutionFinished) -> Data:
    return {"status": event.status, "outcome": event.outcome, "error": _error(event.error)}


def _error(failure: e.Failure | None) -> Data | None:
    if failure is None:
        return None
    return {"error_class": failure.error_class, "code": failure.code, "step": failure.path}


def _attempt(event: "e.AttemptSucceeded | e.AttemptFailed | e.AttemptTimedOut | e.ProbeAnswered") -> Data:
    return {"step": event.path, "attempt": event.number}


def _failed(event: e.AttemptFailed | e.AttemptTimedOut) -> Data:
    return {**_attempt(event), "error": _error(event.failure)}


def _given_up(event: e.StepExpired | e.StepRefused) -> Data:
    return {"step": event.path, "error": _error(event.failure)}


def _opened(event: e.ReviewOpened) -> Data:
    return {"review": event.id, "kind": event.kind, "step": event.path}


def _kind_and_data(event: e.Event) -> tuple[str, Data] | None:
    match event:
        case e.ExecutionStarted():
            return "execution.started", _started(event)
        case e.RunOpened():
            return "execution.retried", {"run": event.run}
        case e.Paused():
            return "execution.paused", {"reason": event.reason}
        case e.Resumed():
            return "execution.resumed", {}
        case e.CancelRequested():
            return "execution.cancel_requested", {"mode": event.mode}
        case e.ExecutionFinished():
            return "execution.finished", _finished(event)
        case e.AttemptSucceeded(phase="forward") | e.ProbeAnswered(verdict="succeed"):
            return "step.completed", _attempt(event)
        case e.WaitEnded():
            return "step.completed", {"step": event.path}
        case e.AttemptSucceeded(phase="compensate"):
            return "step.compensated", _attempt(event)
        case e.AttemptFailed(verdict=verdict) | e.AttemptTimedOut(verdict=verdict):
            return _of_failure(event, verdict)
        case e.StepExpired() | e.StepRefused():
            return "step.failed", _given_up(event)
        case e.ReviewOpened():
            return "review.opened", _opened(event)
        case e.ReviewResolved():
            return "review.resolved", {"review": event.id, "resolution": event.resolution}
        case _:
            return None


def _of_failure(event: e.AttemptFailed | e.AttemptTimedOut, verdict: e.Verdict) -> tuple[str, Data] | None:
    """Returns a message only if the failure is final: not if a retry, a probe or a review follows."""
    if event.phase == "compensate":
        return None if verdict == "retry" else ("step.compensation_failed", _failed(event))
    if event.phase != "forward" or verdict in ("retry", "probe", "review"):
        return None
    return "step.failed", _failed(event)


_CAUSES: Final[dict[str, tuple[type[e.Recorded], ...]]] = {
    "execution.started": (e.ExecutionStarted,),
    "execution.retried": (e.RunOpened,),
    "execution.paused": (e.Paused,),
    "execution.resumed": (e.Resumed,),
    "execution.cancel_requested": (e.CancelRequested,),
    "execution.finished": (e.ExecutionFinished,),
    "step.completed": (e.AttemptSucceeded, e.ProbeAnswered, e.WaitEnded),
    "step.failed": (e.AttemptFailed, e.AttemptTimedOut, e.StepExpired, e.StepRefused),
    "step.compensated": (e.AttemptSucceeded,),
    "step.compensation_failed": (e.AttemptFailed, e.AttemptTimedOut),
    "review.opened": (e.ReviewOpened,),
    "review.resolved": (e.ReviewResolved,),
}
MESSAGE_KINDS: Final = tuple(_CAUSES)


# -- Subscriptions -----------------------------------------------------------------------------------------------------


class Announced:
    """The kinds of messages that are subscribed to. `events` are the types of events that can cause one."""

    __slots__ = ("events", "kinds")

    def __init__(self, wanted: Iterable[str] = ()) -> None:
        self.kinds = frozenset(kind for word in wanted for kind in _kinds_of(word))
        self.events = frozenset(event for kind in self.kinds for event in _CAUSES[kind])

    def __bool__(self) -> bool:
        return bool(self.kinds)

    def rows(self, state: Execution, entries: Sequence[e.Entry]) -> list[OutboxRow]:
        """Returns the messages that these entries cause, as outbox rows."""
        events, kinds = self.events, self.kinds
        rows: list[OutboxRow] = []
        for entry in entries:
            if type(entry.event) not in events:
                continue
            message = _kind_and_data(entry.event)
            if message is not None and message[0] in kinds:
                rows.append(_row(state, entry, *message))
        return rows


Publish: TypeAlias = Callable[[Message], Awaitable[object]]


def _kinds_of(word: str) -> list[str]:
    """Expands `step.completed`, `step.*` or `*` to kinds of messages."""
    kinds = [kind for kind in MESSAGE_KINDS if word in (kind, "*", kind.partition(".")[0] + ".*")]
    if not kinds:
        text = (
            f"{word!r} is not a kind of message. Kinds are {', '.join(MESSAGE_KINDS)}; `execution.*` and `*` also work"
        )
        raise InvalidInput.at("/messages", "unknown_kind", text)
    return kinds


def _row(state: Execution, entry: e.Entry, kind: str, data: Data) -> OutboxRow:
    definition = state.plan.definition
    message = Message(
        id=f"{state.id}.{entry.seq}",
        kind=kind,
        execution_id=state.id,
        seq=entry.seq,
        at=datetime.fromtimestamp(entry.at / 1_000, UTC),
        tenant=state.tenant,
        definition=plain_name(definition.name),
        version=definition.version,
        correlation_id=state.correlation_id,
        data=data,
    )
    return OutboxRow(state.id, entry.seq, state.tenant, kind, msgspec.json.encode(message), entry.at)
