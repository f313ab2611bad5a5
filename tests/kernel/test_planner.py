"""Planners (H9, 2-35 to 2-37): children that were not in the definition, another plan when most of them failed."""

from typing import Any

import pytest

from tenuto.kernel import facts as f
from tenuto.kernel.definition import FailureMode, Node

from .build import approval, callback, guarded, scope, step, unsafe
from .driver import Driver, given


def agent(name: str, **fields: Any) -> Node:
    return scope(name, step(f"{name}_s"), **fields)


def planned(*children: Node, mode: str = "parallel", **fields: Any) -> Driver:
    run = given(planner="p", mode=mode, **fields)
    run.start()
    run.planned(*children)
    return run


@pytest.mark.requirement("H9")
def test_a_plan_is_an_attempt_and_its_children_run() -> None:
    run = planned(agent("a"), agent("b"))
    run.succeed("a/a_s", "b/b_s")
    run.expect("""
        started + .:plan/1
        added .:plan/1 2
        open a + a/a_s/1
        open b + b/b_s/1
        ok a/a_s/1
        scope a succeeded
        ok b/b_s/1
        scope b succeeded
        finished succeeded
    """)


@pytest.mark.requirement("H9")
def test_a_nested_scope_may_have_a_planner() -> None:
    run = given(step("first"), scope("work", planner="p", mode="parallel"), step("last"))
    run.start()
    run.succeed("first")
    run.planned(step("x"), scope="work")
    run.succeed("work/x", "last")
    run.expect("""
        started + first/1
        ok first/1
        open work + work:plan/1
        added work:plan/1 1 + work/x/1
        ok work/x/1
        scope work succeeded + last/1
        ok last/1
        finished succeeded
    """)


@pytest.mark.requirement("H9")
def test_a_planner_may_add_to_what_is_there() -> None:
    run = given(step("fixed"), planner="p", mode="parallel")
    run.start()
    assert run.open() == [".:plan/1"], "the plan comes first"
    run.planned(step("x"))
    assert run.open() == ["fixed/1", "x/1"]


@pytest.mark.parametrize("mode", ["sequence", "parallel", "dag"])
def test_children_follow_one_another_as_their_scope_says(mode: str) -> None:
    after = ("x",) if mode == "dag" else ()
    run = planned(step("x"), step("y", after=after), mode=mode)
    assert run.open() == (["x/1", "y/1"] if mode == "parallel" else ["x/1"])
    assert run.run_out() == "succeeded"


def test_a_layered_scope_takes_a_planners_children_as_they_come() -> None:
    run = given(
        step("a"),
        step("b", after=("a",)),
        planner="p",
        mode="dag",
        scheduling="layered",
    )
    run.start()
    run.planned(step("x"), step("y", after=("x",)))
    assert run.open() == ["a/1", "x/1"]
    run.succeed("x")
    assert run.open() == ["a/1", "y/1"]
    assert run.run_out() == "succeeded"


@pytest.mark.requirement("H9")
def test_a_plan_of_more_children_than_the_scope_allows_is_a_failed_attempt() -> None:
    run = planned(*(step(f"s{i}") for i in range(5)), max_children=3)
    assert run.open() == []
    run.tick()
    run.planned(*(step(f"s{i}") for i in range(3)))
    assert len(run.open()) == 3
    assert run.lines()[1].startswith("failed .:plan/1 RETRYABLE -> retry")


def test_a_plan_of_nothing_fails() -> None:
    run = planned()
    run.expect("""
        started + .:plan/1
        added .:plan/1 0
        closing . failed empty_plan
        review dead_letter . (empty_plan)
        finished failed empty_plan
    """)


@pytest.mark.requirement("H2")
def test_a_plan_is_charged_and_may_overrun() -> None:
    run = given(planner="p", mode="parallel")
    run.start(hold=10)
    run.planned(step("a"), usage=4)
    assert run.state.charged == 4
    run = given(planner="p", mode="parallel")
    run.start(hold=10)
    run.planned(step("a"), usage=14)
    assert (run.status, run.state.charged) == ("failed", 10)


@pytest.mark.requirement("H2")
def test_failed_plans_are_charged_too() -> None:
    run = given(planner="p", mode="parallel", max_children=1)
    run.start(hold=100)
    run.report("", f.Failed(error_class="TRANSIENT", code="down", usage=3), phase="plan")
    run.tick()
    run.planned(step("a"), step("b"), usage=5)
    assert run.state.charged == 8
    run.tick()
    run.report("", f.TimedOut(usage=7), phase="plan")
    assert (run.status, run.state.charged, run.state.refunded) == ("failed", 15, 85)


