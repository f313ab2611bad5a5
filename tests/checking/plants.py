"""A violation of every invariant, planted into records that are sound without it."""

import hashlib
from collections.abc import Callable

import msgspec
from msgspec import Struct

from tenuto.kernel import events as e
from tenuto.kernel.codec import encode_answer
from tenuto.kernel.events import Grant
from tenuto.kernel.facts import Ignored
from tenuto.storage.records import (
    AdmissionRow,
    DuplicateKey,
    EventsRow,
    ExecutionRecord,
    MailRow,
    MessageRow,
    ReviewRecord,
    TenantLimitRow,
)
from tenuto.storage.store import DefinitionRow
from tests.kernel.build import approval, guarded, step, unsafe
from tests.kernel.driver import Driver, given

from .streams import NOW, altered, change, driven, edit_entries, followed, placed, without

Plant = Callable[[], list[Struct]]

PLANTS: dict[str, Plant] = {}


def violates(id: str) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        PLANTS[id] = plant
        return plant

    return register


replace = msgspec.structs.replace


def _two() -> Driver:
    """Two steps in sequence, the first done."""
    run = given(step("a", undo=True), step("b", undo=True))
    run.start()
    run.succeed("a")
    return run


def _failed() -> Driver:
    """Failed and rolled back."""
    run = given(step("a", undo=True), step("b", undo=True), step("c"))
    run.start()
    run.succeed("a", "b")
    run.fail("c", "NON_RETRYABLE")
    run.undo("b", "a")
    assert run.status == "failed"
    return run


def _retried() -> Driver:
    """One failure, one retry."""
    run = given(step("a", tries=2, on=("TRANSIENT",)))
    run.start()
    run.fail("a", "TRANSIENT")
    run.tick()
    return run


def _unsafe() -> Driver:
    run = given(unsafe("pay", reconcile=True))
    run.start()
    run.begin("pay")
    return run


def _approval() -> Driver:
    run = given(approval("ok"), step("b"))
    run.start()
    assert run.status == "waiting_approval"
    return run


def _row(run: Driver, **fields: object) -> list[Struct]:
    return change(driven(run), ExecutionRecord, lambda row: replace(row, **fields))


def _with(run: Driver, *records: Struct) -> list[Struct]:
    found = driven(run)
    return [*found[:-1], *records, found[-1]]


def _mail(run: Driver, *, execution: str | None = None, at: int = NOW, verdict: bytes | None = None) -> MailRow:
    return MailRow(id="m", execution=execution or run.state.id, received_at=at, body=b"{}", verdict=verdict)


# -- Definitions and keys ----------------------------------------------------------------------------------------------


def _document(edit: Callable[[bytes], bytes], *, hashed: bool) -> list[Struct]:
    def changed(row: DefinitionRow) -> DefinitionRow:
        document = edit(row.document)
        return replace(row, document=document, hash=hashlib.sha256(document).hexdigest() if hashed else row.hash)

    return change(driven(_two()), DefinitionRow, changed)


@violates("D1")
def _() -> list[Struct]:
    return _document(lambda document: document.replace(b'"description":""', b'"description":"other"'), hashed=False)


@violates("D2")
def _() -> list[Struct]:
    return altered(driven(_two()), e.ExecutionStarted, plan_hash="another")


@violates("D3")
def _() -> list[Struct]:
    return _document(lambda document: document.replace(b'"max_attempts":3', b'"max_attempts":0'), hashed=True)


@violates("K2")
def _() -> list[Struct]:
    records = driven(_two())
    return [*records[:2], DuplicateKey(tenant="t", key="k", executions=2), *records[2:]]


@violates("K8")
def _() -> list[Struct]:
    run = given(step("a"), concurrency_key="'k'")
    run.start(key="k")
    return change(driven(run), AdmissionRow, lambda row: replace(row, ahead=1))


