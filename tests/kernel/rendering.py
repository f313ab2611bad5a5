"""Histories as text, one line an entry, so that a test reads as a table and a failed one shows where it went astray.

Times are milliseconds since the start of the execution. `+` introduces the attempts that an entry grants: `pay/1` is
the first attempt of step pay, `pay:undo/1` of its compensation, `notify#0..2/1` the first attempts of three clones.
The root scope is written `.`.
"""

from collections.abc import Callable, Iterable

from tenuto.kernel import events as e
from tenuto.kernel.address import Phase, Ref

START = 1_000_000
"""When executions of these tests start. Not 0: the kernel may use 0 for "never"."""

_PHASES: dict[Phase, str] = {
    "forward": "",
    "compensate": ":undo",
    "guard": ":guard",
    "reconcile": ":reconcile",
    "plan": ":plan",
}


def render_all(entries: Iterable[e.Entry]) -> list[str]:
    reviews: dict[str, str] = {}
    lines: list[str] = []
    for entry in entries:
        if isinstance(entry.event, e.ReviewOpened):
            reviews[entry.event.id] = f"{entry.event.kind} {place(entry.event.path)}"
        lines.append(_render(entry, reviews))
    return lines


def _render(entry: e.Entry, reviews: dict[str, str]) -> str:
    event = entry.event
    if isinstance(event, e.ReviewResolved):
        text = f"resolved {reviews[event.id]} {event.resolution}" + _verdict(event.verdict)
    else:
        text = _EVENTS[type(event)](event)
    grants = " ".join(grant_text(grant) for grant in entry.grants)
    return f"{text} + {grants}" if grants else text


def ref_text(ref: Ref) -> str:
    return f"{place(ref.path)}{_PHASES[ref.phase]}/{ref.number}"


def grant_text(grant: e.Grant) -> str:
    path = place(grant.path) if grant.first < 0 else f"{grant.path}#{grant.first}..{grant.last}"
    return f"{path}{_PHASES[grant.phase]}/{grant.number}"


def place(path: str) -> str:
    return path or "."


def _attempt(event: "_Attempt") -> str:
    return ref_text(Ref(event.path, event.phase, event.number))


def _at(label: str, at: int | None) -> str:
    return "" if at is None else f" {label}@{at - START}"


def _verdict(verdict: str, at: int | None = None) -> str:
    return f" -> {verdict}" + ("" if at is None else f"@{at - START}")


def _half(half_done: bool) -> str:
    return " half-done" if half_done else ""


def _charge(charge: int) -> str:
    return f" charge={charge}" if charge else ""


def _places(paths: Iterable[str]) -> str:
    return " ".join(place(path) for path in paths)


def _started(event: e.ExecutionStarted) -> str:
    waits = "" if event.admitted else f" queued for {event.concurrency_key}"
    return f"started{waits}" + _at("deadline", event.deadline) + _at("pending", event.pending_until)


def _run(event: e.RunOpened) -> str:
    start = f" from {event.start}" if event.start is not None else ""
    visits = "".join(f" {id}@{visit}" for id, visit in sorted(event.visits.items()) if visit)
    redo = "".join(f" {path}={generation}" for path, generation in event.redo)
    return f"run {event.run}{start}" + (f" after{visits}" if visits else "") + (f" redo{redo}" if redo else "")


def _finished(event: e.ExecutionFinished) -> str:
    outcome = f" ({event.outcome})" if event.outcome else ""
    error = f" {event.error.code}" if event.error is not None else ""
    money = f" charged={event.charged} refunded={event.refunded}" if event.charged or event.refunded else ""
    retry = f" retry_hold={event.retry_hold}" if event.retry_hold else ""
    return f"finished {event.status}{outcome}{error}{money}{retry}"


def _failed(event: e.AttemptFailed) -> str:
    what = f"failed {_attempt(event)} {event.failure.error_class}"
    return what + _verdict(event.verdict, event.retry_at) + _half(event.half_done) + _charge(event.charge)


def _timeout(event: e.AttemptTimedOut) -> str:
    what = f"timeout {_attempt(event)} {event.kind}"
    return what + _verdict(event.verdict, event.retry_at) + _half(event.half_done) + _charge(event.charge)


def _lost(event: e.AttemptLost) -> str:
    losses = (
        ref_text(Ref(loss.path, loss.phase, loss.number))
        + _verdict(loss.verdict, loss.retry_at)
        + _half(loss.half_done)
        for loss in event.losses
    )
    return f"lost {', '.join(losses)}"


def _probed(event: e.ProbeAnswered) -> str:
    return f"probed {_attempt(event)} {event.answer}" + _verdict(event.verdict, event.again_at)


