"""What plants are made of: where they are registered, and executions that are sound before something is planted."""

from collections.abc import Callable

import msgspec
from msgspec import Struct

from tenuto.kernel import facts as f
from tenuto.kernel.codec import encode_answer, encode_fact
from tenuto.storage.shared.records import ExecutionRecord, MailRow, NoticeRecord
from tests.checking.streams import NOW, change, driven
from tests.kernel.build import approval, scope, step, unsafe
from tests.kernel.driver import Driver, given

Plant = Callable[[], list[Struct]]

PLANTS: dict[str, list[Plant]] = {}

replace = msgspec.structs.replace


def violates(id: str) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        PLANTS.setdefault(id, []).append(plant)
        return plant

    return register


def two_steps() -> Driver:
    """Two steps in sequence, the first done."""
    run = given(step("a", undo=True), step("b", undo=True))
    run.start()
    run.succeed("a")
    return run


def rolled_back() -> Driver:
    """Failed and rolled back."""
    run = given(step("a", undo=True), step("b", undo=True), step("c"))
    run.start()
    run.succeed("a", "b")
    run.fail("c", "NON_RETRYABLE")
    run.undo("b", "a")
    assert run.status == "failed"
    return run


def retried() -> Driver:
    """One failure, one retry."""
    run = given(step("a", tries=2, on=("TRANSIENT",)))
    run.start()
    run.fail("a", "TRANSIENT")
    run.tick()
    return run


def unsafe_begun() -> Driver:
    run = given(unsafe("pay", reconcile=True))
    run.start()
    run.begin("pay")
    return run


def waits_for_person() -> Driver:
    run = given(approval("ok"), step("b"))
    run.start()
    assert run.status == "waiting_approval"
    return run


def row_with(run: Driver, **fields: object) -> list[Struct]:
    return change(driven(run), ExecutionRecord, lambda row: replace(row, **fields))


def beside(run: Driver, *records: Struct) -> list[Struct]:
    found = driven(run)
    return [*found[:-1], *records, found[-1]]


def mail(
    run: Driver,
    fact: f.Fact | None = None,
    *,
    execution: str | None = None,
    at: int = NOW,
    answer: f.Answer | None = None,
) -> MailRow:
    """A letter "m" that was not read, unless somebody answered it."""
    body = encode_fact(f.Resume(at=at) if fact is None else fact)
    verdict = None if answer is None else encode_answer(answer)
    return MailRow(id="m", execution=execution or run.state.id, received_at=at, body=body, verdict=verdict)


def notice(run: Driver) -> NoticeRecord:
    return NoticeRecord(
        key="k", tenant=run.state.tenant, execution=run.state.id, path="a", channel="log", begun_at=1, sent_at=None,
        receipt=None,
    )  # fmt: skip


def decided_and_failed() -> Driver:
    """Started with all that a start can say, approved by somebody, failed."""
    run = given(approval("ok"), step("b"))
    run.start(actor="ben")
    run.approve("ok")
    run.fail("b", "NON_RETRYABLE")
    assert run.status == "failed"
    return run


def queued() -> Driver:
    run = given(step("a", queue="gpu"))
    run.start()
    return run


def undo_failed() -> Driver:
    run = given(step("a", undo=True), step("b"))
    run.start()
    run.succeed("a")
    run.fail("b", "NON_RETRYABLE")
    run.undo_fails("a")
    return run


def done() -> Driver:
    """Two steps, both done."""
    run = two_steps()
    run.succeed("b")
    assert run.status == "succeeded"
    return run


def planning() -> Driver:
    """A planner is asked."""
    run = given(planner="p", mode="parallel")
    run.start()
    return run


def fanned_out(at_once: int = 0) -> Driver:
    run = given(step("n", foreach="[1, 2]", max_concurrency=at_once))
    run.start()
    return run


def second_round() -> Driver:
    """A scope of two steps in its second round: the last of them had failed."""
    run = given(scope("s", step("a"), step("b", tries=1), failure_mode="retry", max_rounds=3))
    run.start()
    run.succeed("s/a")
    run.fail("s/b", "TRANSIENT")
    run.tick()
    return run


def lost(times: int) -> Driver:
    """One step, whose worker is gone again and again."""
    run = given(step("a"))
    run.start()
    run.crash_and_wait(times - 1)
    run.crash()
    return run


def canceled() -> Driver:
    """Asked to end when what runs is over."""
    run = two_steps()
    run.cancel("drain")
    return run