@violates("I1")
def _() -> list[Struct]:
    return change(driven(_approval()), ReviewRecord, lambda row: replace(row, tenant="another"))


@violates("I3")
def _() -> list[Struct]:
    records = driven(_two())
    return [*records[:2], TenantLimitRow(tenant="t", max_in_flight=5, in_flight=3, counted=2), *records[2:]]


# -- Attempts ----------------------------------------------------------------------------------------------------------


@violates("L1")
def _() -> list[Struct]:
    return placed(driven(_two()), e.ExecutionStarted, grants=(Grant("a", "forward", 1), Grant("a", "forward", 2)))


@violates("L2")
def _() -> list[Struct]:
    return placed(driven(_retried()), e.AttemptsGranted, grants=(Grant("a", "forward", 3),))


@violates("L3")
def _() -> list[Struct]:
    return followed(driven(_two()), e.AttemptSucceeded, e.AttemptsGranted(), Grant("b", "forward", 1))


@violates("L4")
def _() -> list[Struct]:
    run = _two()
    run.crash()
    return placed(driven(run), e.AttemptLost, epoch=0)


@violates("L5")
def _() -> list[Struct]:
    records = driven(_two())
    return followed(records, e.AttemptSucceeded, e.AttemptSucceeded("a", "forward", 1, 0, "w"))


@violates("L6")
def _() -> list[Struct]:
    run = _two()
    records = _with(run, _mail(run, verdict=encode_answer(Ignored("duplicate"))))
    return placed(records, e.AttemptSucceeded, cause="m")


@violates("L8")
def _() -> list[Struct]:
    return _row(_two(), owner_ended_at=NOW - 10**7)


@violates("L9")
def _() -> list[Struct]:
    grants = (Grant("b", "forward", 1), Grant("a", "forward", 2))
    return placed(driven(_two()), e.AttemptSucceeded, grants=grants)


# -- Retries and safety ------------------------------------------------------------------------------------------------


@violates("R1")
def _() -> list[Struct]:
    run = _retried()
    run.fail("a", "TRANSIENT")
    records = followed(driven(run), e.AttemptFailed, e.AttemptsGranted(), Grant("a", "forward", 3), nth=1)
    return altered(records, e.AttemptFailed, 1, verdict="retry", retry_at=10**9)


@violates("R2")
def _() -> list[Struct]:
    failure = e.Failure("RETRYABLE", "other")
    return altered(driven(_retried()), e.AttemptFailed, failure=failure)


@violates("R3")
def _() -> list[Struct]:
    run = _unsafe()
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
    run = _unsafe()
    run.crash()
    return altered(driven(run), e.AttemptLost, losses=(e.Loss("pay", "forward", 1, "probe", 0),))


@violates("R6")
def _() -> list[Struct]:
    return altered(driven(_retried()), e.AttemptFailed, retry_at=0)


@violates("R8")
def _() -> list[Struct]:
    return without(driven(_failed()), e.ReviewOpened)


@violates("R9")
def _() -> list[Struct]:
    run = given(unsafe("pay", reconcile=True))
    run.start()
    return followed(driven(run), e.ExecutionStarted, e.AttemptLost((e.Loss("pay", "forward", 1, "probe", 10**9),)))


# -- The state machine -------------------------------------------------------------------------------------------------


@violates("G1")
def _() -> list[Struct]:
    return followed(driven(_approval()), e.ReviewOpened, e.ExecutionFinished("succeeded"))


@violates("G2")
def _() -> list[Struct]:
    return followed(driven(_failed()), e.ExecutionFinished, e.AttemptsGranted(), Grant("c", "forward", 2))


@violates("G3")
def _() -> list[Struct]:
    return change(driven(_failed()), EventsRow, lambda row: None, nth=1)


@violates("G4")
def _() -> list[Struct]:
    return _row(_two(), status="paused")


@violates("G5")
def _() -> list[Struct]:
    return followed(driven(_two()), e.AttemptSucceeded, e.ExecutionFinished("succeeded"))


