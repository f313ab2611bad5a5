"""Runs (seed 002): their states and limits, credits set aside, agents that do not read each other, escalation."""

from typing import Any

import pytest

from tenuto.kernel import facts as f
from tenuto.kernel.address import attempt_span
from tenuto.kernel.decide.credits import waits_for_credits
from tenuto.kernel.definition import DAY, HOUR, MINUTE, SECOND, Escalation, FailureMode, Node, RunPolicies, Scope, Step
from tenuto.kernel.evolve import HOLD
from tenuto.kernel.run_states import may_follow, run_status
from tenuto.kernel.state import StepState
from tenuto.kernel.step_override import StepOverride, override_nodes
from tenuto.views.projections import standing

from .build import scope, step
from .driver import Driver, given

LIMITS: dict[str, Any] = {"pending_timeout_ms": DAY, "timeout_ms": DAY, "cancel": "terminate"}


def agent(name: str, **fields: Any) -> Node:
    return scope(name, scope("visit", step("fetch", tries=1), step("read", tries=1)), **fields)


def run_of(
    *agents: Node,
    mode: FailureMode = "fail_fast",
    policies: RunPolicies | None = None,
    planner: str | None = None,
    **fields: Any,
) -> Driver:
    """A run that has not started. `mode` is its failure mode."""
    inner: FailureMode = "fail_fast" if mode == "retry" else mode
    return given(
        scope("agents", *agents, mode="parallel", failure_mode=inner, planner=planner),
        step("conclude"),
        failure_mode="retry" if mode == "retry" else "fail_fast",
        run=policies or RunPolicies(),
        **{**LIMITS, **fields},
    )


def status(run: Driver) -> str:
    return run_status(run.state)


# -- States and limits -------------------------------------------------------------------------------------------------


def test_a_run_is_pending_until_a_worker_claims_it() -> None:
    run = run_of(agent("a"))
    run.start(hold=100, owned=False)
    assert status(run) == "pending"
    run.tick_to(5 * HOUR)
    run.crash()
    assert status(run) == "running"
    assert run.state.running_at == run.now


def test_the_limit_of_a_running_run_counts_from_its_first_claim() -> None:
    run = run_of(agent("a"))
    run.start(hold=100, owned=False)
    run.tick_to(5 * HOUR)
    run.crash()
    run.tick_to(5 * HOUR + DAY - 1)
    assert status(run) == "running"
    run.tick_to(5 * HOUR + DAY)
    run.fail("agents/a/visit/fetch")
    assert (status(run), run.lines()[-1].split()[2]) == ("failed", "deadline")


def test_a_run_that_no_worker_claims_fails_with_nothing_charged() -> None:
    run = run_of(agent("a"))
    run.start(hold=100, owned=False)
    run.tick_to(DAY - 1)
    assert status(run) == "pending"
    run.tick_to(DAY)
    assert run.lines()[-1] == "finished failed pending_timeout charged=0 refunded=100"


def test_a_resumed_run_that_no_worker_claims_fails_after_five_minutes() -> None:
    run = run_of(agent("a"))
    run.start(hold=100)
    run.pause()
    run.succeed("agents/a/visit/fetch")
    run.tick_to(HOUR)
    run.tell(f.Resume(at=run.now, owned=False))
    assert status(run) == "resuming"
    run.tick_to(HOUR + 5 * MINUTE - 1)
    assert status(run) == "resuming"
    run.tick_to(HOUR + 5 * MINUTE)
    assert (status(run), run.lines()[-1].split()[2]) == ("failed", "resume_timeout")


def test_a_resumed_run_that_is_claimed_runs_and_keeps_its_deadline() -> None:
    run = run_of(agent("a"))
    run.start(hold=100)
    run.pause()
    run.tick_to(HOUR)
    run.tell(f.Resume(at=run.now, owned=False))
    run.crash()
    assert status(run) == "running"
    assert run.state.timers["execution", ""] - run.now == DAY, "an hour of pause does not count"


