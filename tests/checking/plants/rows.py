"""Rows beside the history, credits and time."""

from msgspec import Struct

from tenuto.kernel import events as e
from tenuto.kernel.events import Grant
from tenuto.storage.shared.records import ExecutionRecord, MessageRow, ReviewRecord, TaskRecord
from tests.checking.streams import NOW, altered, change, driven, edit_entries, followed, placed, without
from tests.kernel.build import approval, callback, guarded, step
from tests.kernel.driver import given

from .planting import (
    beside,
    done,
    fanned_out,
    mail,
    queued,
    replace,
    retried,
    rolled_back,
    row_with,
    two_steps,
    violates,
    waits_for_person,
)


@violates("B2")
def _() -> list[Struct]:
    return change(driven(two_steps()), MessageRow, lambda row: replace(row, created_at=1, published_at=None), nth=-1)


@violates("B4")
def _() -> list[Struct]:
    return change(driven(two_steps()), MessageRow, lambda row: replace(row, published_at=None))


@violates("B5")
def _() -> list[Struct]:
    return change(driven(two_steps()), MessageRow, lambda row: replace(row, seq=99))


@violates("B5")
def _() -> list[Struct]:
    return change(driven(two_steps()), MessageRow, lambda row: replace(row, kind="execution.finished"))


@violates("B5")
def _() -> list[Struct]:
    """What it says is not what happened."""

    def other(row: MessageRow) -> MessageRow:
        assert b'"attempt":1' in row.body
        return replace(row, body=row.body.replace(b'"attempt":1', b'"attempt":2'))

    return change(driven(two_steps()), MessageRow, other, nth=1)


@violates("B5")
def _() -> list[Struct]:
    """It says more than happened."""
    more = b'{"secret":1,'
    return change(driven(two_steps()), MessageRow, lambda row: replace(row, body=row.body.replace(b"{", more, 1)))


@violates("B5")
def _() -> list[Struct]:
    return change(driven(two_steps()), MessageRow, lambda row: replace(row, body=b"{"))


@violates("C1")
def _() -> list[Struct]:
    return altered(driven(rolled_back()), e.ExecutionFinished, refunded=5)


@violates("C2")
def _() -> list[Struct]:
    return altered(driven(two_steps()), e.AttemptSucceeded, charge=7)


@violates("M1")
def _() -> list[Struct]:
    return change(driven(waits_for_person()), ReviewRecord, lambda row: None)


@violates("V1")
def _() -> list[Struct]:
    run = given(step("a", tries=2))
    run.start()
    run.fail("a", "TRANSIENT")
    return row_with(run, owner=None, wake_at=NOW + 10**9)


@violates("V2")
def _() -> list[Struct]:
    return row_with(two_steps(), owner=None, wake_at=None)


@violates("V2")
def _() -> list[Struct]:
    """A directive that was not sent yet, and nobody is to send it."""
    run = given(callback("a"))
    run.start()
    return row_with(run, owner=None, wake_at=None)


@violates("V3")
def _() -> list[Struct]:
    return placed(driven(two_steps()), e.AttemptSucceeded, at=0)


@violates("V4")
def _() -> list[Struct]:
    run = given(approval("ok", timeout_ms=1_000), step("b"))
    run.start()
    run.tick()
    assert run.status == "failed"
    return altered(driven(run), e.ReviewOpened, due_at=10**9)


@violates("V4")
def _() -> list[Struct]:
    run = two_steps()
    run.pause()
    records = followed(driven(run), e.Paused, e.CancelRequested("compensate", "pause_limit"))
    return placed(records, e.CancelRequested, cause="timer:pause")


@violates("V5")
def _() -> list[Struct]:
    return row_with(two_steps(), owner=None, wake_at=1)


@violates("V6")
def _() -> list[Struct]:
    run = two_steps()
    return beside(run, mail(run, at=1))


@violates("C1")
def _() -> list[Struct]:
    return altered(driven(rolled_back()), e.ExecutionFinished, charged=5, refunded=-5)


@violates("M1")
def _() -> list[Struct]:
    return beside(two_steps(), *(record for record in driven(waits_for_person()) if isinstance(record, ReviewRecord)))


@violates("M1")
def _() -> list[Struct]:
    """A task of an attempt that nobody was granted."""
    run = queued()
    (task,) = [record for record in driven(run) if isinstance(record, TaskRecord)]
    return beside(run, replace(task, number=2))


@violates("V1")
def _() -> list[Struct]:
    """It is over, and something is still to be waited for."""
    review = e.ReviewOpened("x1.9", "dead_letter", "", due_at=10**9)
    return followed(driven(done()), e.ExecutionFinished, review)


@violates("V1")
def _() -> list[Struct]:
    """A timer of a step that does not wait for it: it was answered in another way."""
    run = given(guarded("a"))
    run.start()
    run.fail("a", "TRANSIENT")
    run.tick()

    def edit(entries: list[e.Entry]) -> list[e.Entry]:
        *before, asked = entries
        return [*before, replace(asked, grants=(Grant("a", "forward", 2),))]

    return edit_entries(driven(run), edit)


@violates("V2")
def _() -> list[Struct]:
    run = two_steps()
    return change(beside(run, mail(run)), ExecutionRecord, lambda row: replace(row, owner=None, wake_at=None))


@violates("V2")
def _() -> list[Struct]:
    return change(driven(queued()), TaskRecord, lambda row: None)


@violates("V2")
def _() -> list[Struct]:
    """All is done, and nobody says so."""
    return without(driven(done()), e.ExecutionFinished)


@violates("V2")
def _() -> list[Struct]:
    """A clone could run, and does not."""
    return placed(driven(fanned_out()), e.Expanded, grants=(Grant("n#0", "forward", 1),))


@violates("V2")
def _() -> list[Struct]:
    """A step could run, and does not."""
    return placed(driven(two_steps()), e.AttemptSucceeded, grants=())


@violates("V2")
def _() -> list[Struct]:
    """It is to be tried again, and nobody knows when."""
    run = given(step("a"))
    run.start()
    run.fail("a", "TRANSIENT")
    return altered(driven(run), e.AttemptFailed, retry_at=None)


@violates("B5")
def _() -> list[Struct]:
    """A message of an entry of which nobody is told."""
    return change(driven(retried()), MessageRow, lambda row: replace(row, seq=3), nth=-1)