@violates("G6")
def _() -> list[Struct]:
    run = _two()
    return _with(run, _mail(run, execution="nobody"))


@violates("G7")
def _() -> list[Struct]:
    run = given(step("a"), step("b"))
    run.start()
    run.pause()
    run.succeed("a")
    return placed(driven(run), e.AttemptSucceeded, grants=(Grant("b", "forward", 1),))


@violates("G8")
def _() -> list[Struct]:
    return placed(driven(_two()), e.ExecutionStarted, grants=(Grant("a", "forward", 1), Grant("b", "forward", 1)))


# -- Undo --------------------------------------------------------------------------------------------------------------


@violates("P1")
def _() -> list[Struct]:
    return altered(driven(_failed()), e.CompensationStarted, groups=(("b",),))


@violates("P2")
def _() -> list[Struct]:
    return altered(driven(_failed()), e.CompensationStarted, groups=(("a",), ("b",)))


def _undo_failed() -> Driver:
    run = given(step("a", undo=True), step("b"))
    run.start()
    run.succeed("a")
    run.fail("b", "NON_RETRYABLE")
    run.undo_fails("a")
    return run


@violates("P3")
def _() -> list[Struct]:
    return followed(driven(_undo_failed()), e.AttemptFailed, e.AttemptsGranted(), Grant("a", "compensate", 2), nth=1)


@violates("P4")
def _() -> list[Struct]:
    return without(driven(_undo_failed()), e.ReviewOpened)


@violates("P5")
def _() -> list[Struct]:
    return followed(driven(_two()), e.AttemptSucceeded, e.CompensationStarted("failed", (("a",),)))


# -- People ------------------------------------------------------------------------------------------------------------


@violates("H1")
def _() -> list[Struct]:
    return change(driven(_approval()), ReviewRecord, lambda row: replace(row, resolution="approved"))


@violates("H2")
def _() -> list[Struct]:
    run = _approval()
    run.approve("ok")
    resolved = e.ReviewResolved(f"{run.state.id}.2", "approved", "succeed")
    return followed(driven(run), e.ReviewResolved, resolved)


@violates("H5")
def _() -> list[Struct]:
    run = _two()
    run.signal("go", id="s1")
    return followed(driven(run), e.SignalKept, e.SignalKept("go", "s1", e.NULL))


@violates("H6")
def _() -> list[Struct]:
    return followed(driven(_approval()), e.ReviewOpened, e.ExecutionFinished("succeeded"))


# -- Rows, credits, time -----------------------------------------------------------------------------------------------


@violates("B5")
def _() -> list[Struct]:
    run = _two()
    message = MessageRow(
        execution=run.state.id, seq=99, tenant=run.state.tenant, kind="x", created_at=0, published_at=None, tries=0
    )
    return _with(run, message)


@violates("C1")
def _() -> list[Struct]:
    return altered(driven(_failed()), e.ExecutionFinished, refunded=5)


@violates("C2")
def _() -> list[Struct]:
    return altered(driven(_two()), e.AttemptSucceeded, charge=7)


@violates("M1")
def _() -> list[Struct]:
    return change(driven(_approval()), ReviewRecord, lambda row: None)


@violates("V1")
def _() -> list[Struct]:
    run = given(step("a", tries=2))
    run.start()
    run.fail("a", "TRANSIENT")
    return _row(run, owner=None, wake_at=NOW)


@violates("V2")
def _() -> list[Struct]:
    return _row(_two(), owner=None, wake_at=None)


@violates("V3")
def _() -> list[Struct]:
    return placed(driven(_two()), e.AttemptSucceeded, at=0)


@violates("V5")
def _() -> list[Struct]:
    return _row(_two(), owner=None, wake_at=1)


@violates("V6")
def _() -> list[Struct]:
    run = _two()
    return _with(run, _mail(run, at=1))
