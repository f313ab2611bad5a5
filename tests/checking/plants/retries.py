"""Retries and safety."""

from msgspec import Struct

from tenuto.kernel import events as e
from tenuto.kernel.events import Grant
from tests.checking.streams import altered, at_once, driven, edit_entries, followed, without
from tests.kernel.build import callback, guarded, step, unsafe
from tests.kernel.driver import Driver, given

from .planting import lost, planning, replace, retried, rolled_back, second_round, two_steps, unsafe_begun, violates


@violates("R1")
def _() -> list[Struct]:
    run = retried()
    run.fail("a", "TRANSIENT")
    records = followed(driven(run), e.AttemptFailed, e.AttemptsGranted(), Grant("a", "forward", 3), nth=1)
    return altered(records, e.AttemptFailed, 1, verdict="retry", retry_at=10**9)


@violates("R2")
def _() -> list[Struct]:
    failure = e.Failure("RETRYABLE", "other")
    return altered(driven(retried()), e.AttemptFailed, failure=failure)


@violates("R2")
def _() -> list[Struct]:
    """Its effect was looked up and not found, but its policy does not retry such a failure."""
    run = given(unsafe("pay", reconcile=True, on=("RATE_LIMITED",)))
    run.start()
    run.begin("pay")
    run.fail("pay", "TRANSIENT")
    run.tick()
    run.not_done("pay")
    records = altered(driven(run), e.ProbeAnswered, verdict="retry", failure=None)
    for kind in (e.ScopeClosing, e.ReviewOpened, e.ExecutionFinished):
        records = without(records, kind)
    return followed(records, e.ProbeAnswered, e.AttemptsGranted(), Grant("pay", "forward", 2))


@violates("R6")
def _() -> list[Struct]:
    """Its effect is looked up sooner than its delay says."""
    run = unsafe_begun()
    run.fail("pay", "DEPENDENCY_FAILED")
    return altered(driven(run), e.AttemptFailed, retry_at=0)


@violates("R3")
def _() -> list[Struct]:
    run = unsafe_begun()
    run.time_out("pay")
    return altered(driven(run), e.AttemptTimedOut, verdict="retry", retry_at=10**9)


@violates("R4")
def _() -> list[Struct]:
    run = given(guarded("a"))
    run.start()
    run.fail("a", "TRANSIENT")
    run.tick()

    def edit(entries: list[e.Entry]) -> list[e.Entry]:
        started, failed, asked = entries
        return [started, failed, replace(asked, grants=(Grant("a", "forward", 2),))]

    return edit_entries(driven(run), edit)


@violates("R5")
def _() -> list[Struct]:
    run = unsafe_begun()
    run.crash()
    return altered(driven(run), e.AttemptLost, losses=(e.Loss("pay", "forward", 1, "probe", 0),))


@violates("R6")
def _() -> list[Struct]:
    return altered(driven(retried()), e.AttemptFailed, retry_at=0)


@violates("R8")
def _() -> list[Struct]:
    return without(driven(rolled_back()), e.ReviewOpened)


@violates("R9")
def _() -> list[Struct]:
    run = given(unsafe("pay", reconcile=True))
    run.start()
    return followed(driven(run), e.ExecutionStarted, e.AttemptLost((e.Loss("pay", "forward", 1, "probe", 10**9),)))


def _twice_failed() -> Driver:
    """Both attempts that it has are spent."""
    run = retried()
    run.fail("a", "TRANSIENT")
    return run


def _spent(records: list[Struct], kind: type[Struct], nth: int, number: int) -> list[Struct]:
    """Another attempt after what was the last."""
    return followed(records, kind, e.AttemptsGranted(), Grant("a", "forward", number), nth=nth)


@violates("R1")
def _() -> list[Struct]:
    return _spent(driven(_twice_failed()), e.AttemptFailed, 1, 3)


@violates("R1")
def _() -> list[Struct]:
    """It fails more often than it may be tried."""
    records = altered(driven(_twice_failed()), e.AttemptFailed, 1, verdict="retry", retry_at=0)
    failed = e.AttemptFailed("a", "forward", 3, 0, "w", e.Failure("TRANSIENT", "x"), "fail")
    return followed(_spent(records, e.AttemptFailed, 1, 3), e.AttemptsGranted, failed, nth=1)


@violates("R1")
def _() -> list[Struct]:
    return _spent(driven(lost(4)), e.AttemptLost, 3, 5)


