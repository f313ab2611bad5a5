"""The retry matrix (C1-C10, C21), walked row by row: classes x safety declarations x what happened."""

from collections.abc import Callable
from typing import Literal, get_args

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref, chance
from tenuto.kernel.definition import ERROR_CLASSES, RETRIED_BY_DEFAULT, ErrorClass, RetryPolicy, Safety, Step
from tenuto.kernel.events import AttemptFailed, DispatchFailed
from tenuto.kernel.facts import Failed, TimedOut
from tenuto.kernel.retry import (
    EXCEPTIONS,
    LOSS_SPREAD_MS,
    MATRIX,
    MAX_LOSSES,
    Judgement,
    classify,
    delay_ms,
    judge,
    judge_undo,
    loss_delay_ms,
    may_try_again,
    uncapped_delay_ms,
)

from .build import GUARDED, SAFE, UNSAFE, callback, guarded, step
from .driver import Driver, given

How = Literal["failed", "timed_out", "lost"]

SAFETIES: dict[str, Step] = {
    "safe": step("s", safety=SAFE),
    "guarded": step("s", safety=GUARDED, guard_handler="g"),
    "unsafe, can be reconciled": step("s", safety=UNSAFE, reconcile_handler="r"),
    "unsafe, undo by itself": step("s", safety=UNSAFE, undo=True),
    "unsafe, undo by hand": step("s", safety=UNSAFE, undo=True, compensation_policy="manual"),
    "unsafe, nothing to undo": step("s", safety=UNSAFE, compensation_policy="manual"),
}

retry, probe, fail = Judgement("retry"), Judgement("probe"), Judgement("fail")
halved = Judgement("fail", half_done=True)
ask = Judgement("review", review="compensation")
find_out = Judgement("review", review="indeterminate")

# What follows the first failure, by class: design.md section 3, decisions S-2 and S-3.
#                                            safe   guarded  reconciled  auto undo  manual undo  no undo
AFTER_FAILURE: dict[ErrorClass, tuple[Judgement, ...]] = {
    "TRANSIENT": (retry, probe, probe, halved, ask, ask),
    "RETRYABLE": (retry, probe, probe, halved, ask, ask),
    "RATE_LIMITED": (retry, probe, probe, halved, ask, ask),
    "DEPENDENCY_FAILED": (retry, probe, probe, halved, ask, ask),
    "NON_RETRYABLE": (fail, fail, fail, fail, fail, fail),
    "COMPENSATION_REQUIRED": (ask, ask, ask, ask, ask, ask),
    "INDETERMINATE": (retry, probe, probe, find_out, find_out, find_out),
}
AFTER_SILENCE: dict[How, tuple[Judgement, ...]] = {
    "timed_out": (retry, probe, probe, find_out, find_out, find_out),
    "lost": (retry, probe, probe, find_out, find_out, find_out),
}
# The same when no attempt is left, or none may start any more.
AFTER_LAST_FAILURE: dict[ErrorClass, tuple[Judgement, ...]] = {
    "TRANSIENT": (fail, fail, probe, halved, ask, ask),
    "RETRYABLE": (fail, fail, probe, halved, ask, ask),
    "RATE_LIMITED": (fail, fail, probe, halved, ask, ask),
    "DEPENDENCY_FAILED": (fail, fail, probe, halved, ask, ask),
    "NON_RETRYABLE": (fail, fail, fail, fail, fail, fail),
    "COMPENSATION_REQUIRED": (ask, ask, ask, ask, ask, ask),
    "INDETERMINATE": (fail, probe, probe, find_out, find_out, find_out),
}
AFTER_LAST_SILENCE: dict[How, tuple[Judgement, ...]] = {
    "timed_out": (fail, probe, probe, find_out, find_out, find_out),
    "lost": (fail, probe, probe, find_out, find_out, find_out),
}


def judged(
    how: How, error_class: ErrorClass, *, tries: int = 1, losses: int = 1, repeat: bool = True
) -> tuple[Judgement, ...]:
    return tuple(
        judge(spec, how, error_class, tries=tries, losses=losses, may_repeat=repeat) for spec in SAFETIES.values()
    )


@pytest.mark.requirement("C2", "C8")
@pytest.mark.parametrize("error_class", ERROR_CLASSES)
def test_the_matrix_after_a_first_failure(error_class: ErrorClass) -> None:
    assert judged("failed", error_class) == AFTER_FAILURE[error_class]


