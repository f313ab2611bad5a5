"""People and signals."""

from msgspec import Struct

from tenuto.kernel import events as e
from tenuto.storage.shared.records import ReviewRecord
from tests.checking.streams import altered, change, driven, followed
from tests.kernel.build import step, wait_for
from tests.kernel.driver import given

from .planting import replace, two_steps, violates, waits_for_person


@violates("H1")
def _() -> list[Struct]:
    return change(driven(waits_for_person()), ReviewRecord, lambda row: replace(row, resolution="approved"))


@violates("H2")
def _() -> list[Struct]:
    run = waits_for_person()
    run.approve("ok")
    resolved = e.ReviewResolved(f"{run.state.id}.2", "approved", "succeed")
    return followed(driven(run), e.ReviewResolved, resolved)


@violates("H5")
def _() -> list[Struct]:
    run = two_steps()
    run.signal("go", id="s1")
    return followed(driven(run), e.SignalKept, e.SignalKept("go", "s1", e.NULL))


@violates("H6")
def _() -> list[Struct]:
    return followed(driven(waits_for_person()), e.ReviewOpened, e.ExecutionFinished("succeeded"))


@violates("H2")
def _() -> list[Struct]:
    """Opened once more under its old name."""
    run = waits_for_person()
    (opened,) = [entry.event for entry in run.history if isinstance(entry.event, e.ReviewOpened)]
    return followed(driven(run), e.ReviewOpened, opened)


@violates("H5")
def _() -> list[Struct]:
    """One signal ends two waits."""
    run = given(wait_for("v", "go"), wait_for("w", "go"), step("b"))
    run.start()
    run.signal("go", id="s1")
    run.signal("go", id="s2")
    return altered(driven(run), e.WaitEnded, 1, by="s1")
