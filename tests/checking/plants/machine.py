"""The state machine: how histories go on and end, and the rows that say so."""

from typing import Any

import msgspec
from msgspec import Struct

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref
from tenuto.kernel.events import Grant
from tenuto.storage.port import SnapshotRow
from tenuto.storage.shared.records import EventsRow, ExecutionRecord, ProgressRecord, ReviewRecord, TaskRecord
from tests.checking.streams import altered, change, driven, followed, placed
from tests.kernel.build import callback, scope, step
from tests.kernel.driver import Driver, given

from .planting import (
    beside,
    canceled,
    decided_and_failed,
    done,
    fanned_out,
    mail,
    notice,
    planning,
    queued,
    replace,
    rolled_back,
    row_with,
    two_steps,
    violates,
    waits_for_person,
)


@violates("G1")
def _() -> list[Struct]:
    return followed(driven(waits_for_person()), e.ReviewOpened, e.ExecutionFinished("succeeded"))


@violates("G2")
def _() -> list[Struct]:
    return followed(driven(rolled_back()), e.ExecutionFinished, e.AttemptsGranted(), Grant("c", "forward", 2))


@violates("G3")
def _() -> list[Struct]:
    return change(driven(rolled_back()), EventsRow, lambda row: None, nth=1)


@violates("G4")
def _() -> list[Struct]:
    return row_with(two_steps(), status="paused")


def _column(kind: type[Struct], name: str, value: object) -> None:
    def plant() -> list[Struct]:
        return change(driven(decided_and_failed()), kind, lambda row: replace(row, **{name: value}))

    violates("G4")(plant)


for _name, _value in {
    "priority": 7, "correlation_id": "other", "target_type": "other", "target_id": "other", "concurrency_key": "other",
    "created_at": 10**8, "ended_at": 10**8, "cancel_requested": True, "error_class": "TRANSIENT", "run": 2,
}.items():  # fmt: skip
    _column(ExecutionRecord, _name, _value)
for _name, _value in {
    "definition": "other", "kind": "indeterminate", "path": "b", "reason": "other", "permission": "other",
    "error_class": "TRANSIENT", "error_summary": "other", "attempts": 7, "opened_at": 10**8, "due_at": 10**8,
    "resolution": "rejected", "resolved_by": "user:eve", "resolved_at": 10**8,
}.items():  # fmt: skip
    _column(ReviewRecord, _name, _value)


for _name, _value in {"plan": "other/1", "queue": "other", "handler": "other", "priority": 7}.items():

    def _task(name: str = _name, value: object = _value) -> list[Struct]:
        return change(driven(queued()), TaskRecord, lambda row: replace(row, **{name: value}))

    violates("G4")(_task)


@violates("G5")
def _() -> list[Struct]:
    return followed(driven(two_steps()), e.AttemptSucceeded, e.ExecutionFinished("succeeded"))


@violates("G6")
def _() -> list[Struct]:
    run = two_steps()
    return beside(run, mail(run, execution="nobody"))


@violates("G6")
def _() -> list[Struct]:
    return beside(two_steps(), ProgressRecord(execution="nobody", path="a", body=b"1"))


@violates("G6")
def _() -> list[Struct]:
    return beside(two_steps(), replace(notice(two_steps()), execution="nobody"))


@violates("G7")
def _() -> list[Struct]:
    run = given(step("a"), step("b"))
    run.start()
    run.pause()
    run.succeed("a")
    return placed(driven(run), e.AttemptSucceeded, grants=(Grant("b", "forward", 1),))


@violates("G8")
def _() -> list[Struct]:
    return placed(driven(two_steps()), e.ExecutionStarted, grants=(Grant("a", "forward", 1), Grant("b", "forward", 1)))


@violates("G2")
def _() -> list[Struct]:
    return followed(driven(two_steps()), e.AttemptSucceeded, e.RunOpened(2, "nobody has waited for its end"))


@violates("G2")
def _() -> list[Struct]:
    return followed(driven(done()), e.ExecutionFinished, e.RunOpened(2, "it had succeeded"))


@violates("G2")
def _() -> list[Struct]:
    return followed(driven(rolled_back()), e.ExecutionFinished, e.RunOpened(3, "the second is missing"))


@violates("G2")
def _() -> list[Struct]:
    """What was not undone is made under a new key, and nobody asked for it."""
    return followed(driven(rolled_back()), e.ExecutionFinished, e.RunOpened(2, "automatic retry", redo=(("c", 2),)))


@violates("G2")
def _() -> list[Struct]:
    return followed(driven(done()), e.ExecutionFinished, e.AttemptsGranted())


@violates("G3")
def _() -> list[Struct]:
    run = two_steps()
    return followed(driven(run), e.ExecutionStarted, run.history[0].event)


@violates("G3")
def _() -> list[Struct]:
    return change(driven(two_steps()), EventsRow, lambda row: replace(row, body=b"{"))


@violates("G3")
def _() -> list[Struct]:
    return change(driven(two_steps()), EventsRow, lambda row: replace(row, count=7))


@violates("G3")
def _() -> list[Struct]:
    run = two_steps()
    return beside(run, replace(mail(run), verdict=b"{"))


@violates("G3")
def _() -> list[Struct]:
    return [record for record in driven(two_steps()) if not isinstance(record, EventsRow)]