@violates("R1")
def _() -> list[Struct]:
    """It is lost more often than it may be."""
    records = altered(driven(lost(4)), e.AttemptLost, 3, losses=(e.Loss("a", "forward", 4, "retry", 0),))
    again = _spent(records, e.AttemptLost, 3, 5)
    return followed(again, e.AttemptsGranted, e.AttemptLost((e.Loss("a", "forward", 5, "fail"),)), nth=-1)


@violates("R1")
def _() -> list[Struct]:
    """Nobody has accepted it ten times."""
    run = given(callback("a"))
    run.start()
    for _ in range(9):
        run.refuse_dispatch("a")
        run.tick()
    run.refuse_dispatch("a")
    return _spent(driven(run), e.DispatchFailed, 9, 11)


@violates("R1")
def _() -> list[Struct]:
    """No planner has survived."""
    run = planning()
    run.crash_and_wait(3)
    run.crash()
    return followed(driven(run), e.AttemptLost, e.AttemptsGranted(), Grant("", "plan", 5), nth=3)


@violates("R1")
def _() -> list[Struct]:
    return altered(driven(second_round()), e.ScopeRestarted, round=4)


@violates("R1")
def _() -> list[Struct]:
    return altered(driven(second_round()), e.ScopeRestarted, budget_left=99)


def _reconciled() -> Driver:
    """Its worker was lost, its effect looked for and not found; so it is made again."""
    run = unsafe_begun()
    run.crash()
    run.tick()
    run.not_done("pay")
    return run


@violates("R3")
def _() -> list[Struct]:
    """Begun, lost, and made once more without asking."""

    def edit(entries: list[e.Entry]) -> list[e.Entry]:
        asked = Grant("pay", "reconcile", 1)
        again = (Grant("pay", "forward", 2),)
        return [replace(entry, grants=again) if asked in entry.grants else entry for entry in entries[:4]]

    return edit_entries(driven(_reconciled()), edit)


@violates("R3")
def _() -> list[Struct]:
    losses = (e.Loss("pay", "forward", 1, "retry", 10**9),)
    return altered(driven(_reconciled()), e.AttemptLost, losses=losses)


@violates("R3")
def _() -> list[Struct]:
    return altered(driven(_reconciled()), e.ProbeAnswered, answer="unknown")


@violates("R6")
def _() -> list[Struct]:
    return at_once(retried())


@violates("R6")
def _() -> list[Struct]:
    """A planner is asked again before its time."""
    run = planning()
    run.plan_fails("TRANSIENT")
    run.tick()
    return at_once(run)


@violates("R6")
def _() -> list[Struct]:
    """A round begins before its time."""
    return at_once(second_round())


@violates("R9")
def _() -> list[Struct]:
    """Handed back, and lost."""
    run = two_steps()
    run.give_back("b")
    return followed(driven(run), e.AttemptsReturned, e.AttemptLost((e.Loss("b", "forward", 1, "retry", 0),)))


@violates("R9")
def _() -> list[Struct]:
    """Nobody had taken it."""
    run = given(step("a"))
    run.start(owned=False)
    return followed(driven(run), e.ExecutionStarted, e.AttemptLost((e.Loss("a", "forward", 1, "retry", 0),)))


@violates("R3")
def _() -> list[Struct]:
    """One attempt begins twice."""
    return followed(driven(unsafe_begun()), e.AttemptBegun, e.AttemptBegun("pay", "forward", 1, "another"))


def _rate_limited() -> Driver:
    """Whoever was called wants to be left alone for a minute."""
    run = given(step("a"))
    run.start()
    run.fail("a", "RATE_LIMITED", retry_after=60_000)
    return run


@violates("R6")
def _() -> list[Struct]:
    """He is called again before that, though after the delay of the policy."""
    run = _rate_limited()
    (_, failed) = run.history
    return altered(driven(run), e.AttemptFailed, retry_at=failed.at + 59_999)


@violates("R6")
def _() -> list[Struct]:
    """An undo is tried again at once."""
    run = given(step("a", undo=True, compensation_max_attempts=2), step("b"))
    run.start()
    run.succeed("a")
    run.fail("b")
    run.undo_fails("a", "TRANSIENT")
    return altered(driven(run), e.AttemptFailed, 1, retry_at=0)


@violates("R6")
def _() -> list[Struct]:
    """It is sent again at once."""
    run = given(callback("a"))
    run.start()
    run.refuse_dispatch("a")
    return altered(driven(run), e.DispatchFailed, retry_at=0)