def test_only_a_running_run_can_be_paused() -> None:
    run = run_of(agent("a"))
    run.start(hold=100, owned=False)
    answer = run.pause()
    assert isinstance(answer, f.Refused)
    assert (answer.code, status(run)) == ("invalid_transition", "pending")


def test_an_automatic_retry_waits_for_its_delay_and_is_queued_then() -> None:
    run = run_of(agent("a"), mode="retry")
    run.start(hold=100)
    run.fail("agents/a/visit/fetch", "TRANSIENT")
    assert status(run) == "failed"
    run.grant_hold(100)
    assert (status(run), run.open()) == ("retrying", [])
    assert run.wake_at is not None
    assert 90 <= run.wake_at <= 110
    run.tick()
    assert (status(run), run.open()) == ("running", ["agents/a/visit/fetch/2"])
    assert run.state.timers["execution", ""] == run.now + DAY


def test_a_retry_that_is_never_admitted_fails_after_a_day() -> None:
    run = given(
        scope("agents", agent("a"), mode="parallel"),
        step("conclude"),
        run=RunPolicies(),
        concurrency_key="'k'",
        **LIMITS,
    )
    run.start(hold=100, key="k")
    run.fail("agents/a/visit/fetch")
    run.retry(hold=100, admitted=False)
    assert status(run) == "retrying"
    run.tick_to(DAY)
    assert run.lines()[-1] == "finished failed retry_timeout charged=0 refunded=100"


def test_a_run_has_as_many_attempts_as_it_was_given() -> None:
    run = run_of(agent("a"), policies=RunPolicies(max_attempts=2))
    run.start(hold=100)
    run.fail("agents/a/visit/fetch")
    run.retry()
    assert run.state.hold == 100, "each attempt reserves the same"
    run.fail("agents/a/visit/fetch")
    answer = run.retry()
    assert isinstance(answer, f.Refused)
    assert answer.code == "attempts_spent"


def test_a_failed_run_whose_retry_is_pending_is_due_if_its_process_dies() -> None:
    """The hold is asked for by the owner. Without a due time, nobody would ask after its death."""
    run = run_of(agent("a"), mode="retry")
    run.start(hold=100)
    run.fail("agents/a/visit/fetch", "TRANSIENT")
    assert HOLD in run.state.agenda
    kept = standing(run.state, run.history, 1, release=False)
    assert not kept.release, "its owner keeps it until the hold is answered"
    released = standing(run.state, run.history, 1, release=True)
    assert released.wake_at == run.now
    run.refuse_hold()
    assert standing(run.state, run.history, 1, release=False).release


def test_credits_need_not_be_held_for_a_run_to_be_retried() -> None:
    run = run_of(agent("a"), mode="retry")
    run.start()
    run.fail("agents/a/visit/fetch", "TRANSIENT")
    run.grant_hold(0)
    assert status(run) == "retrying"


@pytest.mark.parametrize("code", ["heartbeat_timeout", "unstuck"])
def test_a_run_can_be_ended_as_failed_whatever_is_under_way(code: Any) -> None:
    run = run_of(agent("a"), agent("b"))
    run.start(hold=100)
    run.succeed("agents/a/visit/fetch", usage=30)
    run.tell(f.Fail(at=run.now, code=code, reason="stuck"))
    assert run.lines()[-1] == f"finished failed {code} charged=30 refunded=70"
    assert run.open() == []
    run.retry()
    assert run.open() == ["agents/a/visit/read/2", "agents/b/visit/fetch/2"]


# -- Credits -----------------------------------------------------------------------------------------------------------


def paid(count: int, estimate: int) -> Driver:
    run = given(*(step(f"s{i}", tries=1, estimate=estimate) for i in range(count)), mode="parallel")
    run.start(hold=100)
    return run


