"""Compensation (E1-E10, E13): what is undone, in which order, and what a failed undo does."""

from typing import Any

import pytest

from tenuto.kernel.compensation import POLICIES, undo_policy
from tenuto.kernel.definition import CompensationOrder
from tenuto.kernel.events import Resolution
from tenuto.kernel.facts import TimedOut

from .build import guarded, scope, step, unsafe
from .driver import Driver, given

SEQUENTIAL: tuple[CompensationOrder, ...] = ("STRICT_SEQUENTIAL", "RETRY_WITH_BACKOFF", "CIRCUIT_BREAKER")


def failed_saga(policy: CompensationOrder, **fields: Any) -> Driver:
    """Two layers: a and b, then c; what comes last fails. Completed in the order b, a, c."""
    run = given(
        step("a", undo=True, **fields),
        step("b", undo=True, **fields),
        step("c", undo=True, after=("a", "b"), **fields),
        step("d", after=("c",)),
        mode="dag",
        scheduling="layered",
        compensation=policy,
    )
    run.start()
    run.succeed("b", "a", "c")
    run.skip_lines()
    run.fail("d")
    return run


@pytest.mark.requirement("E2")
@pytest.mark.parametrize("policy", SEQUENTIAL)
def test_reverse_completion_order_one_by_one(policy: CompensationOrder) -> None:
    run = failed_saga(policy)
    run.undo("c", "a", "b")
    run.expect("""
        failed d/1 NON_RETRYABLE -> fail
        closing . failed non_retryable
        undo because failed: c | a | b + c:undo/1
        ok c:undo/1 + a:undo/1
        ok a:undo/1 + b:undo/1
        ok b:undo/1
        review dead_letter d (non_retryable)
        finished failed non_retryable
    """)
    assert run.undone() == {"a": "done", "b": "done", "c": "done"}


@pytest.mark.requirement("E3")
def test_layer_by_layer_together_within_a_layer() -> None:
    run = failed_saga("GROUPED_PARALLEL")
    run.undo("c", "b", "a")
    run.expect("""
        failed d/1 NON_RETRYABLE -> fail
        closing . failed non_retryable
        undo because failed: c | a b + c:undo/1
        ok c:undo/1 + a:undo/1 b:undo/1
        ok b:undo/1
        ok a:undo/1
        review dead_letter d (non_retryable)
        finished failed non_retryable
    """)


@pytest.mark.requirement("E6")
def test_all_at_once() -> None:
    run = failed_saga("BEST_EFFORT_PARALLEL")
    run.undo("b", "c", "a")
    run.expect("""
        failed d/1 NON_RETRYABLE -> fail
        closing . failed non_retryable
        undo because failed: c a b + c:undo/1 a:undo/1 b:undo/1
        ok b:undo/1
        ok c:undo/1
        ok a:undo/1
        review dead_letter d (non_retryable)
        finished failed non_retryable
    """)


@pytest.mark.requirement("E14")
def test_parallel_undo_obeys_the_layer_concurrency() -> None:
    run = given(
        step("a", undo=True),
        step("b", undo=True),
        step("c"),
        mode="parallel",
        max_concurrency=1,
        compensation="BEST_EFFORT_PARALLEL",
    )
    run.start()
    run.succeed("a", "b")
    run.skip_lines()
    run.fail("c")
    run.undo("b", "a")
    run.expect("""
        failed c/1 NON_RETRYABLE -> fail
        closing . failed non_retryable
        undo because failed: b a + b:undo/1
        ok b:undo/1 + a:undo/1
        ok a:undo/1
        review dead_letter c (non_retryable)
        finished failed non_retryable
    """)


@pytest.mark.requirement("E3")
def test_layers_of_nested_scopes_count_from_the_outside() -> None:
    run = given(
        scope("first", step("a", undo=True), step("b", undo=True)),
        scope("second", step("c", undo=True), step("d", undo=True), mode="parallel"),
        step("e"),
        compensation="GROUPED_PARALLEL",
    )
    run.start()
    run.succeed("first/a", "first/b", "second/c", "second/d")
    run.skip_lines()
    run.fail("e")
    assert run.new_lines()[2] == (
        "undo because failed: second/d second/c | first/b | first/a + second/d:undo/1 second/c:undo/1"
    )
    assert run.run_out() == "failed"