@pytest.mark.requirement("C3")
@pytest.mark.parametrize("error_class", ERROR_CLASSES)
def test_the_matrix_when_attempts_are_spent(error_class: ErrorClass) -> None:
    assert judged("failed", error_class, tries=3) == AFTER_LAST_FAILURE[error_class]


@pytest.mark.requirement("C3")
def test_a_handler_that_ran_out_of_memory_is_retried_once() -> None:
    run = given(step("a"))
    run.start()
    out_of_memory = f.Failed(error_class="TRANSIENT", code="MemoryError")
    run.report("a", out_of_memory, phase="forward")
    run.tick()
    run.report("a", out_of_memory, phase="forward")
    assert (run.status, run.step("a").number) == ("failed", 2)


@pytest.mark.parametrize("error_class", ERROR_CLASSES)
def test_the_matrix_when_nothing_may_be_repeated(error_class: ErrorClass) -> None:
    assert judged("failed", error_class, repeat=False) == AFTER_LAST_FAILURE[error_class]


@pytest.mark.requirement("C10", "C11")
@pytest.mark.parametrize(("how", "error_class"), [("timed_out", "TRANSIENT"), ("lost", "INDETERMINATE")])
def test_the_matrix_when_the_outcome_is_unknown(how: How, error_class: ErrorClass) -> None:
    assert judged(how, error_class) == AFTER_SILENCE[how]
    assert judged(how, error_class, tries=3, losses=MAX_LOSSES + 1) == AFTER_LAST_SILENCE[how]
    assert judged(how, error_class, repeat=False) == AFTER_LAST_SILENCE[how]


@pytest.mark.requirement("C10")
@for_all(
    how=st.sampled_from(get_args(How)),
    error_class=st.sampled_from(ERROR_CLASSES),
    tries=st.integers(1, 20),
    losses=st.integers(0, 20),
    max_attempts=st.integers(1, 20),
    repeat=st.booleans(),
    partial=st.booleans(),
)
def test_not_safe_is_never_retried(
    how: How, error_class: ErrorClass, tries: int, losses: int, max_attempts: int, repeat: bool, partial: bool
) -> None:
    for name, spec in SAFETIES.items():
        if name.startswith("unsafe"):
            with_tries = step("s", safety=UNSAFE, tries=max_attempts, reconcile_handler=spec.reconcile_handler)
            said = judge(
                with_tries, how, error_class, tries=tries, losses=losses, may_repeat=repeat, partial_effect=partial
            )
            assert said.verdict != "retry"


@pytest.mark.requirement("C3")
@for_all(max_attempts=st.integers(1, 50), error_class=st.sampled_from(RETRIED_BY_DEFAULT))
def test_a_step_is_tried_exactly_max_attempts_times(max_attempts: int, error_class: ErrorClass) -> None:
    spec = step("s", tries=max_attempts)
    verdicts = [
        judge(spec, "failed", error_class, tries=tries, losses=0, may_repeat=True).verdict
        for tries in range(1, max_attempts + 1)
    ]
    assert verdicts == ["retry"] * (max_attempts - 1) + ["fail"]


def test_losses_are_bounded_by_themselves_and_not_by_max_attempts() -> None:
    spec = step("s", tries=1)
    verdicts = [
        judge(spec, "lost", "INDETERMINATE", tries=0, losses=losses, may_repeat=True).verdict for losses in range(1, 6)
    ]
    assert verdicts == ["retry", "retry", "retry", "fail", "fail"]


@pytest.mark.requirement("C4")
def test_classes_that_the_step_does_not_name_are_not_retried() -> None:
    spec = step("s", on=("TRANSIENT",))
    verdicts = {
        error_class: judge(spec, "failed", error_class, tries=1, losses=0, may_repeat=True).verdict
        for error_class in ERROR_CLASSES
    }
    assert verdicts == {
        "TRANSIENT": "retry",
        "RETRYABLE": "fail",
        "NON_RETRYABLE": "fail",
        "RATE_LIMITED": "fail",
        "DEPENDENCY_FAILED": "fail",
        "COMPENSATION_REQUIRED": "review",
        "INDETERMINATE": "retry",  # S-2: the list does not govern it
    }


