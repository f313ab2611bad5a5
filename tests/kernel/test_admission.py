"""One at a time for each key (B5, S-9): an execution queues before anything of it starts."""

from typing import Any

import pytest

from tenuto.kernel import facts as f
from tenuto.kernel.effects import RequestAdmission
from tenuto.kernel.evolve import ADMISSION

from .build import approval, step
from .driver import Driver, given


def queued(**policies: Any) -> Driver:
    run = given(step("a", undo=True), step("b"), concurrency_key="input.order", **policies)
    run.start({"order": 7}, key="7", admitted=False)
    return run


@pytest.mark.requirement("B5")
def test_nothing_starts_before_it_is_this_executions_turn() -> None:
    run = queued()
    assert run.status == "running"
    assert run.state.agenda == {ADMISSION: RequestAdmission("7")}
    run.admit()
    run.expect("""
        started queued for 7
        admitted 7 + a/1
    """)
    assert ADMISSION not in run.state.agenda


@pytest.mark.requirement("B5")
def test_admission_is_told_once() -> None:
    run = queued()
    run.admit()
    assert run.admit() == f.Ignored("duplicate")


@pytest.mark.requirement("B5")
def test_the_turn_of_an_earlier_run_is_not_this_ones() -> None:
    run = queued(timeout_ms=1_000)
    run.tick()
    run.retry(admitted=False)
    assert run.admit(run=1) == f.Ignored("stale_lease")
    assert run.open() == []
    assert run.admit(run=2) == f.APPLIED
    assert run.open() == ["a/1"]


def test_an_admission_while_paused_starts_nothing_until_resume() -> None:
    run = queued()
    run.pause()
    run.admit()
    assert run.open() == []
    run.resume()
    assert run.open() == ["a/1"]


@pytest.mark.requirement("B13")
def test_the_time_of_an_execution_runs_while_it_queues() -> None:
    run = queued(timeout_ms=1_000)
    run.tick()
    run.expect("""
        started queued for 7 deadline@1000
        closing . timed_out deadline
        review dead_letter . (deadline)
        finished failed deadline
    """)
    assert run.admit() == f.Ignored("duplicate")


def test_what_must_be_undone_waits_for_its_turn_too() -> None:
    run = given(
        step("a", undo=True, compensation_critical=True),
        step("b", undo=True, compensation_critical=True),
        step("c"),
        concurrency_key="'k'",
        compensation="CIRCUIT_BREAKER",
    )
    run.start(key="k")
    run.succeed("a", "b")
    run.fail("c")
    run.undo_fails("b")
    run.resolve("b", "dismiss")
    run.retry(admitted=False)
    run.cancel("compensate")
    assert (run.status, run.open()) == ("running", []), "a is still to be undone, and it is not its turn"
    run.admit()
    assert run.open() == ["a:undo/1"]
    run.undo("a")
    assert run.status == "canceled"


def test_an_approval_is_not_asked_for_before_admission() -> None:
    run = given(approval("ok"), concurrency_key="'k'")
    run.start(key="k", admitted=False)
    assert run.reviews() == []
    run.admit()
    assert run.status == "waiting_approval"


def test_an_execution_without_steps_to_run_ends_only_when_it_was_admitted() -> None:
    run = given(step("a", when="false"), concurrency_key="'k'")
    run.start(key="k", admitted=False)
    assert run.status == "running"
    run.admit()
    assert run.status == "succeeded"


@pytest.mark.requirement("B4")
def test_a_start_that_comes_twice_starts_once() -> None:
    run = given(step("a"))
    run.start()
    assert run.start() == f.Ignored("duplicate")
