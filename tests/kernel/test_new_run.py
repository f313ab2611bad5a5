"""New runs (B15, B19, R-1, R-2, S-4, 0-1): what is kept, what is made again under which key, where a flow begins."""

from typing import Any

import pytest

from tenuto.kernel import facts as f
from tenuto.kernel.definition import ErrorClass

from .build import approval, decision, scope, step, unsafe, wait_for
from .driver import Driver, given


@pytest.mark.requirement("B15")
def test_a_new_run_goes_on_from_the_failed_step() -> None:
    run = given(step("a"), step("b"), step("c"))
    run.start()
    run.succeed("a")
    run.fail("b")
    run.skip_lines()
    run.retry()
    run.succeed("b", "c")
    run.expect("""
        resolved dead_letter b retry -> close
        run 2
        closed a reused + b/2
        ok b/2 + c/1
        ok c/1
        finished succeeded
    """)
    assert (run.state.run, run.step("a").number, run.step("b").number) == (2, 1, 2)


@pytest.mark.requirement("B15")
def test_what_was_undone_is_made_again_under_a_new_key() -> None:
    run = given(step("a", undo=True), step("b"), step("c"))
    run.start()
    run.succeed("a", "b")
    run.fail("c")
    run.undo("a")
    run.skip_lines()
    run.retry()
    run.expect("""
        resolved dead_letter c retry -> close
        run 2 redo a=2 + a/2
    """)
    assert (run.step("a").generation, run.step("b").generation) == (2, 1)
    run.succeed("a")
    assert run.step("b").status == "succeeded", "not undone: its result is taken"
    assert run.open() == ["c/2"]


@pytest.mark.requirement("B15")
def test_a_second_failure_is_undone_and_made_again_once_more() -> None:
    run = given(step("a", undo=True), step("c"))
    run.start()
    for generation in (1, 2, 3):
        assert run.step("a").generation == generation
        run.succeed("a")
        run.fail("c")
        run.undo("a")
        run.retry()
    assert run.state.run == 4
    assert run.step("a").undo_number == 3


@pytest.mark.requirement("B15")
def test_max_attempts_count_from_the_beginning_of_the_run() -> None:
    run = given(step("a", tries=2))
    run.start()
    for _ in range(2):
        run.fail("a", "TRANSIENT")
        if run.wake_at is not None:
            run.tick()
    assert run.status == "failed"
    run.retry()
    run.fail("a", "TRANSIENT")
    assert run.status == "running"
    run.tick()
    assert run.open() == ["a/4"], "numbers rise for ever"


@pytest.mark.requirement("B15")
@pytest.mark.parametrize("end", ["running", "succeeded", "canceled"])
def test_only_a_failed_execution_is_retried(end: str) -> None:
    run = given(step("a"))
    run.start()
    if end == "succeeded":
        run.succeed("a")
    elif end == "canceled":
        run.cancel("terminate")
    answer = run.retry()
    assert isinstance(answer, f.Refused)
    assert answer.code == "invalid_transition"
    assert run.status == end


@pytest.mark.requirement("B15")
def test_who_retried_and_why_is_recorded() -> None:
    run = given(step("a"))
    run.start()
    run.fail("a")
    run.retry()
    opened = run.history[-1]
    assert (opened.actor, opened.event.reason) == ("ann", "mended")  # type: ignore[union-attr]


@pytest.mark.requirement("B13")
def test_a_new_run_has_its_own_time_and_its_own_wait_for_a_worker() -> None:
    run = given(step("a"), timeout_ms=5_000, pending_timeout_ms=500)
    run.start()
    run.tick_to(1_000)
    run.fail("a")
    run.retry(owned=False)
    assert sorted((due - 1_000_000, kind) for (kind, _), due in run.state.timers.items()) == [
        (1_500, "pending"),
        (6_000, "execution"),
    ]


def test_a_scope_that_was_completed_is_kept_as_a_whole() -> None:
    run = given(scope("s", step("a"), step("b")), step("c"))
    run.start()
    run.succeed("s/a", "s/b")
    run.fail("c")
    run.skip_lines()
    run.retry()
    run.expect("""
        resolved dead_letter c retry -> close
        run 2
        closed s reused + c/2
    """)