def test_estimates_of_attempts_in_flight_are_set_aside() -> None:
    run = paid(10, 40)
    assert run.open() == ["s0/1", "s1/1"]
    run.succeed("s0", usage=5)
    assert run.open() == ["s1/1", "s2/1"], "95 are left, 40 of them set aside"


def test_a_step_that_attempts_in_flight_cannot_free_enough_for_fails() -> None:
    run = paid(3, 40)
    run.succeed("s0", usage=40)
    assert run.open() == ["s1/1"], "60 are left, and 40 of them are set aside"
    run.succeed("s1", usage=25)
    assert (run.status, run.lines()[-1].split()[2]) == ("failed", "credits_exhausted")


def test_a_step_in_another_scope_starts_when_credits_become_free() -> None:
    run = given(
        scope("x", step("a", estimate=80)), scope("y", step("b", estimate=80)), mode="parallel", failure_mode="continue"
    )
    run.start(hold=100)
    assert run.open() == ["x/a/1"]
    run.succeed("x/a", usage=10)
    assert run.open() == ["y/b/1"]


def test_a_retry_waits_for_credits_that_are_set_aside() -> None:
    run = given(step("a", estimate=60, delay=100), step("b", estimate=30), step("c", estimate=30), mode="parallel")
    run.start(hold=100)
    assert run.open() == ["a/1", "b/1"]
    run.fail("a", "TRANSIENT", usage=5)
    assert run.open() == ["b/1", "c/1"]
    run.tick()
    assert run.open() == ["b/1", "c/1"], "35 of 95 are not set aside"
    run.succeed("b")
    assert run.open() == ["c/1", "a/2"]


def test_a_fan_out_sets_the_estimates_of_its_clones_aside() -> None:
    run = given(step("each", foreach="input", estimate=40))
    run.start([1, 2, 3], hold=100)
    assert run.open() == ["each#0/1", "each#1/1"]
    run.succeed("each#0", usage=10)
    assert run.open() == ["each#1/1", "each#2/1"]


# -- Agents ------------------------------------------------------------------------------------------------------------


def test_agents_of_one_template_do_not_read_each_others_results() -> None:
    def reader(name: str) -> Node:
        return scope(
            name,
            scope("visit", step("fetch")),
            scope("use", step("cheap", when="steps.fetch.result < 10"), step("dear", when="steps.fetch.result >= 10")),
            failure_mode="continue",
        )

    run = run_of(reader("a"), reader("b"))
    run.start(hold=100)
    run.succeed("agents/a/visit/fetch", result=5)
    run.succeed("agents/b/visit/fetch", result=50)
    assert run.open() == ["agents/a/use/cheap/1", "agents/b/use/dear/1"]


def test_a_condition_reads_its_own_agent_even_if_that_has_no_result() -> None:
    run = run_of(
        scope("a", step("fetch")),
        scope("b", step("fetch", when="false"), step("next", when="steps.fetch.status == 'succeeded'")),
    )
    run.start(hold=100)
    run.succeed("agents/a/fetch")
    assert run.statuses()["agents/b/next"] == "skipped", "its own agent has fetched nothing"


def test_a_plan_may_use_a_template_twice() -> None:
    run = run_of(planner="split")
    run.start(hold=100)
    run.planned(agent("shop-1"), agent("shop-2"), scope="agents")
    assert run.open() == ["agents/shop-1/visit/fetch/1", "agents/shop-2/visit/fetch/1"]


def test_a_plan_with_a_step_that_costs_more_than_is_reserved_is_a_bad_plan() -> None:
    run = run_of(planner="split")
    run.start(hold=100)
    for _ in range(3):
        run.planned(scope("a", step("fetch", estimate=101)), scope="agents")
        if run.status == "running":
            run.tick()
    assert run.lines()[-1].split()[2] == "bad_plan"