@violates("G3")
def _() -> list[Struct]:
    """It goes on with what its plan does not have."""
    return followed(driven(two_steps()), e.AttemptSucceeded, e.WaitOpened("nowhere", "timer", due_at=1))


@violates("G4")
def _() -> list[Struct]:
    return row_with(two_steps(), ended_at=7)


@violates("G4")
def _() -> list[Struct]:
    return row_with(two_steps(), seq=99)


@violates("G4")
def _() -> list[Struct]:
    """Nobody holds it, nothing is due, and the row has not seen the last of the history."""
    return row_with(decided_and_failed(), seq=1, owner=None)


@violates("G4")
def _() -> list[Struct]:
    run = two_steps()
    run.crash()
    return row_with(run, epoch=0)


@violates("G4")
def _() -> list[Struct]:
    return change(driven(two_steps()), SnapshotRow, lambda row: replace(row, seq=99))


@violates("G4")
def _() -> list[Struct]:
    return change(driven(two_steps()), SnapshotRow, lambda row: replace(row, body=row.body.replace(b'"a"', b'"z"')))


@violates("G5")
def _() -> list[Struct]:
    return followed(driven(two_steps()), e.AttemptSucceeded, e.NodesClosed(("b",), "canceled"))


@violates("G5")
def _() -> list[Struct]:
    """A planner is given up that may be at work."""
    planner = e.AttemptAbandoned((Ref("", "plan", 1),), "settled")
    return followed(driven(planning()), e.ExecutionStarted, planner)


def _directive(*, owned: bool = True, **fields: Any) -> Driver:
    """A directive that was granted."""
    run = given(callback("a", **fields), step("b"))
    run.start(owned=owned)
    return run


@violates("G5")
def _() -> list[Struct]:
    """A directive is given up that its owner may have sent."""
    run = _directive()
    run.cancel("drain")
    return followed(driven(run), e.CancelRequested, e.NodesClosed(("a",), "canceled"))


@violates("G5")
def _() -> list[Struct]:
    """One that was sent, though it was granted to nobody."""
    run = _directive(owned=False)
    run.dispatch("a")
    run.cancel("drain")
    return followed(driven(run), e.CancelRequested, e.NodesClosed(("a",), "canceled"))


@violates("G5")
def _() -> list[Struct]:
    """What is in a queue is given up, and nobody took it out."""
    run = given(step("a", queue="gpu"))
    run.start(owned=False)
    run.cancel("drain")
    return followed(driven(run), e.CancelRequested, e.NodesClosed(("a",), "canceled"))


@violates("G5")
def _() -> list[Struct]:
    return altered(driven(done()), e.ExecutionFinished, status="canceled")


@violates("G5")
def _() -> list[Struct]:
    return altered(driven(rolled_back()), e.ExecutionFinished, error=None)


@violates("G5")
def _() -> list[Struct]:
    """A round begins, and what ran in the last one was not awaited."""
    return followed(driven(two_steps()), e.AttemptSucceeded, e.ScopeRestarted("", 2, 19, 0))


@violates("G6")
def _() -> list[Struct]:
    """A scope is opened while its planner is asked: that it waits is counted, and seen nowhere."""
    run = given(scope("s", planner="p", mode="parallel"))
    run.start()
    return followed(driven(run), e.ScopeOpened, e.ScopeOpened("s"))


@violates("G6")
def _() -> list[Struct]:
    """Clones run, and are counted anew."""
    return followed(driven(fanned_out()), e.Expanded, e.Expanded("n", 2, msgspec.Raw(b"[1, 2]")))


@violates("G6")
def _() -> list[Struct]:
    """Two attempts in one slot."""
    return placed(driven(two_steps()), e.ExecutionStarted, grants=(Grant("a", "forward", 1), Grant("a", "forward", 2)))


@violates("G7")
def _() -> list[Struct]:
    run = given(step("a"), concurrency_key="'k'")
    run.start(key="k", admitted=False)
    return placed(driven(run), e.ExecutionStarted, grants=(Grant("a", "forward", 1),))


@violates("G7")
def _() -> list[Struct]:
    run = given(step("a"), step("b"))
    run.start()
    run.cancel("drain")
    run.succeed("a")
    return placed(driven(run), e.AttemptSucceeded, grants=(Grant("b", "forward", 1),))


@violates("G7")
def _() -> list[Struct]:
    return followed(driven(canceled()), e.CancelRequested, e.ScopeRestarted("", 2, 19, 0))


@violates("G7")
def _() -> list[Struct]:
    grants = (Grant("c", "forward", 2), Grant("b", "compensate", 1))
    return placed(driven(rolled_back()), e.CompensationStarted, grants=grants)


@violates("G7")
def _() -> list[Struct]:
    grants = (Grant("c", "reconcile", 1), Grant("b", "compensate", 1))
    return placed(driven(rolled_back()), e.CompensationStarted, grants=grants)


@violates("G7")
def _() -> list[Struct]:
    """One of two has failed for good, and is begun again while the other is awaited."""
    run = given(step("a"), step("b"), mode="parallel")
    run.start()
    run.fail("a", "NON_RETRYABLE")
    return placed(driven(run), e.ScopeClosing, grants=(Grant("a", "forward", 2),))