def test_a_scope_of_which_something_was_undone_is_opened_again() -> None:
    run = given(scope("s", scope("t", step("a", undo=True)), step("b")), step("c"))
    run.start()
    run.succeed("s/t/a", "s/b")
    run.fail("c")
    run.undo("s/t/a")
    run.skip_lines()
    run.retry()
    run.succeed("s/t/a")
    run.expect("""
        resolved dead_letter c retry -> close
        run 2 redo s/t/a=2
        open s
        open s/t + s/t/a/2
        ok s/t/a/2
        scope s/t succeeded
        closed s/b reused
        scope s succeeded + c/2
    """)


def test_a_scope_that_failed_is_opened_again_and_its_completed_steps_are_kept() -> None:
    run = given(scope("s", step("a"), step("b"), failure_mode="retry", max_rounds=1))
    run.start()
    run.succeed("s/a")
    run.fail("s/b")
    run.skip_lines()
    run.retry()
    run.expect("""
        resolved dead_letter s/b retry -> close
        run 2
        open s
        closed s/a reused + s/b/2
    """)


def test_signals_that_were_kept_are_still_there() -> None:
    run = given(step("a"), wait_for("w", "go"))
    run.start()
    run.signal("go")
    run.fail("a")
    run.retry()
    run.succeed("a")
    assert run.status == "succeeded"


# -- From a step that the operator names -------------------------------------------------------------------------------


def diamond() -> Driver:
    run = given(
        step("a"),
        step("b", after=("a",)),
        step("c", after=("b",)),
        step("other"),
        step("z", after=("c", "other")),
        mode="dag",
    )
    run.start()
    run.succeed("a", "b", "c", "other")
    run.fail("z")
    run.skip_lines()
    return run


@pytest.mark.requirement("B15")
def test_from_a_step_makes_it_and_all_that_depends_on_it_again_under_the_same_keys() -> None:
    run = diamond()
    run.retry(start="b")
    run.succeed("b")
    run.expect("""
        resolved dead_letter z retry -> close
        run 2 redo b=1 c=1
        closed a reused
        closed other reused + b/2
        ok b/2 + c/2
    """)


@pytest.mark.requirement("B15")
def test_from_a_step_again_takes_new_keys() -> None:
    run = diamond()
    run.retry(start="b", again=True)
    assert run.new_lines()[1] == "run 2 redo b=2 c=2 z=2"


@pytest.mark.requirement("B15")
@pytest.mark.parametrize("error", ["NON_RETRYABLE", "TRANSIENT"])
@pytest.mark.parametrize("start", ["a", "pay"])
def test_again_gives_a_step_that_failed_a_new_key(start: str, error: ErrorClass) -> None:
    run = given(step("a"), step("pay", tries=1), step("z"))
    run.start()
    run.succeed("a")
    run.fail("pay", error)
    run.skip_lines()
    run.retry(start=start, again=True)
    assert run.new_lines()[1].startswith("run 2 redo a=2 pay=2" if start == "a" else "run 2 redo pay=2")
    assert (run.step("pay").generation, run.step("a").generation) == (2, 2 if start == "a" else 1)
    assert run.run_out() == "succeeded"


@pytest.mark.requirement("B15")
def test_a_retry_without_again_keeps_the_key_of_what_failed() -> None:
    run = given(step("pay", tries=1))
    run.start()
    run.fail("pay")
    for start in (None, "pay"):
        run.retry(start=start)
        assert run.step("pay").generation == 1
        run.fail("pay")


@pytest.mark.requirement("B15")
def test_each_again_gives_what_failed_another_key() -> None:
    run = given(step("pay", tries=1), mode="flow")
    run.start()
    for generation in (1, 2, 3):
        assert run.step("pay@1").generation == generation
        run.fail("pay@1")
        run.retry(start="pay", again=True)


@pytest.mark.requirement("B15")
def test_again_gives_clones_that_failed_new_keys_and_no_others() -> None:
    run = given(step("n", foreach="[1, 2, 3, 4]", tries=1, max_concurrency=2), step("z"))
    run.start()
    run.fail("n#0")
    run.succeed("n#1")
    run.skip_lines()
    run.retry(start="n", again=True)
    assert run.new_lines()[1].startswith("run 2 redo n#1=2 n#0=2")
    assert [run.step(path).generation for path in ("n#0", "n#1")] == [2, 2]
    run.succeed("n#0", "n#1")
    assert [run.step(path).generation for path in ("n#2", "n#3")] == [1, 1], "they were never tried"
    run.fail("n#2")
    run.succeed("n#3")
    run.skip_lines()
    run.retry(start="n", again=True)
    assert run.new_lines()[1].startswith("run 3 redo n#0=3 n#1=3 n#3=2 n#2=2")
    assert run.run_out() == "succeeded"


