"""Time (R-3, design section 3): what is due fires in order, before a fact that arrived later, and never goes back."""

import pytest

from tenuto.kernel import facts as f

from .build import approval, pause_for, step
from .driver import given
from .rendering import START


def test_timers_fire_in_the_order_of_their_times() -> None:
    run = given(pause_for("late", 300), pause_for("soon", 100), pause_for("mid", 200), mode="parallel")
    run.start()
    run.tick_to(1_000)
    assert [line for line in run.lines() if line.startswith("waited")] == [
        "waited soon by timer",
        "waited mid by timer",
        "waited late by timer",
    ]


def test_a_fact_is_decided_between_the_timers_before_and_after_its_arrival() -> None:
    run = given(pause_for("before", 100), approval("ok"), pause_for("after", 300), mode="parallel")
    run.start()
    run.skip_lines()
    run.now = START + 1_000
    run.tell(f.Decide(at=START + 200, resolution="approved", path="ok"))
    run.expect("""
        waited before by timer
        resolved approval ok approved -> succeed
        waited after by timer
        finished succeeded
    """)


def test_a_clock_that_goes_back_does_not_take_the_execution_with_it() -> None:
    run = given(step("a"), step("b"))
    run.start()
    run.tick_to(1_000)
    run.succeed("a")
    run.now = START - 5_000
    run.fail("b", "TRANSIENT")
    assert run.history[-1].at == START + 1_000
    assert run.wake_at == 1_100


def test_a_fact_from_the_future_is_of_now() -> None:
    run = given(pause_for("w", 1_000), step("a"))
    run.start()
    run.tell(f.Tick(at=START + 60_000))
    assert run.step("w").status == "running"


def test_timers_that_were_replaced_do_not_fire() -> None:
    run = given(step("a", timeout=50, timeout_ms=1_000), step("b"))
    run.start()
    run.succeed("a")
    run.tick_to(5_000)
    assert run.open() == ["b/1"]
    assert run.wake_at is None


@pytest.mark.requirement("I6")
def test_who_and_what_brought_a_fact_is_recorded_and_a_timer_is_nobodys() -> None:
    run = given(pause_for("w", 100), step("a"))
    run.start()
    run.tick_to(100)
    run.tell(f.Pause(at=run.now, actor="ann", cause="mail-7"))
    assert [(entry.actor, entry.cause) for entry in run.history[-2:]] == [(None, "timer:wait"), ("ann", "mail-7")]