@pytest.mark.requirement("E3")
def test_in_a_flow_the_order_of_completion_takes_the_place_of_layers() -> None:
    run = given(
        step("a", undo=True, on_success="b"),
        step("b", undo=True, on_success="c"),
        step("c"),
        mode="flow",
        compensation="GROUPED_PARALLEL",
    )
    run.start()
    run.succeed("a@1", "b@1")
    run.skip_lines()
    run.fail("c@1")
    assert run.new_lines()[2] == "undo because failed: b@1 | a@1 + b@1:undo/1"
    assert run.run_out() == "failed"


# -- What is undone ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("E1")
def test_only_what_completed_is_undone_not_the_step_that_failed() -> None:
    run = given(step("a", undo=True), step("b"), step("c", undo=True))
    run.start()
    run.succeed("a", "b")
    run.fail("c")
    run.undo("a")
    assert run.status == "failed"
    assert run.undone() == {"a": "done"}


@pytest.mark.requirement("E1")
@pytest.mark.parametrize("where", ["declared", "reported"])
def test_a_step_that_may_have_been_made_in_part_is_undone_too(where: str) -> None:
    run = given(step("a", undo=True), step("c", undo=True, partial_effect=where == "declared"))
    run.start()
    run.succeed("a")
    run.skip_lines()
    run.fail("c", partial=where == "reported")
    run.undo("c", "a")
    run.expect("""
        failed c/1 NON_RETRYABLE -> fail half-done
        closing . failed non_retryable
        undo because failed: c | a + c:undo/1
        ok c:undo/1 + a:undo/1
        ok a:undo/1
        review dead_letter c (non_retryable)
        finished failed non_retryable
    """)


@pytest.mark.requirement("E1")
def test_running_siblings_are_awaited_and_then_undone() -> None:
    run = given(step("a", undo=True), step("b", undo=True), step("c"), mode="parallel")
    run.start()
    run.succeed("a")
    run.fail("c")
    assert run.open() == ["b/1"]
    run.succeed("b")
    run.undo("b", "a")
    run.expect("""
        started + a/1 b/1 c/1
        ok a/1
        failed c/1 NON_RETRYABLE -> fail
        closing . failed non_retryable
        ok b/1
        undo because failed: b | a + b:undo/1
        ok b:undo/1 + a:undo/1
        ok a:undo/1
        review dead_letter c (non_retryable)
        finished failed non_retryable
    """)


@pytest.mark.requirement("E1")
def test_nothing_is_undone_when_it_succeeds_or_when_there_is_nothing_to_undo() -> None:
    run = given(step("a", undo=True), step("b", undo=True))
    run.start()
    assert run.run_out() == "succeeded"
    assert run.undone() == {}
    run = given(step("a"), step("b"))
    run.start()
    run.succeed("a")
    run.fail("b")
    assert run.status == "failed"
    assert run.undone() == {}


@pytest.mark.requirement("E1")
def test_what_a_scope_that_was_passed_over_completed_is_undone_when_the_execution_fails() -> None:
    run = given(
        scope("optional", step("a", undo=True), step("b")),
        step("c"),
        mode="parallel",
        failure_mode="fail_fast",
    )
    run.start()
    run.succeed("optional/a")
    run.fail("optional/b")
    run.succeed("c")
    run.undo("optional/a")
    assert run.status == "failed"


@pytest.mark.requirement("E13")
def test_clones_are_undone_one_by_one_before_what_is_upstream() -> None:
    run = given(step("up", undo=True), step("n", foreach="[1, 2, 3]", undo=True), step("z"))
    run.start()
    run.succeed("up")
    run.succeed("n#2", "n#0", "n#1")
    run.skip_lines()
    run.fail("z")
    run.undo("n#1", "n#0", "n#2", "up")
    run.expect("""
        failed z/1 NON_RETRYABLE -> fail
        closing . failed non_retryable
        undo because failed: n#1 | n#0 | n#2 | up + n#1:undo/1
        ok n#1:undo/1 + n#0:undo/1
        ok n#0:undo/1 + n#2:undo/1
        ok n#2:undo/1 + up:undo/1
        ok up:undo/1
        review dead_letter z (non_retryable)
        finished failed non_retryable
    """)


