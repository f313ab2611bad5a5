"""Mailbox: an applied message is recorded once, with its sender; others leave no trace in the history."""

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from tenuto.kernel import events as e
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref, lease_id
from tenuto.kernel.codec import decode_answer, decode_fact
from tenuto.storage.shared.records import MailRow

from .attempts import L5
from .invariants import Family, require
from .jobs import CALLBACK

family = Family("Mailbox")

L6 = family(
    "L6",
    "A mailbox message takes effect once: an applied message is recorded with its sender, or changed nothing; a "
    "refused or ignored message left no event; a message that left an event has a verdict.",
)

TIMER = "timer:"
Trace = tuple[type, object]
"""The trace of a message in an entry: the kind of the message and its subject."""

ANYTHING = ""
# These may be applied without an event, because they may already be true. (So may a resume.)
ALREADY = (f.Pause, f.Cancel, f.Signal)


class PostedMail(Struct, frozen=True):
    """A message without its body; only what can be compared is kept."""

    row: MailRow
    kind: type | None = None  # None if it cannot be decoded
    about: tuple[object, ...] = ()  # it left a trace of one of these
    actor: str | None = None
    lease: str | None = None
    well: bool | None = None  # the outcome it reports: success or not; None if the engine judges it


def opened(row: MailRow) -> PostedMail:
    bare = msgspec.structs.replace(row, body=b"")
    try:
        fact = decode_fact(row.body)
    except msgspec.DecodeError:
        return PostedMail(bare)
    lease: str | None = getattr(fact, "lease", None)
    return PostedMail(bare, type(fact), _about(fact), fact.actor, lease, _went_well(fact))


def _about(fact: f.Fact) -> tuple[object, ...]:
    match fact:
        case f.Begun(ref=ref) if ref.phase == "plan":  # a planner is safe to repeat, so its start is not recorded
            return ()
        case f.Begun() | f.Reported() | f.Dispatched() | f.DispatchRefused() | f.Acked():
            return (fact.ref,)
        case f.Lost() | f.Returned():
            return fact.refs
        case f.Signal(id=id):
            return (id,)
        case f.Decide(review=str(review)):
            return (review,)
        case f.Decide() | f.Pause() | f.Cancel() | f.Retry() | f.Admitted():
            return (ANYTHING,)
    return ()


def _went_well(fact: f.Fact) -> bool | None:
    if not isinstance(fact, f.Reported):
        return None
    match fact.ref.phase:
        case "forward" | "compensate":
            return isinstance(fact.outcome, f.Succeeded)
        case "plan":
            return None if isinstance(fact.outcome, f.Planned) else False  # a plan is validated like a definition
        case _:
            return isinstance(fact.outcome, f.Done)


class Caused(Struct):
    """The effects of one message. `rows` are the decisions it caused, of which there must be one."""

    seq: int
    actor: str | None
    rows: list[int]
    traces: dict[Trace, bool]


class Traces:
    """The traces of messages in a history."""

    def __init__(self) -> None:
        self._of: dict[str, Caused] = {}
        self._all: dict[Trace, None] = {}  # of kinds that may already be true

    def note(self, entry: e.Entry, row: int) -> None:
        """Adds an entry of the decision that begins at `row`."""
        traces = dict(_traces(entry.event))
        if not isinstance(entry.event, e.HoldChanged):  # caused by a cancel, which is recorded separately
            self._all.update(dict.fromkeys(trace for trace in traces if trace[0] in ALREADY))
        cause = entry.cause
        if cause is None or cause.startswith((TIMER, CALLBACK)):
            return
        caused = self._of.get(cause)
        if caused is None:
            caused = self._of[cause] = Caused(entry.seq, entry.actor, [row], {})
        elif caused.rows[-1] != row:
            caused.rows.append(row)
        caused.traces.update(traces)

    def have_mail(self, posted: Iterable[PostedMail]) -> None:
        known = {item.row.id for item in posted}
        for id, caused in self._of.items():
            require(id in known, L6, f"entry {caused.seq} was led to by mail {id}, which is not there")

    def is_told(self, item: PostedMail) -> None:
        row, caused = item.row, self._of.get(item.row.id)
        seq = None if caused is None else caused.seq
        if row.verdict is None:
            require(caused is None, L6, f"mail {row.id} led to entry {seq}, and has no verdict")
            return
        if not isinstance(decode_answer(row.verdict), f.Applied):
            require(caused is None, L6, f"mail {row.id} was not applied, and led to entry {seq}")
            return
        require(item.kind is not None, L6, f"mail {row.id} was applied, and cannot be read")
        if caused is not None:
            _acted_once(item, caused)
        elif item.kind in ALREADY:
            is_so = any((item.kind, about) in self._all for about in item.about)
            require(is_so, L6, f"mail {row.id} was applied, and nothing that it asks for is recorded")
        else:
            require(not item.about, L6, f"mail {row.id} was applied, and led to nothing")


