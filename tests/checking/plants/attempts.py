"""Attempts and leases."""

from msgspec import Struct

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref
from tenuto.kernel.events import Grant
from tenuto.storage.shared.records import HolderRecord, TaskRecord
from tests.checking.streams import NOW, altered, change, driven, followed, placed
from tests.kernel.build import callback, step
from tests.kernel.driver import given

from .planting import planning, queued, replace, retried, rolled_back, row_with, two_steps, violates


@violates("L1")
def _() -> list[Struct]:
    return placed(driven(two_steps()), e.ExecutionStarted, grants=(Grant("a", "forward", 1), Grant("a", "forward", 2)))


@violates("L2")
def _() -> list[Struct]:
    return placed(driven(retried()), e.AttemptsGranted, grants=(Grant("a", "forward", 3),))


@violates("L3")
def _() -> list[Struct]:
    return followed(driven(two_steps()), e.AttemptSucceeded, e.AttemptsGranted(), Grant("b", "forward", 1))


@violates("L3")
def _() -> list[Struct]:
    """A directive that was sent, though it had been granted to nobody."""
    run = given(callback("a"))
    run.start(owned=False)
    run.dispatch("a")
    return followed(driven(run), e.AttemptDispatched, e.AttemptsGranted(), Grant("a", "forward", 1))


@violates("L4")
def _() -> list[Struct]:
    run = two_steps()
    run.crash()
    return placed(driven(run), e.AttemptLost, epoch=0)


@violates("L5")
def _() -> list[Struct]:
    records = driven(two_steps())
    return followed(records, e.AttemptSucceeded, e.AttemptSucceeded("a", "forward", 1, 0, "w"))


@violates("L8")
def _() -> list[Struct]:
    return row_with(two_steps(), owner_ended_at=NOW - 10**7)


@violates("L8")
def _() -> list[Struct]:
    taken = {"session": "gone", "session_ended_at": 1, "session_expires_at": 1}
    return change(driven(queued()), TaskRecord, lambda row: replace(row, **taken))


@violates("L8")
def _() -> list[Struct]:
    return change(driven(queued()), TaskRecord, lambda row: replace(row, session="nobody remembers it"))


@violates("L8")
def _() -> list[Struct]:
    records = driven(two_steps())
    holder = HolderRecord(name="l", session="s", held=1, wanted=0, asked_at=1, served_at=1, session_ended_at=0)
    return [*records[:2], holder, *records[2:]]


@violates("L9")
def _() -> list[Struct]:
    grants = (Grant("b", "forward", 1), Grant("a", "forward", 2))
    return placed(driven(two_steps()), e.AttemptSucceeded, grants=grants)


@violates("L1")
def _() -> list[Struct]:
    """A planner is asked twice at once."""
    return placed(driven(planning()), e.ExecutionStarted, grants=(Grant("", "plan", 1), Grant("", "plan", 2)))


@violates("L2")
def _() -> list[Struct]:
    return placed(driven(planning()), e.ExecutionStarted, grants=(Grant("", "plan", 2),))


@violates("L5")
def _() -> list[Struct]:
    failed = e.AttemptFailed("", "plan", 2, 0, "w", e.Failure("TRANSIENT", "x"), "retry", 10**9)
    return followed(driven(planning()), e.ExecutionStarted, failed)


@violates("L5")
def _() -> list[Struct]:
    return followed(driven(planning()), e.ExecutionStarted, e.AttemptLost((e.Loss("", "plan", 2, "retry", 10**9),)))


@violates("L5")
def _() -> list[Struct]:
    """What has answered is lost."""
    return followed(driven(two_steps()), e.AttemptSucceeded, e.AttemptLost((e.Loss("a", "forward", 1, "retry", 0),)))


@violates("L9")
def _() -> list[Struct]:
    """What was undone is made again under its old key."""
    run = rolled_back()
    run.retry()
    return altered(driven(run), e.RunOpened, redo=(("a", 1), ("b", 1)))


@violates("L5")
def _() -> list[Struct]:
    """What was not asked to plan has planned."""
    run = planning()
    run.planned(step("a"))
    return altered(driven(run), e.ChildrenAdded, number=2)


@violates("L5")
def _() -> list[Struct]:
    """It is sent when its time is over."""
    run = given(callback("a"))
    run.start()
    run.dispatch("a")
    run.tick()
    return followed(driven(run), e.AttemptTimedOut, e.AttemptDispatched("a", "forward", 1))


@violates("L5")
def _() -> list[Struct]:
    """What has answered is handed back."""
    return followed(driven(two_steps()), e.AttemptSucceeded, e.AttemptsReturned((Ref("a", "forward", 1),)))
