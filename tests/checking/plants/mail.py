"""Mail: verdicts that nothing is recorded for, and records that no verdict explains."""

from msgspec import Struct

from tenuto.kernel import events as e
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref, lease_id
from tenuto.storage.shared.records import MailRow
from tests.checking.streams import change, driven, placed
from tests.kernel.build import approval, callback, step
from tests.kernel.driver import Driver, given, raw

from .planting import beside, mail, replace, two_steps, violates


def told(run: Driver, fact: f.Fact, **letter: object) -> list[Struct]:
    """What came by mail and was applied, with its letter: as it was sent, or with another one."""
    fact = replace(fact, cause="m")
    assert run.tell(fact) == f.APPLIED
    sent = replace(fact, cause=None, **letter)
    return beside(run, mail(run, sent, answer=f.APPLIED))


def succeeded(path: str, number: int = 1, lease: str | None = None) -> f.Reported:
    outcome = f.Succeeded(result=raw("fine"))
    return f.Reported(at=0, ref=Ref(path, "forward", number), outcome=outcome, worker="w", lease=lease)


def applied(run: Driver, fact: f.Fact) -> list[Struct]:
    """A letter that says of itself that it was applied, and of which nothing is recorded."""
    return beside(run, mail(run, fact, answer=f.APPLIED))


@violates("L6")
def _() -> list[Struct]:
    run = two_steps()
    records = beside(run, mail(run, answer=f.Ignored("duplicate")))
    return placed(records, e.AttemptSucceeded, cause="m")


@violates("L6")
def _() -> list[Struct]:
    run = two_steps()
    return placed(beside(run, mail(run)), e.AttemptSucceeded, cause="m")


@violates("L6")
def _() -> list[Struct]:
    """An entry of mail that is not there."""
    return placed(driven(two_steps()), e.AttemptSucceeded, cause="m")


@violates("L6")
def _() -> list[Struct]:
    """An attempt that never was has reported, and that was applied."""
    return applied(two_steps(), succeeded("b", 7))


@violates("L6")
def _() -> list[Struct]:
    return applied(two_steps(), f.Retry(at=0, reason="again"))


@violates("L6")
def _() -> list[Struct]:
    return applied(two_steps(), f.Cancel(at=0, mode="drain"))


@violates("L6")
def _() -> list[Struct]:
    """Another signal was heard, and this one was not."""
    run = two_steps()
    run.signal("go", id="s1")
    return applied(run, f.Signal(at=0, name="go", id="s2", payload=raw(None)))


@violates("L6")
def _() -> list[Struct]:
    run = two_steps()
    records = told(run, succeeded("b"))
    return change(records, MailRow, lambda row: replace(row, body=b"{}"))


@violates("L6")
def _() -> list[Struct]:
    """It was decided twice."""
    run = two_steps()
    records = told(run, f.Signal(at=0, name="go", id="s1", payload=raw(None)))
    return placed(records, e.AttemptSucceeded, cause="m")


@violates("L6")
def _() -> list[Struct]:
    """In the name of another."""
    return told(two_steps(), f.Pause(at=0, actor="ann"), actor="eve")


@violates("L6")
def _() -> list[Struct]:
    """Another question was answered."""
    run = given(approval("ok"), step("b"))
    run.start()
    (review,) = run.state.reviews
    return told(run, f.Decide(at=0, resolution="approved", review=review), review="another")


@violates("L5")
def _() -> list[Struct]:
    """What is recorded is of another attempt."""
    return told(two_steps(), succeeded("b"), ref=Ref("a", "forward", 1))


@violates("L5")
def _() -> list[Struct]:
    """With the lease of another attempt."""
    run = given(callback("a"))
    run.start()
    run.dispatch("a")
    id = run.state.id
    own, other = (lease_id(id, Ref("a", "forward", number)) for number in (1, 2))
    return told(run, succeeded("a", lease=own), lease=other)


@violates("L5")
def _() -> list[Struct]:
    """It failed, and is recorded as done."""
    failed = f.Failed(error_class="NON_RETRYABLE", code="no")
    return told(two_steps(), succeeded("b"), outcome=failed)
