"""Undo."""

from msgspec import Struct

from tenuto.kernel import events as e
from tenuto.kernel.events import Grant
from tests.checking.streams import altered, driven, followed, placed, rewritten, without
from tests.kernel.build import step
from tests.kernel.driver import Driver, given

from .planting import replace, rolled_back, two_steps, undo_failed, violates


@violates("P1")
def _() -> list[Struct]:
    return altered(driven(rolled_back()), e.CompensationStarted, groups=(("b",),))


@violates("P2")
def _() -> list[Struct]:
    return altered(driven(rolled_back()), e.CompensationStarted, groups=(("a",), ("b",)))


@violates("P3")
def _() -> list[Struct]:
    return followed(driven(undo_failed()), e.AttemptFailed, e.AttemptsGranted(), Grant("a", "compensate", 2), nth=1)


@violates("P4")
def _() -> list[Struct]:
    return without(driven(undo_failed()), e.ReviewOpened)


@violates("P5")
def _() -> list[Struct]:
    return followed(driven(two_steps()), e.AttemptSucceeded, e.CompensationStarted("failed", (("a",),)))


@violates("P1")
def _() -> list[Struct]:
    grants = (Grant("b", "forward", 1), Grant("a", "compensate", 1))
    return placed(driven(two_steps()), e.AttemptSucceeded, grants=grants)


@violates("P1")
def _() -> list[Struct]:
    """What has nothing to be undone is."""
    grants = (Grant("b", "compensate", 1), Grant("c", "compensate", 1))
    return placed(driven(rolled_back()), e.CompensationStarted, grants=grants)


@violates("P1")
def _() -> list[Struct]:
    started = e.CompensationStarted("failed", (("b",), ("a",)))
    return followed(placed(driven(rolled_back()), e.CompensationStarted, grants=()), e.CompensationStarted, started)


@violates("P1")
def _() -> list[Struct]:
    return altered(driven(rolled_back()), e.CompensationStarted, groups=(("b",), ("b",), ("a",)))


def _undoes(entry: e.Entry, *paths: str) -> bool:
    event = entry.event
    return isinstance(event, e.AttemptSucceeded) and event.phase == "compensate" and event.path in paths


@violates("P1")
def _() -> list[Struct]:
    """Failed, and nothing is undone."""

    def edit(entries: list[e.Entry]) -> list[e.Entry]:
        return [x for x in entries if not (_undoes(x, "a", "b") or isinstance(x.event, e.CompensationStarted))]

    return rewritten(rolled_back(), edit)


@violates("P1")
def _() -> list[Struct]:
    """Over before all of it is undone."""

    def edit(entries: list[e.Entry]) -> list[e.Entry]:
        return [replace(x, grants=()) if _undoes(x, "b") else x for x in entries if not _undoes(x, "a")]

    return rewritten(rolled_back(), edit)


def _made(compensation: str, *, critical: bool = False) -> Driver:
    """Two steps are made and the third fails: both are to be undone."""
    run = given(
        step("a", undo=True), step("b", undo=True, compensation_critical=critical), step("c"), compensation=compensation
    )
    run.start()
    run.succeed("a", "b")
    run.fail("c", "NON_RETRYABLE")
    return run


@violates("P2")
def _() -> list[Struct]:
    return altered(driven(rolled_back()), e.CompensationStarted, groups=(("b", "a"),))


@violates("P2")
def _() -> list[Struct]:
    return altered(driven(_made("BEST_EFFORT_PARALLEL")), e.CompensationStarted, groups=(("b",), ("a",)))


@violates("P2")
def _() -> list[Struct]:
    return altered(driven(_made("GROUPED_PARALLEL")), e.CompensationStarted, groups=(("a",), ("b",)))


@violates("P2")
def _() -> list[Struct]:
    """The undo of the first does not wait for that of the second."""
    grants = (Grant("b", "compensate", 1), Grant("a", "compensate", 1))
    return placed(driven(rolled_back()), e.CompensationStarted, grants=grants)


@violates("P2")
def _() -> list[Struct]:
    """More at once than anything else is."""
    run = given(
        step("a", undo=True), step("b", undo=True), step("c"), compensation="BEST_EFFORT_PARALLEL", max_concurrency=1
    )
    run.start()
    run.succeed("a", "b")
    run.fail("c", "NON_RETRYABLE")
    grants = (Grant("b", "compensate", 1), Grant("a", "compensate", 1))
    return placed(driven(run), e.CompensationStarted, grants=grants)


@violates("P2")
def _() -> list[Struct]:
    """The undo of the second failed, and that of the first is begun all the same."""
    run = _made("STRICT_SEQUENTIAL")
    run.undo_fails("b")
    return followed(driven(run), e.AttemptFailed, e.AttemptsGranted(), Grant("a", "compensate", 1), nth=1)


@violates("P2")
def _() -> list[Struct]:
    run = _made("CIRCUIT_BREAKER", critical=True)
    run.undo_fails("b")
    return followed(driven(run), e.AttemptFailed, e.AttemptsGranted(), Grant("a", "compensate", 1), nth=1)


@violates("P5")
def _() -> list[Struct]:
    """An undo is begun beside something that goes forward."""
    run = given(step("a", undo=True), step("b"), step("c"))
    run.start()
    run.succeed("a")
    run.fail("b", "NON_RETRYABLE")
    return placed(driven(run), e.CompensationStarted, grants=(Grant("c", "forward", 1), Grant("a", "compensate", 1)))