@pytest.mark.requirement("E13")
def test_of_a_fan_out_that_failed_the_completed_clones_are_undone() -> None:
    run = given(
        step("up", undo=True),
        step("n", foreach="[1, 2, 3]", undo=True),
        compensation="GROUPED_PARALLEL",
    )
    run.start()
    run.succeed("up")
    run.succeed("n#0")
    run.skip_lines()
    run.fail("n#1", partial=True)
    run.succeed("n#2")
    run.undo("n#2", "n#1", "n#0", "up")
    run.expect("""
        failed n#1/1 NON_RETRYABLE -> fail half-done
        closing n failed non_retryable
        closing . failed non_retryable
        ok n#2/1
        scope n failed non_retryable
        undo because failed: n#2 n#1 n#0 | up + n#2:undo/1 n#1:undo/1 n#0:undo/1
        ok n#2:undo/1
        ok n#1:undo/1
        ok n#0:undo/1 + up:undo/1
        ok up:undo/1
        review dead_letter n#1 (non_retryable)
        finished failed non_retryable
    """)


# -- Attempts of an undo -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("E4")
def test_retry_with_backoff_gives_five_tries() -> None:
    run = failed_saga("RETRY_WITH_BACKOFF")
    for _ in range(4):
        run.undo_fails("c", "TRANSIENT")
        run.tick()
    run.undo("c", "a", "b")
    assert [line for line in run.new_lines() if "c:undo" in line] == [
        "undo because failed: c | a | b + c:undo/1",
        "failed c:undo/1 TRANSIENT -> retry@100",
        "granted + c:undo/2",
        "failed c:undo/2 TRANSIENT -> retry@300",
        "granted + c:undo/3",
        "failed c:undo/3 TRANSIENT -> retry@700",
        "granted + c:undo/4",
        "failed c:undo/4 TRANSIENT -> retry@1500",
        "granted + c:undo/5",
        "ok c:undo/5 + a:undo/1",
    ]


@pytest.mark.requirement("E7")
def test_the_steps_own_settings_win_whatever_the_policy() -> None:
    run = failed_saga(
        "STRICT_SEQUENTIAL", compensation_max_attempts=2, compensation_backoff_ms=7, compensation_timeout_ms=9
    )
    run.undo_fails("c", "TRANSIENT")
    assert run.wake_at == 7
    run.tick()
    run.undo("c", "a", "b")
    assert run.status == "failed"
    policy = undo_policy(run.step("c").node.step, 5)
    assert (policy.max_attempts, policy.initial_delay_ms, policy.timeout_ms) == (2, 7, 9)


@pytest.mark.requirement("E7")
def test_what_a_step_does_not_set_is_the_policys() -> None:
    policy = undo_policy(step("a", undo=True, timeout=1_234), POLICIES["RETRY_WITH_BACKOFF"].max_attempts)
    assert (policy.max_attempts, policy.initial_delay_ms, policy.timeout_ms) == (5, None, 1_234)


def test_an_undo_that_timed_out_is_retried_like_one_that_failed() -> None:
    run = failed_saga("STRICT_SEQUENTIAL", compensation_max_attempts=2)
    run.report("c", TimedOut(), phase="compensate")
    assert run.step("c").undo == "retrying"
    run.tick()
    run.undo("c", "a", "b")
    assert run.status == "failed"


# -- A failed undo -----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("E10")
@pytest.mark.parametrize("policy", ["STRICT_SEQUENTIAL", "RETRY_WITH_BACKOFF"])
def test_a_strict_rollback_stops_and_asks(policy: CompensationOrder) -> None:
    run = failed_saga(policy)
    run.skip_lines()
    run.undo_fails("c")
    run.expect("""
        failed c:undo/1 NON_RETRYABLE -> review
        review compensation_failed c
        undo stopped failed: a b
    """)
    assert run.status == "waiting_approval"
    assert run.undone() == {"c": "failed"}


@pytest.mark.requirement("E3")
def test_a_layer_is_finished_before_a_grouped_rollback_stops() -> None:
    run = failed_saga("GROUPED_PARALLEL")
    run.undo("c")
    run.skip_lines()
    run.undo_fails("a")
    run.undo("b")
    run.expect("""
        failed a:undo/1 NON_RETRYABLE -> review
        review compensation_failed a
        ok b:undo/1
    """)
    assert run.status == "waiting_approval"


