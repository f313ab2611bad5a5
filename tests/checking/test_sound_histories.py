"""A checker that cries wolf is not listened to: what the engine recorded is sound, in every form."""

import pytest

from tenuto.checker.export import Exporter
from tenuto.checker.ndjson import DERIVED, line_of, read_lines, record_of
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref
from tenuto.kernel.decide import decide
from tenuto.kernel.plan import Plan
from tenuto.kernel.state import Execution
from tests.checking.plants.mail import applied, succeeded, told
from tests.checking.plants.planting import two_steps
from tests.checking.streams import driven, found_in, given, stream, stream_of
from tests.kernel import driver, history
from tests.kernel.build import callback, definition, scope, step, wait_for

NAMES = history.names()


@pytest.mark.parametrize("name", NAMES)
async def test_a_recorded_history_is_sound(name: str) -> None:
    assert await found_in(stream(name)) == []


@pytest.mark.parametrize("name", NAMES)
async def test_an_export_holds_everything(name: str) -> None:
    """What is read from the lines is what was written to them, and what was derived is beside it."""
    records = stream(name)
    lines = [line async for line in Exporter().lines(given(records))]
    assert [record async for record in read_lines(lines)] == records
    derived = [record for line in lines if isinstance(record := record_of(line), DERIVED)]
    assert {type(record).__name__ for record in derived} >= {"RunRow", "AttemptRow", "StepRow"}


def test_a_line_reads_as_it_was_written() -> None:
    for record in stream("invoice"):
        assert record_of(line_of(record)) == record


async def test_an_undo_that_a_person_asked_for_takes_no_others_place() -> None:
    """It runs beyond the limit; when the other one is lost, that is repeated beside it."""
    run = driver.given(
        step("a", undo=True),
        step("b", undo=True),
        step("c", after=("a", "b")),
        mode="dag",
        compensation="GROUPED_PARALLEL",
        max_concurrency=1,
    )
    run.start()
    run.succeed("a", "b")
    run.fail("c")
    run.undo_fails("b")
    run.resolve("b", "retry")
    run.lose("a")
    assert run.open() == ["b:undo/2", "a:undo/2"]
    assert run.run_out() == "failed"
    assert await found_in(driven(run)) == []


async def test_a_cancel_that_awaits_nobody_is_sound() -> None:
    """A directive and a planner that nobody has, and what was taken out of a queue."""
    ask = scope("s", planner="p", mode="parallel")
    run = driver.given(callback("a"), ask, step("q", queue="gpu"), callback("b"), mode="parallel")
    run.start(owned=False)
    run.crash()
    run.tell(f.Returned(at=run.now, refs=tuple(ref for ref in run.state.agenda if isinstance(ref, Ref))))
    run.cancel("drain")
    assert run.open() == ["q/1"]
    run.give_back("q")
    assert run.status == "canceled"
    assert await found_in(driven(run)) == []


async def test_a_directive_that_nobody_sent_may_be_sent_in_the_next_round() -> None:
    """It is not safe to send twice, and was not sent."""
    charge = callback("pay", safety="NOT_SAFE_TO_RETRY", reconcile_handler="find")
    run = driver.given(charge, step("b", tries=1), mode="parallel", failure_mode="retry", max_rounds=2)
    run.start()
    run.give_back("pay")
    run.fail("b", "TRANSIENT")
    run.tick()
    assert run.open() == ["pay/2", "b/2"]
    assert await found_in(driven(run)) == []


LETTERS: dict[str, f.Fact] = {
    "a report": succeeded("b"),
    "a worker that is gone": f.Lost(at=0, refs=(Ref("b", "forward", 1), Ref("b", "forward", 9))),
    "a signal": f.Signal(at=0, name="go", id="s1", payload=driver.raw(1)),
    "a pause": f.Pause(at=0, actor="ann"),
    "a cancel": f.Cancel(at=0, mode="drain", actor="ann"),
}


@pytest.mark.parametrize("what", LETTERS)
async def test_mail_that_was_applied_is_sound(what: str) -> None:
    assert await found_in(told(two_steps(), LETTERS[what])) == []


@pytest.mark.parametrize("what", ["a signal", "a pause", "a cancel"])
async def test_what_was_so_already_is_applied_and_leaves_nothing(what: str) -> None:
    run = two_steps()
    run.tell(LETTERS[what])
    assert await found_in(applied(run, LETTERS[what])) == []


async def test_what_goes_on_already_is_told_to_go_on_and_nothing_is_left_of_that() -> None:
    assert await found_in(applied(two_steps(), f.Resume(at=0, actor="ann"))) == []


async def test_an_id_that_is_forgotten_is_a_new_signal() -> None:
    """The engine knows the last thousand that ended a wait."""
    plan = Plan(definition(*(wait_for(f"w{number}", "go") for number in range(1_002))))
    state = Execution(plan)
    facts: list[f.Fact] = [f.Start(at=0, execution="x", tenant="t", input=driver.raw(None))]
    ids = [*map(str, range(1_001)), "0"]
    facts += [f.Signal(at=0, name="go", id=id, payload=driver.raw(None)) for id in ids]
    decisions = [decide(state, fact, 1).entries for fact in facts]
    assert state.status == "succeeded"
    assert await found_in(stream_of(plan, decisions)) == []