@pytest.mark.requirement("B15")
def test_again_gives_a_clone_that_waits_in_line_to_be_tried_again_a_new_key() -> None:
    """It has no object of its own any more: it failed in an earlier run, and this one did not come to it."""
    run = given(step("n", foreach="[1, 2]", tries=1, max_concurrency=1))
    run.start()
    run.succeed("n#0")
    run.fail("n#1")
    run.retry(start="n")
    run.fail("n#0")
    run.skip_lines()
    run.retry(start="n", again=True)
    assert run.new_lines()[1].startswith("run 3 redo n#0=2 n#1=2")
    assert run.run_out() == "succeeded"


@pytest.mark.requirement("B15")
def test_again_reaches_what_failed_in_a_scope_and_all_that_follows() -> None:
    run = given(scope("s", step("a", tries=1), step("b"), mode="parallel", failure_mode="continue"), step("z", tries=1))
    run.start()
    run.fail("s/a")
    run.succeed("s/b")
    run.fail("z")
    run.skip_lines()
    run.retry(start="s", again=True)
    assert run.new_lines()[1].startswith("run 2 redo s/a=2 s/b=2 z=2")
    assert run.run_out() == "succeeded"


@pytest.mark.requirement("B15")
def test_from_a_step_that_does_not_exist_is_refused() -> None:
    run = diamond()
    answer = run.retry(start="nowhere")
    assert isinstance(answer, f.Refused)
    assert answer.code == "not_found"


@pytest.mark.requirement("B15")
def test_from_a_step_that_was_never_reached_is_where_it_would_be_anyway() -> None:
    run = given(step("a"), step("b"))
    run.start()
    run.fail("a")
    run.retry(start="b")
    assert run.open() == ["a/2"]


@pytest.mark.requirement("C10")
def test_from_a_step_does_not_repeat_an_unsafe_one_unless_it_is_said() -> None:
    run = given(step("a"), unsafe("pay"), step("z"))
    run.start()
    run.succeed("a")
    run.begin("pay")
    run.succeed("pay")
    run.fail("z")
    answer = run.retry(start="a")
    assert isinstance(answer, f.Refused)
    assert answer.code == "not_safe"
    run.skip_lines()
    run.retry(start="a", again=True)
    assert run.new_lines()[1] == "run 2 redo a=2 pay=2 z=2 + a/2"


@pytest.mark.requirement("B15")
def test_from_a_scope_makes_all_in_it_again() -> None:
    run = given(scope("s", step("a"), scope("t", step("b"))), step("c"), step("z"))
    run.start()
    run.succeed("s/a", "s/t/b", "c")
    run.fail("z")
    run.skip_lines()
    run.retry(start="t")
    assert run.new_lines()[1] == "run 2 redo s/t/b=1 c=1"


@pytest.mark.requirement("B15")
def test_from_a_fan_out_makes_its_clones_again() -> None:
    run = given(step("n", foreach="[1, 2]"), step("z"))
    run.start()
    run.succeed("n#0", "n#1")
    run.fail("z")
    run.skip_lines()
    run.retry(start="n")
    run.expect("""
        resolved dead_letter z retry -> close
        run 2 redo n#0=1 n#1=1
        expanded n 2 + n#0/2 n#1/2
    """)


@pytest.mark.requirement("B15")
def test_from_a_step_before_a_repetition_makes_its_visits_again() -> None:
    run = given(step("a"), scope("loop", step("b"), repeat_until="steps.b.result == 2"), step("z"))
    run.start()
    run.succeed("a")
    run.succeed("loop@1/b", result=1)
    run.succeed("loop@2/b", result=2)
    run.fail("z")
    run.skip_lines()
    run.retry(start="a")
    assert run.new_lines()[1] == "run 2 redo a=1 loop@1/b=1 loop@2/b=1 + a/2"