@pytest.mark.requirement("E3")
def test_a_grouped_rollback_stops_before_the_next_layer() -> None:
    run = failed_saga("GROUPED_PARALLEL")
    run.skip_lines()
    run.undo_fails("c")
    run.expect("""
        failed c:undo/1 NON_RETRYABLE -> review
        review compensation_failed c
        undo stopped failed: a b
    """)


@pytest.mark.requirement("E3")
def test_with_few_slots_the_rest_of_the_layer_is_still_started() -> None:
    run = given(
        step("a", undo=True),
        step("b", undo=True),
        step("c"),
        mode="parallel",
        max_concurrency=1,
        compensation="GROUPED_PARALLEL",
    )
    run.start()
    run.succeed("a", "b")
    run.fail("c")
    run.skip_lines()
    run.undo_fails("b")
    run.expect("""
        failed b:undo/1 NON_RETRYABLE -> review
        review compensation_failed b + a:undo/1
    """)


@pytest.mark.requirement("E6")
def test_best_effort_goes_on_and_asks_in_the_end() -> None:
    run = failed_saga("BEST_EFFORT_PARALLEL")
    run.skip_lines()
    run.undo_fails("c")
    run.undo("a", "b")
    assert run.status == "waiting_approval"
    run.resolve("c", "dismiss")
    run.expect("""
        failed c:undo/1 NON_RETRYABLE -> review
        review compensation_failed c
        ok a:undo/1
        ok b:undo/1
        resolved compensation_failed c dismiss -> skip
        review dead_letter d (non_retryable)
        finished failed non_retryable
    """)
    assert run.undone() == {"a": "done", "b": "done", "c": "skipped"}


@pytest.mark.requirement("E5")
def test_a_failed_critical_undo_opens_the_circuit() -> None:
    run = failed_saga("CIRCUIT_BREAKER", compensation_critical=True)
    run.skip_lines()
    run.undo_fails("c")
    run.resolve("c", "dismiss")
    run.expect("""
        failed c:undo/1 NON_RETRYABLE -> review
        review compensation_failed c
        undo stopped circuit_open: a b
        resolved compensation_failed c dismiss -> skip
        review dead_letter d (non_retryable)
        finished failed non_retryable
    """)
    assert run.undone() == {"c": "skipped"}


@pytest.mark.requirement("E5")
def test_a_critical_undo_that_is_mended_closes_the_circuit() -> None:
    run = failed_saga("CIRCUIT_BREAKER", compensation_critical=True)
    run.undo_fails("c")
    run.skip_lines()
    run.resolve("c", "completed")
    run.undo("a", "b")
    run.expect("""
        resolved compensation_failed c completed -> succeed + a:undo/1
        ok a:undo/1 + b:undo/1
        ok b:undo/1
        review dead_letter d (non_retryable)
        finished failed non_retryable
    """)


@pytest.mark.requirement("E5")
def test_an_undo_that_is_not_critical_does_not_open_the_circuit() -> None:
    run = failed_saga("CIRCUIT_BREAKER")
    run.skip_lines()
    run.undo_fails("c")
    run.undo("a", "b")
    assert run.status == "waiting_approval"
    run.expect("""
        failed c:undo/1 NON_RETRYABLE -> review
        review compensation_failed c + a:undo/1
        ok a:undo/1 + b:undo/1
        ok b:undo/1
    """)


@pytest.mark.requirement("E10")
@pytest.mark.parametrize(
    ("resolution", "first"),
    [
        ("retry", "resolved compensation_failed c retry -> retry + c:undo/2"),
        ("compensate", "resolved compensation_failed c compensate -> retry + c:undo/2"),
        ("completed", "resolved compensation_failed c completed -> succeed + a:undo/1"),
        ("dismiss", "resolved compensation_failed c dismiss -> skip + a:undo/1"),
    ],
)
def test_a_person_resolves_a_failed_undo_and_the_rollback_goes_on(resolution: Resolution, first: str) -> None:
    run = failed_saga("STRICT_SEQUENTIAL")
    run.undo_fails("c")
    run.skip_lines()
    run.resolve("c", resolution)
    assert run.new_lines() == [first]
    assert run.run_out() == "failed"
    assert run.step("c").undo == ("skipped" if resolution == "dismiss" else "done")
    assert (run.step("a").undo, run.step("b").undo) == ("done", "done")


