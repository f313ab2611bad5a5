"""Escalation (H7, H8, 2-21, 2-31, 2-32): errors pile up, the run pauses and a person is asked."""

from typing import Any

import pytest

from tenuto.kernel import facts as f
from tenuto.kernel.definition import DAY, Escalation, RetryPolicy, Step
from tenuto.kernel.events import Resolution

from .build import guarded, step
from .driver import Driver, given


def errors(count: int, *, apart: int = 0, **fields: Any) -> Driver:
    """An execution in which this many attempts failed, one after another."""
    run = given(step("a", tries=100, delay=0), escalation=Escalation(**fields))
    run.start()
    for _ in range(count):
        if run.state.pause is None:
            run.tick_to(run.elapsed + apart)
            run.fail("a", "TRANSIENT")
    return run


@pytest.mark.requirement("H7")
def test_more_than_five_errors_in_five_minutes_pause_it_and_ask() -> None:
    run = errors(5)
    assert run.status == "running"
    run.skip_lines()
    run.fail("a", "TRANSIENT")
    run.expect(f"""
        failed a/6 TRANSIENT -> retry@0
        review escalation a (too many errors)
        paused escalated limit@{7 * DAY}
    """)
    assert run.status == "paused"
    assert run.reviews() == ["escalation a"]


@pytest.mark.requirement("H7")
def test_errors_outside_the_window_do_not_count() -> None:
    assert errors(20, apart=60_001).status == "running"
    assert errors(20, apart=59_000).status == "paused"


@pytest.mark.requirement("H7")
def test_a_high_rate_counts_only_with_enough_of_them() -> None:
    run = given(
        *(step(f"s{i}") for i in range(12)),
        mode="parallel",
        escalation=Escalation(errors=100, error_rate=0.5, min_sample=10),
    )
    run.start()
    for i in range(5):
        run.fail(f"s{i}", "TRANSIENT")
    assert run.status == "running", "five of five, but fewer than ten"
    for i in range(5, 9):
        run.succeed(f"s{i}")
    run.fail("s9", "TRANSIENT")
    assert run.lines()[-2] == "review escalation s9 (error rate too high)"
    assert run.status == "paused"


@pytest.mark.requirement("H7")
def test_half_is_not_more_than_half() -> None:
    run = given(
        *(step(f"s{i}") for i in range(10)),
        mode="parallel",
        escalation=Escalation(errors=100, error_rate=0.5, min_sample=10),
    )
    run.start()
    for i in range(5):
        run.succeed(f"s{i}")
    for i in range(5, 10):
        run.fail(f"s{i}", "TRANSIENT")
    assert run.status == "running"


@pytest.mark.requirement("H7")
def test_a_backoff_beyond_its_limit_escalates() -> None:
    policy = RetryPolicy(max_attempts=100, initial_delay_ms=1_000, max_delay_ms=1_500, jitter=0)
    run = given(Step(id="a", handler="a", retry_policy=policy), escalation=Escalation(errors=100))
    run.start()
    run.fail("a", "TRANSIENT")
    assert run.status == "running"
    run.tick()
    run.fail("a", "TRANSIENT")
    assert run.lines()[-2] == "review escalation a (backoff beyond its limit)"


@pytest.mark.requirement("H7")
def test_timeouts_and_guards_count_too() -> None:
    run = given(guarded("a", tries=100), escalation=Escalation(errors=1))
    run.start()
    run.time_out("a")
    run.not_done("a")
    run.time_out("a")
    assert run.status == "paused"


@pytest.mark.requirement("H7")
def test_a_failure_that_is_not_retried_does_not_escalate() -> None:
    run = given(step("a", tries=1), failure_mode="continue", escalation=Escalation(errors=1))
    run.start()
    run.fail("a", "TRANSIENT")
    assert run.status == "succeeded"


@pytest.mark.requirement("H8")
@pytest.mark.parametrize("resolution", ["completed", "retry"])
def test_an_escalation_that_is_resolved_resumes_the_run(resolution: Resolution) -> None:
    run = errors(6)
    run.skip_lines()
    run.resolve("a", resolution)
    run.expect(f"""
        resolved escalation a {resolution} -> close
        resumed shift=0 + a/7
    """)


@pytest.mark.requirement("H8")
def test_an_escalation_that_is_dismissed_leaves_the_run_paused() -> None:
    run = errors(6)
    run.resolve("a", "dismiss")
    assert (run.status, run.reviews()) == ("paused", [])
    run.resume()
    assert run.open() == ["a/7"]


@pytest.mark.requirement("H8")
def test_whoever_resumes_a_run_has_seen_its_escalation() -> None:
    run = errors(6)
    run.skip_lines()
    run.resume()
    assert run.reviews() == []
    assert run.open() == ["a/7"]


def test_what_is_paused_already_is_not_escalated() -> None:
    run = given(step("a"), step("b"), mode="parallel", escalation=Escalation(errors=1), pause_limit_ms=None)
    run.start()
    run.fail("a", "TRANSIENT")
    run.pause()
    run.fail("b", "TRANSIENT")
    assert run.reviews() == []


def test_without_a_limit_an_escalation_waits_for_ever() -> None:
    run = given(step("a", tries=9), escalation=Escalation(errors=1), pause_limit_ms=None)
    run.start()
    run.fail("a", "TRANSIENT")
    run.tick()
    run.fail("a", "TRANSIENT")
    assert (run.status, run.wake_at) == ("paused", None)


def test_without_a_policy_nothing_is_counted() -> None:
    run = given(step("a", tries=50, delay=0))
    run.start()
    for _ in range(20):
        run.fail("a", "TRANSIENT")
    assert run.status == "running"
    assert not run.state.error_times


@pytest.mark.requirement("H8")
def test_an_escalated_run_can_be_cancelled() -> None:
    run = errors(6)
    run.cancel("drain")
    assert run.status == "canceled"
    assert run.reviews() == []
    assert run.cancel() == f.APPLIED