@pytest.mark.requirement("E1")
@pytest.mark.parametrize(
    ("declared", "reported", "undo", "half_done"),
    [
        (False, False, True, False),
        (True, False, True, True),
        (False, True, True, True),
        (True, True, True, True),
        (True, True, False, False),  # there is nothing to undo it with
    ],
)
@pytest.mark.parametrize("safety", [SAFE, GUARDED, UNSAFE])
def test_a_failed_step_is_undone_only_if_it_may_have_left_something(
    safety: Safety, declared: bool, reported: bool, undo: bool, half_done: bool
) -> None:
    spec = step("s", safety=safety, partial_effect=declared, undo=undo)
    said = judge(spec, "failed", "NON_RETRYABLE", tries=1, losses=0, may_repeat=True, partial_effect=reported)
    assert said == Judgement("fail", half_done)


@pytest.mark.requirement("C1")
def test_the_matrix_has_every_class() -> None:
    assert set(MATRIX) == set(ERROR_CLASSES)
    assert [name for name, rule in MATRIX.items() if not rule.retried] == ["NON_RETRYABLE", "COMPENSATION_REQUIRED"]


# -- Undo --------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("E9")
@pytest.mark.parametrize(
    ("error_class", "tries", "verdict"),
    [
        ("TRANSIENT", 1, "retry"),
        ("TRANSIENT", 4, "retry"),
        ("TRANSIENT", 5, "review"),
        ("INDETERMINATE", 1, "retry"),
        ("NON_RETRYABLE", 1, "review"),
        ("COMPENSATION_REQUIRED", 1, "review"),
    ],
)
def test_an_undo_is_retried_until_its_attempts_are_spent(error_class: ErrorClass, tries: int, verdict: str) -> None:
    assert judge_undo(error_class, tries, 0, 5, lost=False) == verdict


def test_an_undo_survives_three_losses() -> None:
    assert [judge_undo("TRANSIENT", 0, losses, 1, lost=True) for losses in (1, 3, 4)] == ["retry", "retry", "review"]


# -- Delays ------------------------------------------------------------------------------------------------------------

CALM = RetryPolicy(jitter=0)


@pytest.mark.requirement("C7", "C21")
@pytest.mark.parametrize(
    ("error_class", "delays"),
    [
        ("TRANSIENT", [100, 200, 400, 800, 1_600]),
        ("RETRYABLE", [100, 200, 400, 800, 1_600]),
        ("INDETERMINATE", [100, 200, 400, 800, 1_600]),
        ("RATE_LIMITED", [1_000, 2_000, 4_000, 8_000, 16_000]),
        ("DEPENDENCY_FAILED", [5_000, 10_000, 20_000, 40_000, 80_000]),
    ],
)
def test_each_class_has_its_own_start(error_class: ErrorClass, delays: list[int]) -> None:
    assert [delay_ms(CALM, error_class, tries, None) for tries in range(1, 6)] == delays


@pytest.mark.requirement("C21")
@pytest.mark.parametrize(
    ("error_class", "cap"), [("TRANSIENT", 30_000), ("RATE_LIMITED", 300_000), ("DEPENDENCY_FAILED", 300_000)]
)
def test_delays_are_capped(error_class: ErrorClass, cap: int) -> None:
    assert delay_ms(CALM, error_class, 1_000_000, None) == cap


@pytest.mark.requirement("C3")
def test_the_policys_own_delays_win() -> None:
    policy = RetryPolicy(jitter=0, initial_delay_ms=7, max_delay_ms=20)
    assert [delay_ms(policy, "DEPENDENCY_FAILED", tries, None) for tries in (1, 2, 3, 4)] == [7, 14, 20, 20]
    fixed = RetryPolicy(jitter=0, initial_delay_ms=7, backoff_strategy="fixed")
    assert [delay_ms(fixed, "TRANSIENT", tries, None) for tries in (1, 2, 3)] == [7, 7, 7]


@pytest.mark.requirement("C6")
@pytest.mark.parametrize(
    ("error_class", "asked", "delay"),
    [
        ("RATE_LIMITED", 60_000, 60_000),
        ("RATE_LIMITED", 10, 1_000),  # never sooner than the policy
        ("RATE_LIMITED", 900_000, 900_000),  # the other side's word is over our cap
        ("DEPENDENCY_FAILED", 60_000, 60_000),
        ("TRANSIENT", 60_000, 100),
    ],
)
def test_retry_after_is_respected(error_class: ErrorClass, asked: int, delay: int) -> None:
    assert delay_ms(CALM, error_class, 1, asked) == delay


