"""A checker that cries wolf is not listened to: what the engine recorded is sound, in every form."""

import pytest

from tenuto.checking.export import Exporter
from tenuto.checking.ndjson import DERIVED, line_of, read_lines, record_of
from tests.checking.streams import driven, found_in, given, stream
from tests.kernel import driver, history
from tests.kernel.build import step

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