def test_a_failed_plan_may_overrun() -> None:
    run = given(planner="p", mode="parallel")
    run.start(hold=10)
    run.report("", f.Failed(error_class="TRANSIENT", code="down", usage=11), phase="plan")
    assert (run.status, run.state.charged) == ("failed", 10)
    assert run.state.failure is not None
    assert run.state.failure.code == "credits_exhausted"


# -- A planner that fails ----------------------------------------------------------------------------------------------


def test_a_planner_is_retried_like_a_step() -> None:
    run = given(planner="p", mode="parallel")
    run.start()
    run.plan_fails("TRANSIENT")
    run.tick()
    run.report("", f.TimedOut(), phase="plan")
    run.tick()
    run.planned(step("a"))
    run.succeed("a")
    assert [line.split("@")[0] for line in run.lines()] == [
        "started + .:plan/1",
        "failed .:plan/1 TRANSIENT -> retry",
        "granted + .:plan/2",
        "failed .:plan/2 TRANSIENT -> retry",
        "granted + .:plan/3",
        "added .:plan/3 1 + a/1",
        "ok a/1",
        "finished succeeded",
    ]
    assert run.scope().replans == 0


@pytest.mark.parametrize("error_class", ["NON_RETRYABLE", "TRANSIENT"])
def test_a_planner_that_cannot_plan_fails_its_scope(error_class: str) -> None:
    run = given(planner="p", mode="parallel")
    run.start()
    while run.status == "running":
        if run.open():
            run.plan_fails(error_class)  # type: ignore[arg-type]
        else:
            run.tick()
    assert run.status == "failed"
    assert run.scope().plan_number == (1 if error_class == "NON_RETRYABLE" else 3)


def test_a_planner_that_cannot_plan_again_fails_its_scope() -> None:
    run = planned(agent("a"))
    run.fail("a/a_s")
    run.skip_lines()
    run.plan_fails()
    run.expect("""
        failed .:plan/2 NON_RETRYABLE -> fail
        closing . failed non_retryable
        review dead_letter . (non_retryable)
        finished failed non_retryable
    """)


def test_a_planner_on_a_queue_that_cannot_be_reached_is_retried_like_one_that_fails() -> None:
    run = given(scope("work", planner="p", mode="parallel", queue="q"))
    run.start()
    refused = f.DispatchRefused(
        at=run.now, ref=run.ref("work", "plan"), failure=f.Failed(error_class="TRANSIENT", code="broker")
    )
    run.tell(refused)
    assert run.open() == []
    run.tick()
    assert run.open() == ["work:plan/2"]


@pytest.mark.parametrize(
    "children",
    [
        ({"step_id": "a", "handler": "h", "surprise": 1},),
        ({"step_id": "a", "handler": "h", "when": "not CEL ("},),
        ({"step_id": "a", "handler": "h"}, {"step_id": "a", "handler": "h"}),
        ({"step_id": "a", "handler": "h", "depends_on": ["nowhere"]},),
        ({"step_id": "a/b", "handler": "h"},),
        ("text",),
    ],
)
def test_a_plan_that_makes_no_sense_is_a_failed_attempt(children: tuple[object, ...]) -> None:
    run = given(planner="p", mode="dag")
    run.start()
    run.report("", f.Planned(children=children), phase="plan")  # type: ignore[arg-type]
    assert run.lines()[1].startswith("failed .:plan/1 RETRYABLE -> retry@")
    run.tick()
    run.planned(step("a"))
    run.succeed("a")
    assert run.status == "succeeded"


def test_a_new_plan_may_not_use_an_id_again() -> None:
    run = planned(agent("a"))
    run.fail("a/a_s")
    run.planned(agent("a"))
    assert run.lines()[-1].startswith("failed .:plan/2 RETRYABLE -> retry@")


# -- Another plan ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("H9")
def test_when_most_agents_failed_the_planner_is_asked_again() -> None:
    run = planned(*(agent(f"a{i}") for i in range(5)), failure_mode="continue")
    run.fail("a0/a0_s")
    run.fail("a1/a1_s")
    assert ".:plan/2" not in run.open(), "two of five are not most"
    run.skip_lines()
    run.fail("a2/a2_s")
    run.planned(agent("b0"), agent("b1"), agent("b2"))
    run.expect("""
        failed a2/a2_s/1 NON_RETRYABLE -> fail
        closing a2 failed non_retryable
        scope a2 skipped non_retryable + .:plan/2
        added .:plan/2 3 instead of a0 a1 a2
        open b0 + b0/b0_s/1
        open b1 + b1/b1_s/1
        open b2 + b2/b2_s/1
    """)
    run.succeed("a3/a3_s", "a4/a4_s", "b0/b0_s", "b1/b1_s", "b2/b2_s")
    assert run.status == "succeeded"
    assert run.scope().replans == 1