@pytest.mark.requirement("B15")
def test_from_a_step_inside_a_repetition_takes_its_last_visit() -> None:
    run = given(scope("loop", step("b"), repeat_until="steps.b.result == 2"), step("z"))
    run.start()
    run.succeed("loop@1/b", result=1)
    run.succeed("loop@2/b", result=2)
    run.fail("z")
    run.skip_lines()
    run.retry(start="b")
    run.expect("""
        resolved dead_letter z retry -> close
        run 2 redo loop@2/b=1
        open loop@1
        closed loop@1/b reused
        repeat loop@1
        open loop@2 + loop@2/b/2
    """)


# -- Flows -------------------------------------------------------------------------------------------------------------


def loop_flow(**draft: Any) -> Driver:
    """draft, rejected, draft again, approved, pay, book (which fails)."""
    run = given(
        step("draft", on_success="ok", **draft),
        approval("ok", on_success="pay", on_failure="draft"),
        step("pay", undo=True, on_success="size"),
        decision("size", ("true", "book"), default="draft"),
        step("book"),
        mode="flow",
    )
    run.start()
    run.succeed("draft@1")
    run.reject("ok@1")
    run.succeed("draft@2")
    run.approve("ok@2")
    run.succeed("pay@1")
    run.fail("book@1")
    return run


@pytest.mark.requirement("B15")
def test_a_flow_begins_again_at_its_earliest_undone_visit() -> None:
    run = loop_flow()
    run.undo("pay@1")
    run.skip_lines()
    run.retry()
    run.succeed("pay@1", "book@1")
    run.expect("""
        resolved dead_letter book@1 retry -> close
        run 2 from pay after draft@2 ok@2 redo pay@1=2 + pay@1/2
        ok pay@1/2
        branch size@1 -> book + book@1/2
        ok book@1/2
        finished succeeded
    """)


@pytest.mark.requirement("B15")
def test_a_flow_of_which_a_visit_of_a_loop_was_undone() -> None:
    run = loop_flow(undo=True)
    run.undo("pay@1", "draft@2", "draft@1")
    run.skip_lines()
    run.retry()
    run.succeed("draft@1")
    run.expect("""
        resolved dead_letter book@1 retry -> close
        run 2 from draft redo draft@1=2 draft@2=2 pay@1=2 + draft@1/2
        ok draft@1/2
        review approval ok@1
    """)


def test_a_flow_begins_again_at_the_failed_step_when_nothing_was_undone() -> None:
    run = given(step("a", on_success="b"), step("b", on_success="c"), step("c"), mode="flow")
    run.start()
    run.succeed("a@1", "b@1")
    run.fail("c@1")
    run.skip_lines()
    run.retry()
    run.expect("""
        resolved dead_letter c@1 retry -> close
        run 2 from c after a@1 b@1 + c@1/2
    """)


def test_a_flow_that_failed_in_a_later_visit_begins_with_that_visit() -> None:
    run = given(step("a", on_success="a", on_failure="b", max_visits=5), step("b"), mode="flow")
    run.start()
    run.succeed("a@1", "a@2")
    run.fail("a@3")
    run.fail("b@1")
    run.retry(start="a")
    assert run.open() == ["a@3/2"]


def test_a_half_made_step_that_was_undone_does_not_hide_what_was_undone_before_it() -> None:
    run = given(step("a", undo=True, on_success="b"), step("b", undo=True, partial_effect=True), mode="flow")
    run.start()
    run.succeed("a@1")
    run.fail("b@1")
    run.undo("b@1", "a@1")
    run.retry()
    assert run.open() == ["a@1/2"]


@pytest.mark.requirement("B15")
def test_a_flow_begins_where_the_operator_says_at_the_last_visit_of_that_step() -> None:
    run = given(
        step("draft", on_success="ok"),
        approval("ok", on_success="book", on_failure="draft"),
        step("book"),
        mode="flow",
    )
    run.start()
    run.succeed("draft@1")
    run.reject("ok@1")
    run.succeed("draft@2")
    run.approve("ok@2")
    run.fail("book@1")
    run.skip_lines()
    run.retry(start="draft")
    run.succeed("draft@2")
    run.expect("""
        resolved dead_letter book@1 retry -> close
        run 2 from draft after draft@1 ok@1 redo draft@2=1 ok@2=1 + draft@2/2
        ok draft@2/2
        review approval ok@2
    """)