def test_a_run_that_continues_plans_anew_when_its_last_agent_ended() -> None:
    run = run_of(planner="split", mode="continue")
    run.start(hold=100)
    run.planned(agent("a"), agent("b"), agent("c"), scope="agents")
    run.fail("agents/a/visit/fetch")
    run.fail("agents/b/visit/fetch")
    assert run.open() == ["agents/c/visit/fetch/1"]
    run.succeed("agents/c/visit/fetch", "agents/c/visit/read")
    assert run.open() == ["agents:plan/2"]


def test_skipped_agents_make_a_partial_outcome() -> None:
    run = run_of(agent("a"), agent("b"), mode="continue")
    run.start(hold=100)
    run.fail("agents/a/visit/fetch")
    run.succeed("agents/b/visit/fetch", "agents/b/visit/read", "conclude")
    assert (run.status, run.state.outcome) == ("succeeded", "partial")


def test_a_skipped_step_makes_a_partial_outcome() -> None:
    inner = scope("visit", step("fetch", tries=1), step("read", tries=1), failure_mode="continue")
    run = run_of(scope("a", inner), agent("b"))
    run.start(hold=100)
    run.fail("agents/a/visit/fetch")
    run.succeed("agents/a/visit/read", "agents/b/visit/fetch", "agents/b/visit/read", "conclude")
    assert (run.status, run.state.outcome) == ("succeeded", "partial")


# -- Escalation --------------------------------------------------------------------------------------------------------


def escalated(**fields: Any) -> Driver:
    run = run_of(agent("a"), agent("b"), escalation=Escalation(), **fields)
    run.start(hold=100)
    run.fail("agents/a/visit/fetch", "TRANSIENT")
    return run


def test_spent_attempts_that_would_fail_the_run_are_put_before_a_person() -> None:
    run = escalated()
    assert (status(run), run.reviews()) == ("paused", ["escalation agents/a/visit/fetch"])
    assert run.state.pause is not None
    assert run.state.pause.reason == "escalated"


def test_retry_and_resume_give_the_failed_step_a_new_round() -> None:
    for command in ("retry", "resume"):
        run = escalated()
        if command == "retry":
            run.resolve("agents/a/visit/fetch", "retry")
        else:
            run.resume()
        assert status(run) == "running"
        assert "agents/a/visit/fetch/2" in run.open()
        assert run.reviews() == []


def test_not_completed_fails_the_run() -> None:
    run = escalated()
    run.resolve("agents/a/visit/fetch", "not_completed")
    run.succeed("agents/b/visit/fetch")
    assert status(run) == "failed"


def test_a_step_that_waits_for_a_decision_cannot_be_dismissed() -> None:
    run = escalated()
    answer = run.resolve("agents/a/visit/fetch", "dismiss")
    assert answer == f.Refused("bad_resolution", "a step waits for this decision", "retry, completed, not_completed")
    assert status(run) == "paused"


def test_an_escalated_run_can_be_cancelled() -> None:
    run = escalated()
    run.cancel()
    assert (status(run), run.reviews()) == ("cancelled", [])


def test_what_does_not_fail_the_run_does_not_escalate() -> None:
    skipped = run_of(agent("a"), agent("b"), mode="continue", escalation=Escalation())
    skipped.start(hold=100)
    skipped.fail("agents/a/visit/fetch", "TRANSIENT")
    assert (status(skipped), skipped.reviews()) == ("running", [])
    refused = run_of(agent("a"), escalation=Escalation())
    refused.start(hold=100)
    refused.fail("agents/a/visit/fetch", "NON_RETRYABLE")
    assert status(refused) == "failed"
    repeated = run_of(agent("a"), mode="retry", escalation=Escalation())
    repeated.start(hold=100)
    repeated.fail("agents/a/visit/fetch", "TRANSIENT")
    assert status(repeated) == "failed", "a retry of the run comes first"
    switched_off = run_of(agent("a"), escalation=Escalation(on_spent=False))
    switched_off.start(hold=100)
    switched_off.fail("agents/a/visit/fetch", "TRANSIENT")
    assert status(switched_off) == "failed"