def _failing() -> Driver:
    run = given(step("a"))
    run.start()
    return run


def _undoing() -> Driver:
    run = given(step("a", undo=True, compensation_max_attempts=2), step("b"))
    run.start()
    run.succeed("a")
    run.fail("b")
    return run


def _probing() -> Driver:
    run = given(guarded("a"))
    run.start()
    run.fail("a", "TRANSIENT")
    run.tick()
    return run


def _planning() -> Driver:
    run = given(planner="p", mode="parallel")
    run.start()
    return run


def _sending() -> Driver:
    run = given(callback("a"))
    run.start()
    return run


@pytest.mark.requirement("C6")
@pytest.mark.parametrize("make", [_failing, _undoing, _probing, _planning, _sending])
def test_what_was_asked_for_is_recorded_and_kept_to(make: Callable[[], Driver]) -> None:
    """Whoever it was: a step, an undo, a probe, a planner, or where a directive is sent."""
    run = make()
    (ref,) = (key for key in run.state.agenda if isinstance(key, Ref))
    failed = f.Failed(error_class="RATE_LIMITED", code="busy", retry_after_ms=60_000)
    if make is _sending:
        run.tell(f.DispatchRefused(at=run.now, ref=ref, failure=failed))
    else:
        run.report(ref.path, failed, phase=ref.phase)
    event = run.history[-1].event
    assert isinstance(event, AttemptFailed | DispatchFailed)
    assert (event.retry_after_ms, event.retry_at) == (60_000, run.now + 60_000)
    assert run.wake_at == run.elapsed + 60_000


@pytest.mark.requirement("C5")
@for_all(
    error_class=st.sampled_from(RETRIED_BY_DEFAULT),
    tries=st.integers(1, 60),
    jitter=st.floats(0, 1),
    seed=st.text(max_size=20),
)
def test_jitter_stays_in_its_range_and_is_the_same_everywhere(
    error_class: ErrorClass, tries: int, jitter: float, seed: str
) -> None:
    policy = RetryPolicy(jitter=jitter)
    plain = delay_ms(CALM, error_class, tries, None)
    delay = delay_ms(policy, error_class, tries, None, seed)
    assert plain * (1 - jitter) - 1 <= delay <= plain * (1 + jitter) + 1
    assert delay == delay_ms(policy, error_class, tries, None, seed)


@pytest.mark.requirement("C5")
def test_jitter_spreads() -> None:
    delays = {delay_ms(RetryPolicy(jitter=0.1), "RATE_LIMITED", 1, None, f"x{i}", "pay") for i in range(200)}
    assert len(delays) > 100
    assert min(delays) < 920
    assert max(delays) > 1_080


@for_all(fields=st.lists(st.text(max_size=10), max_size=4))
def test_chance_is_in_its_range(fields: list[str]) -> None:
    assert 0 <= chance(*fields) < 1


@pytest.mark.requirement("H7")
def test_the_uncapped_delay_is_told_with_its_cap() -> None:
    assert uncapped_delay_ms(CALM, "TRANSIENT", 10) == (51_200, 30_000)


# -- Ordinary exceptions -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("C2")
@pytest.mark.parametrize(
    ("ancestry", "error_class"),
    [
        (("ConnectionResetError", "ConnectionError", "OSError"), "TRANSIENT"),
        (("TimeoutError", "OSError"), "TRANSIENT"),
        (("KeyError", "LookupError"), "NON_RETRYABLE"),
        (("ZeroDivisionError", "ArithmeticError"), "NON_RETRYABLE"),
        (("InvalidOutputError",), "RETRYABLE"),  # C19
        (("LLMRateLimitError",), "RATE_LIMITED"),
        (("SomethingElse", "Exception"), "RETRYABLE"),
    ],
)
def test_exceptions_are_classified_by_the_nearest_name(ancestry: tuple[str, ...], error_class: ErrorClass) -> None:
    assert classify(ancestry, step("s"), {}) == error_class


@pytest.mark.requirement("C10")
def test_an_unknown_exception_of_an_unsafe_step_tells_nothing() -> None:
    assert classify(("SomethingElse",), step("s", safety=UNSAFE), {}) == "INDETERMINATE"
    assert classify(("ValueError",), step("s", safety=UNSAFE), {}) == "NON_RETRYABLE"