@pytest.mark.requirement("C10")
def test_a_flow_that_begins_earlier_does_not_repeat_an_unsafe_step_that_came_after() -> None:
    run = given(step("draft", on_success="pay"), unsafe("pay", on_success="book"), step("book"), mode="flow")
    run.start()
    run.succeed("draft@1")
    run.begin("pay@1")
    run.succeed("pay@1")
    run.fail("book@1")
    answer = run.retry(start="draft")
    assert isinstance(answer, f.Refused)
    assert answer.code == "not_safe"
    run.skip_lines()
    run.retry(start="draft", again=True)
    assert run.new_lines()[1] == "run 2 from draft redo draft@1=2 pay@1=2 book@1=2 + draft@1/2"


@pytest.mark.requirement("B15")
def test_a_flow_may_begin_at_a_step_that_was_never_reached() -> None:
    run = given(step("a", on_success="b"), step("b", on_success="c"), step("c"), mode="flow")
    run.start()
    run.fail("a@1")
    run.skip_lines()
    run.retry(start="c")
    run.expect("""
        resolved dead_letter a@1 retry -> close
        run 2 from c after a@1 + c@1/1
    """)


@pytest.mark.requirement("B15")
def test_a_flow_begins_at_the_scope_that_the_step_is_in() -> None:
    run = given(step("a", on_success="s"), scope("s", step("x"), step("y"), on_success="z"), step("z"), mode="flow")
    run.start()
    run.succeed("a@1", "s@1/x", "s@1/y")
    run.fail("z@1")
    run.skip_lines()
    run.retry(start="y")
    run.expect("""
        resolved dead_letter z@1 retry -> close
        run 2 from s after a@1 redo s@1/y=1
        open s@1
        closed s@1/x reused + s@1/y/2
    """)


def test_a_flow_that_never_began_begins_where_it_is_told() -> None:
    run = given(step("a", on_success="b"), step("b"), mode="flow", concurrency_key="'k'", timeout_ms=100)
    run.start(key="k", admitted=False)
    run.tick()
    assert run.status == "failed"
    run.retry(start="b")
    assert run.open() == ["b@1/1"]


def test_a_nested_flow_begins_again_at_its_earliest_undone_visit() -> None:
    run = given(
        scope("f", step("a", undo=True, on_success="b"), step("b", on_success="c"), step("c"), mode="flow"),
        step("z"),
    )
    run.start()
    run.succeed("f/a@1", "f/b@1")
    run.fail("f/c@1")
    run.undo("f/a@1")
    run.skip_lines()
    run.retry()
    run.succeed("f/a@1")
    run.expect("""
        resolved dead_letter f/c@1 retry -> close
        run 2 redo f/a@1=2
        open f from a + f/a@1/2
        ok f/a@1/2
        closed f/b@1 reused + f/c@1/2
    """)


def test_a_nested_flow_that_was_never_opened_begins_at_its_beginning() -> None:
    run = given(step("a"), scope("f", step("b"), mode="flow"))
    run.start()
    run.fail("a")
    run.retry()
    run.succeed("a")
    assert run.open() == ["f/b@1/1"]


@pytest.mark.parametrize("kind", ["scope", "fan"])
def test_a_flow_begins_again_at_a_scope_or_a_fan_out_of_which_something_was_undone(kind: str) -> None:
    work = (
        scope("w", step("x", undo=True), step("y"), on_success="z")
        if kind == "scope"
        else step("w", foreach="[1, 2]", undo=True, on_success="z")
    )
    run = given(step("a", on_success="w"), work, step("z"), mode="flow")
    run.start()
    run.succeed("a@1")
    run.succeed(*(("w@1/x", "w@1/y") if kind == "scope" else ("w#0@1", "w#1@1")))
    run.fail("z@1")
    while run.status == "running":
        run.undo(run.open()[0].partition(":")[0])
    run.skip_lines()
    run.retry()
    assert run.new_lines()[1].startswith("run 2 from w after a@1 redo w")
    assert run.run_out() == "succeeded"


@pytest.mark.requirement("B15")
def test_again_without_a_start_makes_nothing_anew() -> None:
    run = given(step("a"), step("b"))
    run.start()
    run.succeed("a")
    run.fail("b")
    run.retry(again=True)
    assert run.step("a").generation == 1


def test_a_new_run_queues_for_its_key_again() -> None:
    run = given(step("a"), concurrency_key="'k'")
    run.start(key="k")
    run.fail("a")
    run.skip_lines()
    run.retry(admitted=False)
    assert run.open() == []
    run.admit()
    run.expect("""
        resolved dead_letter a retry -> close
        run 2
        admitted k + a/2
    """)