@pytest.mark.requirement("H9")
@pytest.mark.parametrize("mode", ["fail_fast", "retry"])
def test_also_before_a_scope_that_fails_fast_fails(mode: FailureMode) -> None:
    run = planned(agent("a"), failure_mode=mode)
    run.fail("a/a_s", "NON_RETRYABLE")
    assert run.open() == [".:plan/2"]
    run.planned(agent("b"))
    run.succeed("b/b_s")
    assert run.status == "succeeded"


@pytest.mark.requirement("H9")
def test_fail_fast_closes_when_most_have_not_failed() -> None:
    run = planned(agent("a"), agent("b"), agent("c"))
    run.fail("a/a_s")
    assert run.open() == ["b/b_s/1", "c/c_s/1"]
    assert run.scope().status == "closing"


@pytest.mark.requirement("H9")
def test_more_than_ten_failed_tasks_are_reason_enough() -> None:
    tasks = [scope(f"t{i}", step(f"t{i}_s")) for i in range(12)]
    run = planned(
        scope("a", *tasks, mode="parallel", failure_mode="continue"), agent("b"), agent("c"), failure_mode="continue"
    )
    for i in range(10):
        run.fail(f"a/t{i}/t{i}_s")
    assert ".:plan/2" not in run.open()
    run.fail("a/t10/t10_s")
    run.succeed("b/b_s")
    assert ".:plan/2" in run.open()
    run.planned(agent("d"))
    assert ".:plan/3" not in run.open(), "the new plan begins with a clean slate"


@pytest.mark.requirement("H9")
def test_plain_steps_count_like_agents() -> None:
    run = planned(step("a"), step("b"), step("c"), failure_mode="continue")
    run.fail("a")
    run.fail("b")
    assert run.open() == ["c/1", ".:plan/2"]
    run.planned(step("d"))
    assert run.scope().failed == 0
    run.succeed("c", "d")
    assert (run.status, run.state.outcome) == ("succeeded", ""), "what was replaced was not passed over"


@pytest.mark.requirement("H9")
def test_re_plans_are_bounded() -> None:
    run = planned(agent("a0"), failure_mode="continue", max_replans=2)
    for i in range(2):
        run.fail(f"a{i}/a{i}_s")
        run.planned(agent(f"a{i + 1}"))
    run.skip_lines()
    run.fail("a2/a2_s")
    run.expect("""
        failed a2/a2_s/1 NON_RETRYABLE -> fail
        closing a2 failed non_retryable
        scope a2 skipped non_retryable
        review dead_letter . (all_children_failed)
        finished failed all_children_failed
    """)


@pytest.mark.requirement("H9")
def test_each_scope_has_its_own_number_of_new_plans() -> None:
    teams = [scope(name, planner="p", mode="parallel", failure_mode="continue", max_replans=1) for name in ("x", "y")]
    run = given(*teams, mode="parallel", failure_mode="continue")
    run.start()
    for name in ("x", "y"):
        run.planned(step(f"{name}_1"), scope=name)
        run.fail(f"{name}/{name}_1")
        assert f"{name}:plan/2" in run.open()
        run.planned(step(f"{name}_2"), scope=name)
    run.succeed("x/x_2", "y/y_2")
    assert run.status == "succeeded"


@pytest.mark.requirement("H9")
def test_a_new_run_may_ask_for_new_plans_again() -> None:
    run = planned(step("a"), max_replans=1)
    run.fail("a")
    run.planned(step("b"))
    run.fail("b")
    assert run.status == "failed"
    run.retry()
    run.fail("b")
    assert run.open() == [".:plan/3"]


@pytest.mark.requirement("H9")
def test_superseded_agents_make_room() -> None:
    run = planned(agent("a0"), agent("a1"), max_children=2, failure_mode="continue")
    run.fail("a0/a0_s")
    run.fail("a1/a1_s")
    run.planned(agent("b0"), agent("b1"))
    assert run.open() == ["b0/b0_s/1", "b1/b1_s/1"]