def _acted_once(item: PostedMail, caused: Caused) -> None:
    id = item.row.id
    require(len(caused.rows) == 1, L6, f"mail {id} was decided more than once, at {caused.rows[:5]}")
    require(item.actor == caused.actor, L6, f"entry {caused.seq} has another actor than mail {id}")
    about = [(item.kind, one) for one in item.about]
    found = [trace for trace in about if trace in caused.traces]
    ref = item.about[0] if item.about else None
    if not isinstance(ref, Ref):
        require(found or not about, L6, f"mail {id} was applied, and what it asks for is not recorded")
        return
    require(found, L5, f"mail {id} about {ref} was applied, and is not recorded for it")
    own = lease_id(item.row.execution, ref)
    require(item.lease in (None, own), L5, f"mail {id} about {ref} was applied, and has the lease of another")
    agree = item.well in (None, caused.traces[found[0]])
    require(agree, L5, f"mail {id} about {ref} was applied, and the opposite of what it says is recorded")


def _traces(event: e.Event) -> Iterator[tuple[Trace, bool]]:
    """Yields the traces of an event, and whether it records a success."""
    match event:
        case e.AttemptSucceeded() | e.AttemptFailed() | e.AttemptTimedOut() | e.ProbeAnswered():
            ref = Ref(event.path, event.phase, event.number)
            well = isinstance(event, e.AttemptSucceeded)
            if isinstance(event, e.ProbeAnswered):
                well = event.answer == "done"
            yield (f.Reported, ref), well
            if isinstance(event, e.AttemptFailed) and ref.phase == "plan":
                yield (f.DispatchRefused, ref), False
        case e.ChildrenAdded():
            yield (f.Reported, Ref(event.scope, "plan", event.number)), True
        case e.AttemptBegun():
            yield (f.Begun, Ref(event.path, event.phase, event.number)), True
        case e.AttemptDispatched():
            yield (f.Dispatched, Ref(event.path, event.phase, event.number)), True
        case e.DispatchFailed():
            yield (f.DispatchRefused, Ref(event.path, event.phase, event.number)), True
        case e.AttemptAcked():
            yield (f.Acked, Ref(event.path, event.phase, event.number)), True
        case e.AttemptLost():
            for loss in event.losses:
                yield (f.Lost, Ref(loss.path, loss.phase, loss.number)), True
        case e.AttemptsReturned():
            for ref in event.refs:
                yield (f.Returned, ref), True
        case e.SignalKept(id=id) | e.WaitEnded(by=id):
            yield (f.Signal, id), True
        case e.ReviewResolved():
            yield (f.Decide, event.id), True
            yield (f.Decide, ANYTHING), True
        case e.Paused():
            yield (f.Pause, ANYTHING), True
        case e.CancelRequested() | e.HoldChanged():
            yield (f.Cancel, ANYTHING), True
        case e.RunOpened():
            yield (f.Retry, ANYTHING), True
        case e.ExecutionAdmitted():
            yield (f.Admitted, ANYTHING), True