def test_the_steps_own_table_wins_over_the_definitions_and_that_over_the_common_one() -> None:
    own = step("s", classify={"CardDeclined": "NON_RETRYABLE"})
    everywhere: dict[str, ErrorClass] = {"CardDeclined": "RETRYABLE", "ValueError": "TRANSIENT"}
    assert classify(("CardDeclined",), own, everywhere) == "NON_RETRYABLE"
    assert classify(("ValueError",), own, everywhere) == "TRANSIENT"
    assert classify(("TypeError",), own, everywhere) == "NON_RETRYABLE"


def test_every_exception_of_the_table_has_a_class() -> None:
    assert set(EXCEPTIONS.values()) <= set(ERROR_CLASSES)


# -- The same, through the kernel --------------------------------------------------------------------------------------


@pytest.mark.requirement("C21", "C23")
def test_three_attempts_100_and_200_ms_apart_then_a_dead_letter() -> None:
    run = given(step("a"))
    run.start()
    run.fail("a", "TRANSIENT")
    assert run.wake_at == 100
    assert run.step("a").status == "retrying"
    run.tick_to(99)
    run.tick_to(100)
    run.fail("a", "TRANSIENT")
    run.tick()
    run.fail("a", "TRANSIENT")
    run.expect("""
        started + a/1
        failed a/1 TRANSIENT -> retry@100
        granted + a/2
        failed a/2 TRANSIENT -> retry@300
        granted + a/3
        failed a/3 TRANSIENT -> fail
        closing . failed transient
        review dead_letter a (transient)
        finished failed transient
    """)


@pytest.mark.requirement("B7")
def test_every_attempt_is_kept_with_its_class_and_its_time() -> None:
    run = given(step("a"))
    run.start()
    run.fail("a", "RATE_LIMITED", retry_after=5_000)
    run.tick()
    assert run.elapsed == 5_000
    run.succeed("a")
    run.expect("""
        started + a/1
        failed a/1 RATE_LIMITED -> retry@5000
        granted + a/2
        ok a/2
        finished succeeded
    """)


@pytest.mark.requirement("C14")
def test_a_deadline_covers_all_attempts_and_the_delays_between_them() -> None:
    run = given(step("a", tries=10, timeout=100, delay=300, timeout_ms=1_000))
    run.start()
    for _ in range(3):
        run.fail("a", "TRANSIENT")
        run.tick()
    assert run.elapsed == 1_000
    run.expect("""
        started + a/1
        failed a/1 TRANSIENT -> retry@300
        granted + a/2
        failed a/2 TRANSIENT -> retry@900
        granted + a/3
        failed a/3 TRANSIENT -> retry@2100
        expired a deadline -> fail
        closing . failed deadline
        review dead_letter a (deadline)
        finished failed deadline
    """)
    assert run.step("a").status == "timed_out"


@pytest.mark.requirement("C14")
def test_a_deadline_ends_a_running_attempt_of_a_safe_step() -> None:
    run = given(step("a", timeout=500, timeout_ms=1_000))
    run.start()
    run.tick()
    run.expect("""
        started + a/1
        abandoned a/1 (expired)
        expired a deadline -> fail
        closing . failed deadline
        review dead_letter a (deadline)
        finished failed deadline
    """)


@pytest.mark.requirement("C3")
def test_a_timeout_that_will_be_retried_is_retrying_and_the_last_one_timed_out() -> None:
    run = given(step("a", tries=2))
    run.start()
    run.time_out("a")
    assert run.step("a").status == "retrying"
    run.tick()
    run.time_out("a")
    assert run.step("a").status == "timed_out"
    run.expect("""
        started + a/1
        timeout a/1 attempt -> retry@100
        granted + a/2
        timeout a/2 attempt -> fail
        closing . failed attempt_timeout
        review dead_letter a (attempt_timeout)
        finished failed attempt_timeout
    """)


@pytest.mark.requirement("C12")
def test_a_business_refusal_is_not_retried_but_undone() -> None:
    run = given(step("reserve", undo=True), step("pay", safety=UNSAFE, undo=True))
    run.start()
    run.succeed("reserve")
    run.begin("pay")
    run.fail("pay", "NON_RETRYABLE")
    run.undo("reserve")
    run.expect("""
        started + reserve/1
        ok reserve/1 + pay/1
        begun pay/1
        failed pay/1 NON_RETRYABLE -> fail
        closing . failed non_retryable
        undo because failed: reserve + reserve:undo/1
        ok reserve:undo/1
        review dead_letter pay (non_retryable)
        finished failed non_retryable
    """)