def test_what_needs_the_result_of_a_superseded_child_is_passed_over() -> None:
    many = scope("a", *(step(f"t{i}") for i in range(11)), mode="parallel", failure_mode="continue", fail_if_empty=True)
    run = planned(many, step("needs", after=("a", "b")), step("b"), step("c"), mode="dag")
    for i in range(11):
        run.fail(f"a/t{i}")
    run.skip_lines()
    run.planned(step("d"))
    run.succeed("b")
    run.expect("""
        added .:plan/2 1 instead of a + d/1
        ok b/1
        closed needs failed_upstream
    """)
    run.succeed("c", "d")
    assert run.status == "succeeded"


def test_what_needs_a_superseded_child_that_was_passed_over_still_waits_for_the_others() -> None:
    run = planned(step("a"), step("b"), step("c"), step("needs", after=("a", "c")), mode="dag", failure_mode="continue")
    run.fail("a")
    run.fail("b")
    assert run.open() == ["c/1"], "two of four are not most"
    run = planned(step("a"), step("b"), step("needs", after=("a", "b")), mode="dag", failure_mode="continue")
    run.fail("a")
    run.skip_lines()
    run.fail("b")
    run.planned(step("d"))
    run.succeed("d")
    run.expect("""
        failed b/1 NON_RETRYABLE -> skip + .:plan/2
        closed needs failed_upstream
        added .:plan/2 1 instead of a b + d/1
        ok d/1
        finished succeeded
    """)


def test_a_failed_child_that_was_superseded_does_not_run_again_in_a_new_run() -> None:
    run = planned(agent("a"), failure_mode="fail_fast", max_replans=1)
    run.fail("a/a_s")
    run.planned(agent("b"), agent("c"))
    run.succeed("c/c_s")
    run.fail("b/b_s")
    assert run.status == "failed"
    run.skip_lines()
    run.retry()
    run.succeed("b/b_s")
    run.expect("""
        resolved dead_letter b/b_s retry -> close
        run 2
        open b + b/b_s/2
        closed c reused
        ok b/b_s/2
        scope b succeeded
        finished succeeded
    """)


def test_a_failed_child_that_was_superseded_does_not_run_again_in_a_new_round() -> None:
    run = given(scope("work", planner="p", mode="parallel", failure_mode="retry", max_replans=1))
    run.start()
    run.planned(step("a", tries=1), scope="work")
    run.fail("work/a")
    run.planned(step("b", tries=1), step("c"), scope="work")
    run.succeed("work/c")
    run.skip_lines()
    run.fail("work/b", "TRANSIENT")
    run.tick()
    run.succeed("work/b", "work/c")
    run.expect("""
        failed work/b/1 TRANSIENT -> fail
        closing work retry transient
        round 2 of work budget=19 not@103
        ready work + work/b/2 work/c/2
        ok work/b/2
        ok work/c/2
        scope work succeeded
        finished succeeded
    """)


def test_a_nested_plan_is_kept_when_its_scope_is_met_again() -> None:
    run = given(scope("work", planner="p", mode="parallel"), step("z", tries=1), failure_mode="retry")
    run.start()
    run.planned(step("x"), step("y"), scope="work")
    run.succeed("work/x", "work/y")
    run.fail("z", "TRANSIENT")
    run.tick()
    assert run.open() == ["work/x/2", "work/y/2"], "the plan is not made again in a round"
    run.succeed("work/x", "work/y")
    run.fail("z")
    run.retry()
    assert run.open() == ["z/3"]


def test_a_snapshot_holds_what_a_planner_added() -> None:
    """The driver loads a snapshot after every decision: this is the richest state for it."""
    run = given(scope("work", planner="p", mode="dag", max_concurrency=1, failure_mode="continue"), step("z"))
    run.start()
    run.planned(
        guarded("g"),
        step("n", foreach="[1, 2]", after=("g",)),
        scope("s", unsafe("u"), approval("ok"), mode="parallel", depends_on=("n",)),
        callback("cb", after=("s",)),
        scope="work",
    )
    run.time_out("work/g")
    run.not_done("work/g")
    run.succeed("work/g", "work/n#0", "work/n#1")
    run.begin("work/s/u")
    run.succeed("work/s/u")
    run.approve("work/s/ok")
    run.dispatch("work/cb")
    run.fail("work/cb")
    run.succeed("z")
    assert (run.status, run.state.outcome) == ("succeeded", "")


def test_a_planner_is_not_asked_twice_at_once() -> None:
    run = planned(agent("a"), agent("b"), failure_mode="continue")
    run.fail("a/a_s")
    run.fail("b/b_s")
    assert run.open() == [".:plan/2"]
    run.plan_fails("TRANSIENT")
    assert run.open() == []
    run.tick()
    assert run.open() == [".:plan/3"]