@pytest.mark.requirement("B15")
def test_from_a_step_takes_each_of_its_dependents_once() -> None:
    run = given(
        step("a"),
        step("b", after=("a",)),
        step("c", after=("a",)),
        step("d", after=("b", "c")),
        step("z", after=("d",)),
        mode="dag",
    )
    run.start()
    run.succeed("a", "b", "c", "d")
    run.fail("z")
    run.skip_lines()
    run.retry(start="a")
    assert run.new_lines()[1] == "run 2 redo a=1 b=1 c=1 d=1 + a/2"


@pytest.mark.requirement("B15")
def test_a_flow_begins_at_the_scope_to_which_a_planner_added_the_step() -> None:
    run = given(
        step("f", on_success="w"),
        scope("w", planner="p", mode="parallel", on_success="z"),
        step("z"),
        mode="flow",
    )
    run.start()
    run.succeed("f@1")
    run.planned(step("x"), step("y"), scope="w@1")
    run.succeed("w@1/x", "w@1/y")
    run.fail("z@1")
    run.skip_lines()
    run.retry(start="x")
    run.expect("""
        resolved dead_letter z@1 retry -> close
        run 2 from w after f@1 redo w@1/x=1
        open w@1 + w@1/x/2
        closed w@1/y reused
    """)


def test_a_retry_that_nobody_runs_at_once_is_nobodys_loss() -> None:
    run = given(step("a"), pending_timeout_ms=1_000)
    run.start()
    run.fail("a")
    run.skip_lines()
    run.retry(owned=False)
    run.crash()
    run.expect("""
        resolved dead_letter a retry -> close
        run 2 + a/2
        returned a/2
        granted + a/2
    """)
    assert run.step("a").losses == 0
    assert run.wake_at is None


def test_what_is_kept_begins_a_run_with_no_attempt_counted() -> None:
    run = given(
        scope("s", scope("t", step("a")), step("n", foreach="[1, 2]", failure_mode="continue")),
        step("z"),
    )
    run.start()
    run.fail("s/t/a", "TRANSIENT")
    run.tick()
    run.succeed("s/t/a", "s/n#0")
    run.fail("s/n#1")
    run.fail("z")
    run.retry()
    assert (run.step("s/t/a").tries, run.step("s/n#1").tries) == (0, 0)
    assert run.open() == ["z/2"]


def test_what_a_flow_completed_before_it_begins_again_stays_completed() -> None:
    run = given(
        step("a", on_success="n"),
        step("n", foreach="[1, 2]", on_success="s"),
        scope("s", step("x"), on_success="z"),
        step("z"),
        mode="flow",
    )
    run.start()
    run.succeed("a@1", "n#0@1", "n#1@1", "s@1/x")
    run.fail("z@1")
    run.retry()
    assert run.open() == ["z@1/2"]
    statuses = run.statuses()
    assert (statuses["a@1"], statuses["n@1"], statuses["n#0@1"]) == ("succeeded", "succeeded", "succeeded")


@pytest.mark.parametrize(("clone", "status"), [("fails", "failed"), ("succeeds", "succeeded")])
def test_a_fan_out_behind_which_a_flow_begins_again_stays_as_it_was(clone: str, status: str) -> None:
    run = given(step("n", foreach="[1, 2]", on_success="z"), step("z"), mode="flow")
    run.start()
    run.succeed("n#0@1")
    if clone == "fails":
        run.fail("n#1@1")
    else:
        run.succeed("n#1@1")
        run.fail("z@1")
    run.retry(start="z")
    assert run.open() == ["z@1/1" if clone == "fails" else "z@1/2"]
    assert run.statuses()["n@1"] == status


def test_what_a_nested_flow_completed_before_it_begins_again_stays_completed() -> None:
    run = given(
        scope(
            "f",
            step("a", on_success="n"),
            step("n", foreach="[1, 2]", on_success="s"),
            scope("s", step("x"), on_success="z"),
            step("z"),
            mode="flow",
        ),
    )
    run.start()
    run.succeed("f/a@1", "f/n#0@1", "f/n#1@1", "f/s@1/x")
    run.fail("f/z@1")
    run.retry()
    assert run.open() == ["f/z@1/2"]
    statuses = run.statuses()
    assert (statuses["f/a@1"], statuses["f/n@1"], statuses["f/n#0@1"]) == ("succeeded", "succeeded", "succeeded")