def test_an_outcome_that_only_a_probe_may_report_fails_a_step() -> None:
    run = given(step("a"))
    run.start()
    run.done("a")
    assert run.state.failure is not None
    assert (run.status, run.state.failure.code) == ("failed", "bad_report")


# -- Guards ------------------------------------------------------------------------------------------------------------


def guarded_run(tries: int = 3) -> Driver:
    run = given(step("a", safety=GUARDED, guard_handler="g", tries=tries, set_variable="v"))
    run.start()
    return run


@pytest.mark.requirement("C9")
def test_the_guard_is_asked_after_the_delay_and_says_not_done() -> None:
    run = guarded_run()
    run.fail("a", "TRANSIENT")
    run.tick()
    assert run.elapsed == 100
    run.not_done("a")
    run.succeed("a")
    run.expect("""
        started + a/1
        failed a/1 TRANSIENT -> probe@100
        granted + a:guard/1
        probed a:guard/1 not_done -> retry + a/2
        ok a/2
        finished succeeded
    """)


@pytest.mark.requirement("C9")
def test_the_guard_says_done_and_its_result_is_taken() -> None:
    run = guarded_run()
    run.time_out("a")
    run.done("a", result=7)
    run.expect("""
        started + a/1
        timeout a/1 attempt -> probe + a:guard/1
        probed a:guard/1 done -> succeed
        finished succeeded
    """)
    assert bytes(run.state.variables["v"]) == b"7"


@pytest.mark.requirement("C9")
def test_a_guard_that_cannot_tell_asks_a_person() -> None:
    run = guarded_run()
    run.time_out("a")
    run.unknown("a")
    run.expect("""
        started + a/1
        timeout a/1 attempt -> probe + a:guard/1
        probed a:guard/1 unknown -> review
        review indeterminate a
    """)
    assert run.status == "waiting_approval"


def test_a_guard_that_fails_is_asked_again_and_one_that_is_broken_is_not() -> None:
    run = guarded_run()
    run.time_out("a")
    run.report("a", run_failure("TRANSIENT"), phase="guard")
    assert run.step("a").status == "retrying"
    run.tick()
    run.report("a", run_failure("NON_RETRYABLE"), phase="guard")
    lines = run.new_lines()
    assert lines[2].startswith("failed a:guard/1 TRANSIENT -> probe@")
    assert lines[3:] == ["granted + a:guard/2", "probed a:guard/2 unknown -> review", "review indeterminate a"]


def test_a_guard_that_does_not_answer_in_time_is_asked_again() -> None:
    run = guarded_run()
    run.time_out("a")
    run.report("a", TimedOut(), phase="guard")
    run.tick()
    assert run.open() == ["a:guard/2"]


def run_failure(error_class: ErrorClass) -> Failed:
    return Failed(error_class=error_class, code="x", summary="y")


@pytest.mark.requirement("C9")
def test_attempts_of_a_guarded_step_are_bounded() -> None:
    run = guarded_run(tries=2)
    for _ in range(2):
        run.time_out("a")
        run.not_done("a")
    run.expect("""
        started + a/1
        timeout a/1 attempt -> probe + a:guard/1
        probed a:guard/1 not_done -> retry + a/2
        timeout a/2 attempt -> probe + a:guard/2
        probed a:guard/2 not_done -> fail
        closing . failed attempt_timeout
        review dead_letter a (attempt_timeout)
        finished failed attempt_timeout
    """)


def test_may_try_again_counts_like_max_attempts() -> None:
    assert [may_try_again(step("a", tries=2), tries) for tries in (0, 1, 2)] == [True, True, False]


def test_a_first_loss_is_made_good_at_once_and_later_ones_part_from_one_another() -> None:
    assert loss_delay_ms(1, "x", "a", "forward") == 0
    second = {loss_delay_ms(2, f"x{n}", "a", "forward") for n in range(100)}
    third = {loss_delay_ms(3, f"x{n}", "a", "forward") for n in range(100)}
    assert len(second) > 90
    assert 0 <= min(second) < max(second) <= LOSS_SPREAD_MS < max(third) <= 4 * LOSS_SPREAD_MS
    assert loss_delay_ms(3, "x", "a", "forward") == loss_delay_ms(3, "x", "a", "forward")