def _added(event: e.ChildrenAdded) -> str:
    instead = f" instead of {_places(event.superseded)}" if event.superseded else ""
    return f"added {place(event.scope)}:plan/{event.number} {event.count}{instead}" + _charge(event.charge)


def _closed(event: e.NodesClosed) -> str:
    return f"closed {_places(event.paths)} {event.status}"


def _opened(event: e.ScopeOpened) -> str:
    start = f" from {event.start}" if event.start is not None else ""
    visits = "".join(f" {id}@{visit}" for id, visit in sorted(event.visits.items()) if visit)
    return f"open {event.path}{start}" + (f" after{visits}" if visits else "") + _at("deadline", event.deadline)


def _failure(failure: e.Failure | None) -> str:
    return f" {failure.code}" if failure is not None else ""


def _review(event: e.ReviewOpened) -> str:
    reason = f" ({event.reason})" if event.kind in ("dead_letter", "escalation") else ""
    return f"review {event.kind} {place(event.path)}{reason}" + _at("due", event.due_at)


def _undo(event: e.CompensationStarted) -> str:
    return f"undo because {event.cause}: {' | '.join(_places(group) for group in event.groups)}"


_Attempt = (
    e.AttemptBegun
    | e.AttemptDispatched
    | e.DispatchFailed
    | e.AttemptAcked
    | e.AttemptSucceeded
    | e.AttemptFailed
    | e.AttemptTimedOut
    | e.ProbeAnswered
)

_EVENTS: dict[type, Callable[..., str]] = {
    e.ExecutionStarted: _started,
    e.ExecutionAdmitted: lambda event: f"admitted {event.key}",
    e.RunOpened: _run,
    e.ExecutionFinished: _finished,
    e.Paused: lambda event: f"paused {event.reason}" + _at("limit", event.limit_at),
    e.Resumed: lambda event: f"resumed shift={event.shift}",
    e.CancelRequested: lambda event: f"cancel {event.mode}",
    e.HoldChanged: lambda event: "hold refused" if event.refused else f"hold {event.delta:+}",
    e.AttemptsGranted: lambda event: "granted",
    e.AttemptBegun: lambda event: f"begun {_attempt(event)}",
    e.AttemptDispatched: lambda event: (
        f"dispatched {_attempt(event)}" + _at("ack", event.ack_due) + _at("result", event.result_due)
    ),
    e.DispatchFailed: lambda event: f"undispatched {_attempt(event)}" + _verdict(event.verdict, event.retry_at),
    e.AttemptAcked: lambda event: f"acked {_attempt(event)}" + _at("result", event.result_due),
    e.AttemptSucceeded: lambda event: f"ok {_attempt(event)}" + _charge(event.charge),
    e.AttemptFailed: _failed,
    e.AttemptTimedOut: _timeout,
    e.AttemptLost: _lost,
    e.AttemptsReturned: lambda event: f"returned {' '.join(ref_text(ref) for ref in event.refs)}",
    e.AttemptAbandoned: lambda event: f"abandoned {' '.join(ref_text(ref) for ref in event.refs)} ({event.why})",
    e.ProbeAnswered: _probed,
    e.StepExpired: lambda event: f"expired {event.path} {event.failure.code}" + _verdict(event.verdict),
    e.StepRefused: lambda event: f"refused {event.path} {event.failure.code}" + _verdict(event.verdict),
    e.StepsReady: lambda event: f"ready {_places(event.paths)}",
    e.BranchTaken: lambda event: f"branch {event.path} -> {event.target}",
    e.Expanded: lambda event: f"expanded {event.path} {event.count}",
    e.ChildrenAdded: _added,
    e.NodesClosed: _closed,
    e.ScopeOpened: _opened,
    e.ScopeClosing: lambda event: f"closing {place(event.path)} {event.outcome}" + _failure(event.failure),
    e.ScopeClosed: lambda event: f"scope {event.path} {event.outcome}" + _failure(event.failure),
    e.ScopeRepeated: lambda event: f"repeat {event.path}",
    e.ScopeRestarted: lambda event: (
        f"round {event.round} of {place(event.path)} budget={event.budget_left}" + _at("not", event.not_before)
    ),
    e.WaitOpened: lambda event: (
        f"wait {event.path} {event.name or event.kind}" + _at("due", event.due_at) + _at("deadline", event.deadline)
    ),
    e.WaitEnded: lambda event: f"waited {event.path} by {event.by}",
    e.SignalKept: lambda event: f"signal {event.name} {event.id}",
    e.ReviewOpened: _review,
    e.CompensationStarted: _undo,
    e.RunEntered: lambda event: (
        f"entered {event.status}" + _at("deadline", event.deadline) + _at("pending", event.pending_until)
    ),
    e.CompensationStopped: lambda event: f"undo stopped {event.reason}: {_places(event.pending)}",
}