def test_a_child_that_fails_while_the_planner_is_asked_is_superseded_with_the_others() -> None:
    run = planned(agent("a"), agent("b"), agent("c"), failure_mode="continue")
    run.fail("a/a_s")
    run.fail("b/b_s")
    run.fail("c/c_s")
    run.planned(agent("d"))
    assert run.lines()[-2] == "added .:plan/2 1 instead of a b c"


def test_a_child_that_fails_fast_while_the_planner_is_asked_does_not_close_the_scope() -> None:
    run = planned(agent("a"), max_children=10)
    run.fail("a/a_s")
    run.planned(agent("b"), agent("c"))
    assert run.scope().status == "open"
    run.fail("b/b_s")
    assert run.scope().status == "closing", "one of two is not most"


def test_in_a_sequence_what_comes_after_a_superseded_child_runs() -> None:
    many = scope("a", *(step(f"t{i}") for i in range(11)), mode="parallel", failure_mode="continue", fail_if_empty=True)
    run = planned(many, step("b"), mode="sequence")
    for i in range(11):
        run.fail(f"a/t{i}")
    run.skip_lines()
    run.planned(step("d"))
    run.expect("added .:plan/2 1 instead of a + b/1 d/1")


def test_superseded_children_do_not_stand_in_the_way_of_a_new_run() -> None:
    run = planned(step("a"), step("b"), step("c"), failure_mode="continue", max_replans=1)
    run.succeed("a")
    run.fail("b")
    run.fail("c")
    run.planned(step("d"))
    run.cancel("drain")
    assert run.open() == ["d/1"]
    run = planned(step("a"), step("b"), step("c"), failure_mode="continue", max_replans=1, timeout_ms=1_000)
    run.succeed("a")
    run.fail("b")
    run.fail("c")
    run.planned(step("d"))
    run.tick()
    run.succeed("d")
    assert run.status == "failed"
    run.retry()
    assert run.statuses() == {"a": "succeeded", "b": "skipped", "c": "skipped", "d": "succeeded"}
    assert run.status == "succeeded"


def test_in_a_new_round_of_a_layered_scope_a_planners_children_run_too() -> None:
    run = given(
        scope("w", step("a"), planner="p", mode="dag", scheduling="layered", failure_mode="retry", max_rounds=2),
    )
    run.start()
    run.planned(step("x", tries=1), step("y", after=("x",)), scope="w")
    run.succeed("w/a")
    run.fail("w/x", "TRANSIENT")
    run.tick()
    assert run.open() == ["w/a/2", "w/x/2"]
    assert run.run_out() == "succeeded"


def test_a_superseded_child_does_not_run_again_when_what_stands_before_it_is_done() -> None:
    run = planned(step("a", undo=True), step("b"), mode="sequence", failure_mode="continue", timeout_ms=1_000)
    run.succeed("a")
    run.fail("b")
    assert run.open() == [], "one of two is not most"
    assert run.status == "succeeded"
    run = planned(
        step("x"), step("a", undo=True), step("b"), mode="sequence", failure_mode="continue", timeout_ms=1_000
    )
    run.fail("x")
    run.succeed("a")
    run.fail("b")
    run.planned(step("c"))
    run.tick()
    run.succeed("c")
    run.undo("a")
    assert run.status == "failed"
    run.retry()
    run.succeed("a")
    assert run.status == "succeeded"
    assert {path: run.step(path).number for path in "xabc"} == {"x": 1, "a": 2, "b": 1, "c": 1}


def test_a_superseded_child_of_a_layer_does_not_hold_up_the_next_one() -> None:
    run = given(
        step("a", undo=True),
        step("b", after=("a",)),
        step("c", after=("b",)),
        step("d", after=("a",)),
        planner="p",
        mode="dag",
        scheduling="layered",
        max_replans=1,
        timeout_ms=1_000,
    )
    run.start()
    many = scope("m", *(step(f"t{i}") for i in range(11)), mode="parallel", failure_mode="continue")
    run.planned(many)
    for i in range(11):
        run.fail(f"m/t{i}")
    run.succeed("a")
    run.skip_lines()
    run.fail("b")
    run.planned(step("z"))
    run.succeed("d")
    run.expect("""
        failed b/1 NON_RETRYABLE -> fail
        added .:plan/2 1 instead of b + z/1
        ok d/1
        closed c failed_upstream
    """)
    run.tick()
    run.succeed("z")
    run.undo("a")
    run.retry()
    assert run.run_out() == "succeeded"
    assert {path: run.step(path).number for path in "abd"} == {"a": 2, "b": 1, "d": 1}