@pytest.mark.requirement("E10")
def test_an_undo_that_fails_again_asks_again() -> None:
    run = failed_saga("STRICT_SEQUENTIAL")
    run.undo_fails("c")
    run.resolve("c", "retry")
    run.skip_lines()
    run.undo_fails("c")
    run.expect("""
        failed c:undo/2 NON_RETRYABLE -> review
        review compensation_failed c
    """)
    assert run.status == "waiting_approval"
    run.resolve("c", "completed")
    assert run.run_out() == "failed"


def test_a_decision_while_paused_acts_on_resume() -> None:
    run = failed_saga("STRICT_SEQUENTIAL")
    run.undo_fails("c")
    run.pause()
    run.skip_lines()
    run.resolve("c", "retry")
    assert run.open() == []
    run.resume()
    assert run.open() == ["c:undo/2"]
    assert run.run_out() == "failed"


# -- Undo by consent ---------------------------------------------------------------------------------------------------


def manual_saga() -> Driver:
    run = given(
        step("a", undo=True), step("b", undo=True, compensation_policy="manual", permission="refunds"), step("c")
    )
    run.start()
    run.succeed("a", "b")
    run.skip_lines()
    run.fail("c")
    run.expect("""
        failed c/1 NON_RETRYABLE -> fail
        closing . failed non_retryable
        undo because failed: b | a
        review compensation b
    """)
    assert run.status == "waiting_approval"
    assert run.step("b").undo == "awaiting_approval"
    assert next(iter(run.state.reviews.values())).permission == "refunds"
    return run


@pytest.mark.requirement("E8")
@pytest.mark.parametrize("resolution", ["compensate", "retry", "approved"])
def test_a_manual_undo_runs_when_a_person_consents(resolution: Resolution) -> None:
    run = manual_saga()
    run.resolve("b", resolution)
    assert run.open() == ["b:undo/1"]
    run.undo("b", "a")
    assert run.undone() == {"a": "done", "b": "done"}


@pytest.mark.requirement("E8")
@pytest.mark.parametrize("resolution", ["dismiss", "rejected", "not_completed"])
def test_a_person_may_leave_it_as_it_is(resolution: Resolution) -> None:
    run = manual_saga()
    run.resolve("b", resolution)
    run.undo("a")
    assert run.status == "failed"
    assert run.undone() == {"a": "done", "b": "skipped"}


@pytest.mark.requirement("E8")
def test_a_person_may_have_done_it_by_hand() -> None:
    run = manual_saga()
    run.resolve("b", "completed")
    run.undo("a")
    assert run.undone() == {"a": "done", "b": "done"}


@pytest.mark.requirement("E8")
def test_a_manual_clone_asks_for_itself() -> None:
    run = given(step("n", foreach="[1, 2]", undo=True, compensation_policy="manual"), step("z"))
    run.start()
    run.succeed("n#0", "n#1")
    run.fail("z")
    run.resolve("n#1", "compensate")
    run.undo("n#1")
    run.resolve("n#0", "dismiss")
    assert run.status == "failed"
    assert run.undone() == {"n#0": "skipped", "n#1": "done"}


def test_a_cancel_during_a_rollback_does_not_disturb_it() -> None:
    run = failed_saga("STRICT_SEQUENTIAL")
    run.skip_lines()
    run.cancel("drain")
    run.undo("c", "a", "b")
    run.expect("""
        cancel drain
        ok c:undo/1 + a:undo/1
        ok a:undo/1 + b:undo/1
        ok b:undo/1
        review dead_letter d (non_retryable)
        finished failed non_retryable
    """)


def test_a_lost_undo_is_made_again_three_times_and_then_asks() -> None:
    run = failed_saga("STRICT_SEQUENTIAL")
    run.skip_lines()
    run.crash_and_wait(4)
    run.expect("""
        lost c:undo/1 -> retry@0 + c:undo/2
        lost c:undo/2 -> retry@2511
        granted + c:undo/3
        lost c:undo/3 -> retry@11807
        granted + c:undo/4
        lost c:undo/4 -> review
        review compensation_failed c
        undo stopped failed: a b
    """)