def test_triggers_can_be_switched_off() -> None:
    run = given(step("a", tries=100, delay=0), escalation=Escalation(errors=None, error_rate=None))
    run.start()
    for _ in range(40):
        run.fail("a", "TRANSIENT")
        run.tick_to(run.elapsed + SECOND)
    assert run.status == "running"


# -- Refusals and free credits -----------------------------------------------------------------------------------------


def test_only_runs_are_ended_as_failed() -> None:
    run = given(step("a"))
    run.start()
    answer = run.tell(f.Fail(at=run.now, code="unstuck"))
    told = "only runs can be ended as failed"
    assert (answer, run.status) == (f.Refused("invalid_transition", told, "cancel the execution"), "running")


def test_a_run_that_is_over_is_not_ended_again() -> None:
    run = run_of(agent("a"))
    run.start(hold=100)
    run.tell(f.Fail(at=run.now, code="unstuck"))
    recorded = len(run.history)
    run.tell(f.Fail(at=run.now, code="unstuck"))
    assert len(run.history) == recorded


def test_a_paused_run_can_be_ended_as_failed() -> None:
    run = run_of(agent("a"))
    run.start(hold=100)
    run.pause()
    run.tell(f.Fail(at=run.now, code="heartbeat_timeout"))
    assert status(run) == "failed"


def test_transitions_of_runs_are_those_of_the_table() -> None:
    assert may_follow("created", "pending")
    assert not may_follow("completed", "running")


@pytest.mark.parametrize(("mode", "path"), [("sequence", "a"), ("flow", "a@1")])
def test_a_retry_that_the_hold_cannot_pay_for_fails(mode: Any, path: str) -> None:
    run = given(step("a", estimate=60, delay=100), mode=mode)
    run.start(hold=100)
    run.fail(path, "TRANSIENT", usage=50)
    run.tick()
    assert (run.status, run.lines()[-1].split()[2]) == ("failed", "credits_exhausted")


def test_the_retry_of_a_clone_waits_for_credits_that_are_set_aside() -> None:
    run = given(step("each", foreach="input", estimate=40, delay=100))
    run.start([1, 2], hold=100)
    run.fail("each#0", "TRANSIENT", usage=30)
    run.tick()
    assert run.open() == ["each#1/1"], "30 of 70 are not set aside"
    run.succeed("each#1", usage=10)
    assert run.open() == ["each#0/2"]


def test_a_step_waits_for_credits_only_while_others_may_free_them() -> None:
    run = given(step("a", estimate=60, delay=100), step("b", estimate=30), step("c", estimate=30), mode="parallel")
    run.start(hold=100)
    run.fail("a", "TRANSIENT", usage=5)
    run.tick()
    waiting, working = (run.state.nodes[path] for path in ("a", "b"))
    assert isinstance(waiting, StepState)
    assert isinstance(working, StepState)
    assert (waits_for_credits(run.state, waiting), waits_for_credits(run.state, working)) == (True, False)


def test_a_run_without_a_limit_on_waiting_is_queued_without_one() -> None:
    run = run_of(agent("a"), mode="retry", pending_timeout_ms=None)
    run.start(hold=100)
    run.fail("agents/a/visit/fetch", "TRANSIENT")
    run.grant_hold(100)
    run.tick()
    assert status(run) == "running"


def test_an_override_reaches_the_steps_of_nested_scopes() -> None:
    (overridden,) = override_nodes((scope("x", step("a"), step("b")),), {"a": StepOverride(timeout_ms=7)})
    assert isinstance(overridden, Scope)
    a, b = overridden.children
    assert isinstance(a, Step)
    assert (a.retry_policy.timeout_ms, b) == (7, step("b"))


def test_the_span_of_an_attempt_is_stable_and_its_own() -> None:
    span = attempt_span("x", "a", "forward", 1)
    assert span == attempt_span("x", "a", "forward", 1)
    assert span != attempt_span("x", "a", "forward", 2)
    assert 0 < span < 2**64
