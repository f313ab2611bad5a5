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
    ActRecord,
    AdmissionRow,
    AuditRecord,
    DuplicateKey,
    EventsRow,
    ExecutionRecord,
    HeadRecord,
    HolderRecord,
    MailRow,
    MessageRow,
    NoticeRecord,
    ProgressRecord,
    ReviewRecord,
    TaskRecord,
    TenantLimitRow,
)
from tenuto.storage.store import DefinitionRow
from tests.kernel.build import approval, definition, guarded, step, unsafe
from tests.kernel.driver import Driver, given

from .streams import NOW, altered, change, driven, edit_entries, followed, placed, without

Plant = Callable[[], list[Struct]]

PLANTS: dict[str, list[Plant]] = {}


def violates(id: str) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        PLANTS.setdefault(id, []).append(plant)
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


def _notice(run: Driver) -> NoticeRecord:
    return NoticeRecord(
        key="k", tenant=run.state.tenant, execution=run.state.id, path="a", channel="log", begun_at=1, sent_at=None,
        receipt=None,
    )  # fmt: skip


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


@violates("D5")
def _() -> list[Struct]:
    run = Driver(replace(definition(step("a")), input_schema={"type": "string"}))
    run.start("fits")
    return altered(driven(run), e.ExecutionStarted, input=msgspec.Raw(b"7"))


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


@violates("I1")
def _() -> list[Struct]:
    return change(driven(_queued()), TaskRecord, lambda row: replace(row, tenant="another"))


@violates("I1")
def _() -> list[Struct]:
    run = _two()
    return _with(run, replace(_notice(run), tenant="another"))


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


@violates("L8")
def _() -> list[Struct]:
    taken = {"session": "gone", "session_ended_at": 1, "session_expires_at": 1}
    return change(driven(_queued()), TaskRecord, lambda row: replace(row, **taken))


@violates("L8")
def _() -> list[Struct]:
    return change(driven(_queued()), TaskRecord, lambda row: replace(row, session="nobody remembers it"))


@violates("L8")
def _() -> list[Struct]:
    records = driven(_two())
    holder = HolderRecord(name="l", session="s", held=1, wanted=0, asked_at=1, served_at=1, session_ended_at=0)
    return [*records[:2], holder, *records[2:]]


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


def _columns() -> Driver:
    """Started with all that a start can say, approved by somebody, failed."""
    run = given(approval("ok"), step("b"))
    run.start(actor="ben")
    run.approve("ok")
    run.fail("b", "NON_RETRYABLE")
    assert run.status == "failed"
    return run


def _column(kind: type[Struct], name: str, value: object) -> None:
    def plant() -> list[Struct]:
        return change(driven(_columns()), kind, lambda row: replace(row, **{name: value}))

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


def _queued() -> Driver:
    run = given(step("a", queue="gpu"))
    run.start()
    return run


for _name, _value in {"plan": "other/1", "queue": "other", "handler": "other", "priority": 7}.items():

    def _task(name: str = _name, value: object = _value) -> list[Struct]:
        return change(driven(_queued()), TaskRecord, lambda row: replace(row, **{name: value}))

    violates("G4")(_task)


@violates("G5")
def _() -> list[Struct]:
    return followed(driven(_two()), e.AttemptSucceeded, e.ExecutionFinished("succeeded"))


@violates("G6")
def _() -> list[Struct]:
    run = _two()
    return _with(run, _mail(run, execution="nobody"))


@violates("G6")
def _() -> list[Struct]:
    return _with(_two(), ProgressRecord(execution="nobody", path="a", body=b"1"))


@violates("G6")
def _() -> list[Struct]:
    return _with(_two(), replace(_notice(_two()), execution="nobody"))


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


@violates("B2")
def _() -> list[Struct]:
    return change(driven(_two()), MessageRow, lambda row: replace(row, created_at=1, published_at=None), nth=-1)


@violates("B4")
def _() -> list[Struct]:
    return change(driven(_two()), MessageRow, lambda row: replace(row, published_at=None))


@violates("B5")
def _() -> list[Struct]:
    return change(driven(_two()), MessageRow, lambda row: replace(row, seq=99))


@violates("B5")
def _() -> list[Struct]:
    return change(driven(_two()), MessageRow, lambda row: replace(row, kind="execution.finished"))


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
    return _row(run, owner=None, wake_at=NOW + 10**9)


@violates("V2")
def _() -> list[Struct]:
    return _row(_two(), owner=None, wake_at=None)


@violates("V3")
def _() -> list[Struct]:
    return placed(driven(_two()), e.AttemptSucceeded, at=0)


@violates("V4")
def _() -> list[Struct]:
    run = given(approval("ok", timeout_ms=1_000), step("b"))
    run.start()
    run.tick()
    assert run.status == "failed"
    return altered(driven(run), e.ReviewOpened, due_at=10**9)


@violates("V4")
def _() -> list[Struct]:
    run = _two()
    run.pause()
    return followed(driven(run), e.Paused, e.CancelRequested("compensate", "pause_limit"))


@violates("V5")
def _() -> list[Struct]:
    return _row(_two(), owner=None, wake_at=1)


@violates("V6")
def _() -> list[Struct]:
    run = _two()
    return _with(run, _mail(run, at=1))


# -- The audit ---------------------------------------------------------------------------------------------------------


def _audited() -> list[Struct]:
    """Started, decided and failed in names: a chain of several rows."""
    return driven(_columns())


@violates("A1")
def _() -> list[Struct]:
    return change(_audited(), AuditRecord, lambda row: replace(row, actor="user:eve"))


@violates("A1")
def _() -> list[Struct]:
    return change(_audited(), AuditRecord, lambda row: None, nth=1)


@violates("A1")
def _() -> list[Struct]:
    return change(_audited(), HeadRecord, lambda row: replace(row, n=row.n + 1))


@violates("A1")
def _() -> list[Struct]:
    """All rows are gone."""
    return change(_audited(), HeadRecord, lambda row: replace(row, last_n=None, last_hash=None))


@violates("A1")
def _() -> list[Struct]:
    return change(_audited(), AuditRecord, lambda row: replace(row, head=None))


@violates("A1")
def _() -> list[Struct]:
    """Written long ago, and not chained since."""
    return change(_audited(), AuditRecord, lambda row: replace(row, n=None, hash=None), nth=-1)


@violates("A2")
def _() -> list[Struct]:
    records = _audited()
    last = [record for record in records if isinstance(record, ActRecord)][-1]
    assert (last.actor, last.action) == ("system", "execution.failed")
    return [record for record in records if record != last]


@violates("H4")
def _() -> list[Struct]:
    """What somebody did is not in the audit."""
    return change(_audited(), ActRecord, lambda row: None)


@violates("H4")
def _() -> list[Struct]:
    """The audit says that somebody did what nobody did."""
    return change(_audited(), ActRecord, lambda row: replace(row, actor="user:eve"))


@violates("H4")
def _() -> list[Struct]:
    """The same twice."""
    records = _audited()
    act = next(record for record in records if isinstance(record, ActRecord))
    return [*records[:-1], replace(act, position=99), records[-1]]
