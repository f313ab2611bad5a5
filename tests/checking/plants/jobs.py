"""Jobs: a ledger that is not the fold, callbacks without their one verdict, directives of no attempt."""

from collections.abc import Callable

import msgspec
from msgspec import Struct

from tenuto.checker.jobs import Jobs
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref, lease_id
from tenuto.kernel.evolve import evolve
from tenuto.kernel.state import Execution
from tenuto.storage.ledger.port import IndexRow
from tenuto.storage.shared.records import BusRecord, ExecutionRecord
from tenuto.views.jobs import BUS_QUEUE, CALLBACK, CallbackRow, LedgerAttempt, LedgerRow, callback_row
from tests.checking.streams import change, driven
from tests.kernel.build import callback
from tests.kernel.driver import Driver, given

from .planting import replace, violates

KEY = "job:hash"


def job() -> Driver:
    """Two directives. The first was acknowledged and answered, and its ACK came once more."""
    steps = [
        callback(id, queue=BUS_QUEUE, with_={"service": id, "step_type": id.upper(), "priority": "normal"})
        for id in ("ocr", "sis")
    ]
    run = given(*steps, name="protocol.ingest", mode="dag")
    run.start()
    return run


class Called:
    """What a job was told, and the rows beside its history."""

    def __init__(self) -> None:
        self.run = job()
        self.callbacks: list[CallbackRow] = []
        self.run.dispatch("ocr")
        self.tell("c1", f.Acked(at=self.run.now, ref=self.ref(), lease=self.lease(), workspace="w/1"))
        self.tell("c2", f.Acked(at=self.run.now, ref=self.ref(), lease=self.lease()))
        self.tell("c3", f.Reported(at=self.run.now, ref=self.ref(), outcome=f.Succeeded(), lease=self.lease()))

    def ref(self) -> Ref:
        return Ref("ocr", "forward", 1)

    def lease(self) -> str:
        return lease_id(self.run.state.id, self.ref())

    def tell(self, id: str, fact: f.Acked | f.Reported) -> None:
        fact = msgspec.structs.replace(fact, cause=CALLBACK + id)
        row = callback_row(self.run.state, fact, self.run.tell(fact))
        assert row is not None
        self.callbacks.append(row)

    def records(self) -> list[Struct]:
        folded, state = Jobs(), Execution(self.run.plan)
        for decision in self.run.decisions:
            for entry in decision:
                evolve(state, entry)
            folded.note(state, decision)
        id, tenant = state.id, state.tenant
        message = BusRecord(
            id=f"{id}/ocr/1/{self.lease()}",
            execution=id,
            tenant=tenant,
            topic="global-bus-p0",
            service="ocr",
            published_at=1,
            deliveries=1,
            dead_reason=None,
        )
        index = IndexRow(execution=id, tenant=tenant, hash=KEY, created_at=1)
        beside: list[Struct] = [*folded.rows(), index, *self.callbacks, message]
        found = change(driven(self.run), ExecutionRecord, lambda row: replace(row, key=KEY))
        return [*found[:-1], *beside, found[-1]]


def records() -> list[Struct]:
    return Called().records()


def changed_body(edit: Callable[[bytes], bytes]) -> list[Struct]:
    return change(records(), LedgerRow, lambda row: replace(row, body=edit(row.body)))


@violates("J1")
def _() -> list[Struct]:
    return change(records(), LedgerRow, lambda row: None)


@violates("J1")
def _() -> list[Struct]:
    return change(records(), LedgerRow, lambda row: replace(row, seq=row.seq - 1))


@violates("J1")
def _() -> list[Struct]:
    return changed_body(lambda body: body.replace(b'"lane":', b'"lane":9'))


@violates("J1")
def _() -> list[Struct]:
    return change(records(), LedgerAttempt, lambda row: None)


@violates("J1")
def _() -> list[Struct]:
    return change(records(), LedgerAttempt, lambda row: replace(row, workspace_ref="w/2"))


@violates("J1")
def _() -> list[Struct]:
    return change(records(), IndexRow, lambda row: replace(row, hash="job:other"))


@violates("J1")
def _() -> list[Struct]:
    return change(records(), IndexRow, lambda row: None)


@violates("J2")
def _() -> list[Struct]:
    """The same callback twice."""
    found = records()
    row = next(record for record in found if isinstance(record, CallbackRow))
    return [*found[:-1], row, found[-1]]


@violates("J2")
def _() -> list[Struct]:
    """Applied, and nothing in the history."""
    return change(records(), CallbackRow, lambda row: replace(row, verdict="applied"), nth=1)


@violates("J2")
def _() -> list[Struct]:
    """Stale, and yet it left an entry."""
    return change(records(), CallbackRow, lambda row: replace(row, verdict="stale_attempt"))


@violates("J2")
def _() -> list[Struct]:
    """It left an entry, and is not in the log."""
    return change(records(), CallbackRow, lambda row: None)


@violates("J2")
def _() -> list[Struct]:
    return change(records(), CallbackRow, lambda row: replace(row, kind="result"))


@violates("J2")
def _() -> list[Struct]:
    return change(records(), CallbackRow, lambda row: replace(row, lease_id="another"))


@violates("J2")
def _() -> list[Struct]:
    """Applied to another attempt than it names."""

    def other(row: CallbackRow) -> CallbackRow:
        return replace(row, attempt=2, lease_id=lease_id(row.execution, Ref("ocr", "forward", 2)))

    return change(records(), CallbackRow, other)


@violates("J3")
def _() -> list[Struct]:
    return change(records(), LedgerAttempt, lambda row: replace(row, lease_id="another"))


@violates("J3")
def _() -> list[Struct]:
    return change(records(), LedgerAttempt, lambda row: replace(row, created_at=None))


@violates("J4")
def _() -> list[Struct]:
    return change(records(), BusRecord, lambda row: replace(row, id=row.id.replace("/1/", "/7/")))


@violates("J4")
def _() -> list[Struct]:
    return change(records(), BusRecord, lambda row: replace(row, id=f"{row.execution}/ocr/1/another"))