@pytest.mark.requirement("C10")
def test_an_unsafe_step_that_failed_undoes_itself_and_ends_in_a_dead_letter() -> None:
    run = given(step("a", undo=True), unsafe("pay", undo=True))
    run.start()
    run.succeed("a")
    run.begin("pay")
    run.skip_lines()
    run.fail("pay", "DEPENDENCY_FAILED")
    run.undo("pay", "a")
    run.expect("""
        failed pay/1 DEPENDENCY_FAILED -> fail half-done
        closing . failed dependency_failed
        undo because failed: pay | a + pay:undo/1
        ok pay:undo/1 + a:undo/1
        ok a:undo/1
        review dead_letter pay (dependency_failed)
        finished failed dependency_failed
    """)


@pytest.mark.parametrize("policy", ["auto", "manual"])
def test_effects_of_a_round_that_is_over_are_undone_although_the_next_one_had_begun(policy: str) -> None:
    run = given(
        step("a"),
        scope(
            "s",
            step("b", undo=True, compensation_policy=policy),
            step("n", foreach="[1, 2]", undo=True, compensation_policy=policy),
            step("c", tries=1),
            failure_mode="retry",
        ),
        mode="parallel",
    )
    run.start()
    run.succeed("s/b", "s/n#0", "s/n#1")
    run.fail("s/c", "TRANSIENT")
    run.fail("a")
    for path in ("s/n#1", "s/n#0", "s/b"):
        if policy == "manual":
            run.resolve(path, "compensate")
        run.undo(path)
    assert run.status == "failed"
    assert run.undone() == {"s/b": "done", "s/n#0": "done", "s/n#1": "done"}
    assert not run.scope("s").active
    run.retry()
    assert run.run_out() == "succeeded"


@pytest.mark.requirement("E5")
def test_a_circuit_opens_when_the_others_that_run_are_done() -> None:
    run = given(
        step("a", undo=True, compensation_critical=True),
        step("b", undo=True, compensation_critical=True),
        step("c", undo=True),
        step("d"),
        compensation="CIRCUIT_BREAKER",
    )
    run.start()
    run.succeed("a", "b", "c")
    run.fail("d")
    run.undo_fails("c")
    run.resolve("c", "retry")
    run.skip_lines()
    run.undo_fails("b")
    run.undo("c")
    run.expect("""
        failed b:undo/1 NON_RETRYABLE -> review
        review compensation_failed b
        ok c:undo/2
        undo stopped circuit_open: a
    """)


def test_a_clone_whose_undo_needed_a_second_attempt_is_made_again_like_the_others() -> None:
    run = given(step("n", foreach="[1, 2]", undo=True), step("z"))
    run.start()
    run.succeed("n#0", "n#1")
    run.fail("z")
    run.undo_fails("n#1")
    run.resolve("n#1", "retry")
    run.undo("n#1", "n#0")
    run.retry()
    assert [run.step(f"n#{i}").generation for i in (0, 1)] == [2, 2]
    assert run.run_out() == "succeeded"


def test_what_a_probe_says_was_not_made_is_not_undone_although_an_earlier_round_may_have_begun_it() -> None:
    run = given(
        scope("s", guarded("g", tries=1, undo=True, partial_effect=True), failure_mode="retry", max_rounds=2),
    )
    run.start()
    run.fail("s/g", "TRANSIENT")
    run.tick()
    run.time_out("s/g")
    run.not_done("s/g")
    assert (run.status, run.undone()) == ("failed", {})


def test_what_an_earlier_round_completed_is_undone_although_a_later_one_was_not_made() -> None:
    run = given(
        scope(
            "s",
            guarded("g", tries=1, undo=True, partial_effect=True),
            step("z", tries=1),
            failure_mode="retry",
            max_rounds=3,
        ),
    )
    run.start()
    run.succeed("s/g")
    run.fail("s/z", "TRANSIENT")
    run.tick()
    run.fail("s/g", "TRANSIENT")
    run.tick()
    run.time_out("s/g")
    run.not_done("s/g")
    run.undo("s/g")
    assert (run.status, run.undone()) == ("failed", {"s/g": "done"})
