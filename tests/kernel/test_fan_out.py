"""Fan-outs (E12, E13, 4-8 to 4-11): one step run once for each item, by clones that fail, wait and retry alone."""

from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from tenuto.kernel import facts as f
from tenuto.kernel.codec import encode_snapshot
from tenuto.kernel.decide import decide
from tenuto.kernel.definition import FAN_OUT_LIMIT
from tenuto.kernel.events import Expanded
from tenuto.kernel.evolve import fold
from tenuto.kernel.plan import Plan
from tenuto.kernel.state import Execution

from .build import definition, guarded, scope, step, unsafe
from .driver import Driver, given, raw


def fan(items: str = "[1, 2, 3]", **fields: Any) -> Driver:
    run = given(step("n", foreach=items, **fields), step("z", when="true"))
    run.start()
    return run


# -- Where the items come from -----------------------------------------------------------------------------------------


@pytest.mark.requirement("E12")
def test_a_clone_for_each_item_and_dependents_wait_for_all() -> None:
    run = fan()
    run.succeed("n#1", "n#0", "n#2")
    run.succeed("z")
    run.expect("""
        started
        expanded n 3 + n#0..2/1
        ok n#1/1
        ok n#0/1
        ok n#2/1
        scope n succeeded + z/1
        ok z/1
        finished succeeded
    """)


@pytest.mark.requirement("E12")
def test_a_single_item_is_a_clone_too() -> None:
    run = fan("['only']")
    run.succeed("n#0")
    assert run.lines()[1:3] == ["expanded n 1 + n#0/1", "ok n#0/1"]


@pytest.mark.requirement("E12")
def test_items_from_an_earlier_result() -> None:
    run = given(step("list"), step("n", foreach="steps.list.result.people"))
    run.start()
    run.succeed("list", result={"people": ["ann", "bob"]})
    assert run.open() == ["n#0/1", "n#1/1"]
    event = run.history[-1].event
    assert isinstance(event, Expanded)
    assert bytes(event.items) == b'["ann","bob"]'


@pytest.mark.requirement("E12")
def test_items_given_with_the_start() -> None:
    run = given(step("n"), step("z"))
    run.start(each={"n": 2})
    run.succeed("n#0", "n#1", "z")
    assert run.lines()[:2] == ["started", "expanded n 2 + n#0..1/1"]
    assert run.status == "succeeded"


@pytest.mark.requirement("E12")
def test_results_are_a_list_in_the_order_of_the_items() -> None:
    run = given(
        step("n", foreach="[1, 2, 3]", failure_mode="continue"),
        output="${steps.n.result}",
    )
    run.start()
    run.succeed("n#2", result="c")
    run.fail("n#1")
    run.succeed("n#0", result="a")
    assert bytes(run.history[-1].event.output) == b'["a",null,"c"]'  # type: ignore[union-attr]


@pytest.mark.requirement("E12")
def test_status_and_result_of_one_clone_are_not_those_of_the_fan_out() -> None:
    run = given(
        step("n", foreach="[1, 2]"), step("z", when="steps.n.status == 'succeeded' && size(steps.n.result) == 2")
    )
    run.start()
    run.succeed("n#0", "n#1")
    assert run.open() == ["z/1"]


@pytest.mark.requirement("E12")
def test_clones_are_called_by_their_suffix() -> None:
    run = given(step("n", foreach="input", suffix="item.mail"))
    run.start([{"mail": "ann@x"}, {"mail": "bob@x"}])
    event = run.history[1].event
    assert isinstance(event, Expanded)
    assert event.labels == ("ann@x", "bob@x")
    assert run.open() == ["n#0/1", "n#1/1"], "the index is the address, the label is shown"


@pytest.mark.requirement("E12")
@pytest.mark.parametrize(
    ("items", "code"),
    [(["a", "a"], "duplicate_suffix"), (["a", " "], "expression_failed"), ([{}], "expression_failed")],
)
def test_a_duplicate_or_blank_suffix_is_an_error(items: list[object], code: str) -> None:
    run = given(step("n", foreach="input", suffix="item"))
    run.start(items)  # type: ignore[arg-type]
    assert run.lines()[1] == f"refused n {code} -> fail"
    assert run.status == "failed"


@pytest.mark.requirement("E12")
def test_an_empty_list_is_skipped_and_dependents_run_with_an_empty_list() -> None:
    run = given(
        step("n", foreach="[]"),
        step("z", after=("n",), when="steps.n.status == 'skipped'"),
        mode="dag",
    )
    run.start()
    run.succeed("z")
    run.expect("""
        started
        closed n skipped + z/1
        ok z/1
        finished succeeded
    """)


@pytest.mark.requirement("E12")
def test_the_size_is_capped() -> None:
    run = given(step("n"), step("z"), mode="parallel")
    run.start(each={"n": FAN_OUT_LIMIT + 1})
    assert run.lines()[1] == "refused n fan_out_limit -> fail"


def test_a_list_that_is_none_is_refused() -> None:
    run = given(step("n", foreach="input.x"))
    run.start({"x": 7})
    assert run.lines()[1] == "refused n expression_failed -> fail"


# -- How many at once --------------------------------------------------------------------------------------------------


@pytest.mark.requirement("E12")
def test_no_more_clones_at_once_than_the_step_allows() -> None:
    run = fan("[1, 2, 3, 4, 5]", max_concurrency=2)
    run.succeed("n#1")
    run.succeed("n#0", "n#2", "n#3", "n#4", "z")
    run.expect("""
        started
        expanded n 5 + n#0..1/1
        ok n#1/1 + n#2/1
        ok n#0/1 + n#3/1
        ok n#2/1 + n#4/1
        ok n#3/1
        ok n#4/1
        scope n succeeded + z/1
        ok z/1
        finished succeeded
    """)


@pytest.mark.requirement("E14")
def test_nor_than_the_scope_allows() -> None:
    run = given(step("a"), step("n", foreach="[1, 2, 3]"), step("b"), mode="parallel", max_concurrency=2)
    run.start()
    assert run.open() == ["a/1", "n#0/1"]
    run.succeed("a")
    assert run.open() == ["n#0/1", "n#1/1"]
    assert run.run_out() == "succeeded"


@pytest.mark.requirement("E14")
def test_a_fan_out_without_a_limit_of_its_own_has_a_thousand_at_a_time() -> None:
    plan = Plan(definition(step("n"), name="wide"))
    state = Execution(plan)
    start = f.Start(at=1, execution="x", tenant="t", input=raw(None), by_step=True, each={"n": 2_500})
    decide(state, start, 1)
    assert len(state.agenda) == 1_000


def test_retries_of_clones_come_before_clones_that_were_never_started() -> None:
    run = fan("[1, 2, 3]", max_concurrency=1)
    run.fail("n#0", "TRANSIENT")
    assert run.open() == ["n#1/1"]
    run.tick()
    assert run.open() == ["n#1/1"], "its delay is over, but there is no slot"
    run.succeed("n#1")
    assert run.open() == ["n#0/2"]
    run.succeed("n#0", "n#2", "z")
    assert run.status == "succeeded"


def test_a_delayed_clone_takes_a_free_slot_at_once() -> None:
    run = fan("[1, 2]", max_concurrency=2)
    run.fail("n#0", "TRANSIENT")
    run.tick()
    assert run.open() == ["n#1/1", "n#0/2"]


# -- Failure -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("E13")
def test_one_clone_that_fails_stops_the_others_and_awaits_those_that_run() -> None:
    run = fan("[1, 2, 3, 4]", max_concurrency=3, undo=True)
    run.fail("n#1", "TRANSIENT")
    run.skip_lines()
    run.fail("n#0")
    run.expect("""
        failed n#0/1 NON_RETRYABLE -> fail
        closing n failed non_retryable
        closed n#1 canceled
        closing . failed non_retryable
    """)
    assert run.open() == ["n#2/1", "n#3/1"]
    run.fail("n#2", "TRANSIENT")
    run.succeed("n#3")
    run.undo("n#3")
    run.expect("""
        failed n#2/1 TRANSIENT -> fail
        ok n#3/1
        scope n failed non_retryable
        undo because failed: n#3 + n#3:undo/1
        ok n#3:undo/1
        review dead_letter n#0 (non_retryable)
        finished failed non_retryable
    """)


@pytest.mark.requirement("C16")
def test_clones_are_passed_over_if_their_step_says_so() -> None:
    run = fan(failure_mode="continue")
    run.fail("n#0")
    run.succeed("n#1")
    run.fail("n#2")
    assert run.open() == ["z/1"]
    assert run.statuses() == {"n": "succeeded", "n#0": "skipped", "n#1": "succeeded", "n#2": "skipped", "z": "running"}


@pytest.mark.requirement("C16")
def test_a_fan_out_of_which_nothing_succeeded_is_skipped() -> None:
    run = fan("[1]", failure_mode="continue")
    run.fail("n#0")
    assert run.fan("n").status == "skipped"
    assert run.open() == ["z/1"]


def test_continue_of_the_scope_passes_over_the_whole_fan_out() -> None:
    run = given(
        step("n", foreach="[1, 2]", max_concurrency=1),
        step("needs", after=("n",)),
        step("other"),
        mode="dag",
        failure_mode="continue",
    )
    run.start()
    run.fail("n#0")
    run.succeed("other")
    assert run.statuses() == {
        "n": "skipped",
        "n#0": "failed",
        "n#1": "pending",
        "other": "succeeded",
        "needs": "skipped",
    }
    assert (run.status, run.state.outcome) == ("succeeded", "partial")


def test_clones_have_deadlines_of_their_own() -> None:
    run = fan("[1, 2]", timeout=50, timeout_ms=100, failure_mode="continue")
    run.tick_to(60)
    run.succeed("n#0")
    run.tick()
    assert run.statuses()["n#1"] == "skipped"
    assert run.open() == ["z/1"]


@pytest.mark.requirement("C11")
def test_an_unsafe_clone_whose_outcome_is_unknown_is_found_out_alone() -> None:
    run = given(unsafe("n", foreach="[1, 2]", reconcile=True, undo=True), step("z"))
    run.start()
    run.begin("n#0")
    run.begin("n#1")
    run.time_out("n#0")
    run.fail("n#1")
    run.skip_lines()
    assert run.open() == ["n#0:reconcile/1"]
    run.done("n#0")
    run.undo("n#0")
    run.expect("""
        probed n#0:reconcile/1 done -> succeed
        scope n failed non_retryable
        undo because failed: n#0 + n#0:undo/1
        ok n#0:undo/1
        review dead_letter n#1 (non_retryable)
        finished failed non_retryable
    """)


def test_a_clone_waits_for_a_person_and_goes_on_by_his_word() -> None:
    run = given(unsafe("n", foreach="[1, 2]", max_concurrency=1), step("z"))
    run.start()
    run.begin("n#0")
    run.time_out("n#0")
    assert run.open() == ["n#1/1"], "a review holds no slot"
    run.resolve("n#0", "retry")
    assert run.open() == ["n#1/1"]
    run.begin("n#1")
    run.succeed("n#1")
    assert run.open() == ["n#0/2"]
    run.begin("n#0")
    run.succeed("n#0", "z")
    assert run.status == "succeeded"


def test_a_persons_word_on_a_clone_while_paused_acts_on_resume() -> None:
    run = given(unsafe("n", foreach="[1, 2]"), step("z"))
    run.start()
    run.begin("n#0")
    run.time_out("n#0")
    run.pause()
    run.resolve("n#0", "retry")
    run.resume()
    assert run.open() == ["n#1/1", "n#0/2"]


def test_a_report_on_a_clone_that_is_closed_or_does_not_exist_changes_nothing() -> None:
    run = fan("[1, 2]")
    run.succeed("n#0")
    assert run.succeed("n#0", number=1) == f.Ignored("duplicate")
    assert run.succeed("n#7", number=1) == f.Ignored("unknown")
    assert run.succeed("other#0", number=1) == f.Ignored("unknown")
    assert run.succeed("z#0", number=1) == f.Ignored("unknown")


# -- Again -------------------------------------------------------------------------------------------------------------


def test_a_round_runs_all_clones_again_and_numbers_their_attempts_on() -> None:
    run = given(
        scope(
            "s",
            step("n", foreach="[1, 2, 3]", max_concurrency=2),
            step("b", tries=1),
            mode="parallel",
            failure_mode="retry",
        )
    )
    run.start()
    run.fail("s/n#0", "TRANSIENT")
    run.tick()
    run.succeed("s/n#1")
    run.succeed("s/n#0")
    run.fail("s/b", "TRANSIENT")
    run.succeed("s/n#2")
    run.tick()
    assert sorted(run.open()) == ["s/b/2", "s/n#0/3", "s/n#1/2"]
    run.succeed("s/n#0")
    assert sorted(run.open()) == ["s/b/2", "s/n#1/2", "s/n#2/2"]
    assert run.run_out() == "succeeded"


def test_a_round_numbers_the_probes_of_clones_on() -> None:
    run = given(
        scope("s", guarded("n", foreach="[1]"), step("b", tries=1), mode="parallel", failure_mode="retry"),
    )
    run.start()
    run.time_out("s/n#0")
    run.done("s/n#0")
    run.fail("s/b", "TRANSIENT")
    run.tick()
    run.time_out("s/n#0")
    assert run.open() == ["s/b/2", "s/n#0:guard/2"]


def test_a_round_may_have_fewer_items_and_what_the_others_made_is_still_undone() -> None:
    run = given(
        scope(
            "s",
            step("list"),
            step("n", foreach="steps.list.result", undo=True),
            step("b", tries=1),
            failure_mode="retry",
            max_rounds=2,
        ),
    )
    run.start()
    run.succeed("s/list", result=[1, 2, 3])
    run.succeed("s/n#0", "s/n#1", "s/n#2")
    run.fail("s/b", "TRANSIENT")
    run.tick()
    run.succeed("s/list", result=[1])
    run.succeed("s/n#0")
    run.skip_lines()
    run.fail("s/b")
    undo = next(line for line in run.new_lines() if line.startswith("undo"))
    assert undo.startswith("undo because failed: s/n#0 | s/n#2 | s/n#1")
    assert run.run_out() == "failed"


def test_a_round_that_fails_before_a_fan_out_leaves_its_earlier_effects_to_be_undone() -> None:
    run = given(
        scope(
            "s",
            step("a", tries=1),
            step("n", foreach="[1, 2]", undo=True),
            step("b", tries=1),
            failure_mode="retry",
            max_rounds=2,
        ),
    )
    run.start()
    run.succeed("s/a", "s/n#0", "s/n#1")
    run.fail("s/b", "TRANSIENT")
    run.tick()
    run.skip_lines()
    run.fail("s/a")
    assert "undo because failed: s/n#1 | s/n#0 + s/n#1:undo/1" in run.new_lines()
    assert run.run_out() == "failed"


@pytest.mark.requirement("B15")
def test_a_new_run_keeps_completed_clones_and_runs_the_others() -> None:
    run = fan("[1, 2, 3]")
    run.succeed("n#0", "n#2")
    run.fail("n#1")
    run.skip_lines()
    run.retry()
    run.succeed("n#1", "z")
    run.expect("""
        resolved dead_letter n#1 retry -> close
        run 2
        expanded n 3 + n#1/2
        ok n#1/2
        scope n succeeded + z/1
        ok z/1
        finished succeeded
    """)


@pytest.mark.requirement("B15")
def test_clones_that_were_undone_are_made_again_under_a_new_key() -> None:
    run = fan("[1, 2, 3]", undo=True)
    run.succeed("n#0", "n#2")
    run.fail("n#1")
    run.undo("n#2", "n#0")
    run.skip_lines()
    run.retry()
    run.expect("""
        resolved dead_letter n#1 retry -> close
        run 2 redo n#0=2 n#2=2
        expanded n 3 + n#0/2 n#1/2 n#2/2
    """)
    assert [run.step(f"n#{i}").generation for i in range(3)] == [2, 1, 2]
    run.fail("n#0")
    run.succeed("n#1", "n#2")
    assert "n#2:undo/2" in run.open(), "attempts are numbered on"
    assert run.run_out() == "failed"


def test_a_clone_whose_undo_a_person_gave_up_is_not_undone_in_the_next_run_either() -> None:
    run = fan("[1]", undo=True)
    run.succeed("n#0")
    run.fail("z")
    run.undo_fails("n#0")
    run.resolve("n#0", "dismiss")
    run.retry()
    run.skip_lines()
    run.fail("z")
    assert run.status == "failed"
    assert run.undone() == {}


# -- Many --------------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@for_all(st.integers(1, 6), st.integers(1, 3), st.data())
def test_any_order_of_clones_ends_with_every_clone_done_once(count: int, limit: int, data: st.DataObject) -> None:
    run = given(step("n", foreach="input", max_concurrency=limit))
    run.start(list(range(count)))
    while run.status == "running":
        attempt = data.draw(st.sampled_from(sorted(run.open())))
        run.succeed(attempt.partition("/")[0])
    assert run.fan("n").succeeded == count
    assert run.status == "succeeded"


def test_a_large_fan_out_is_one_grant_and_small_objects() -> None:
    plan = Plan(definition(step("n", max_concurrency=20_000), name="large"))
    state = Execution(plan)
    start = f.Start(at=1, execution="x", tenant="t", input=raw(None), by_step=True, each={"n": 20_000})
    entries = decide(state, start, 1).entries
    assert [len(entry.grants) for entry in entries] == [0, 1]
    for ref in list(state.agenda):
        entries += decide(state, f.Reported(at=2, ref=ref, outcome=f.Succeeded()), 2).entries  # type: ignore[arg-type]
    assert state.finished == "succeeded"
    fan_state = state.nodes["n"]
    assert not fan_state.live  # type: ignore[union-attr]
    assert encode_snapshot(fold(Execution(plan), entries)) == encode_snapshot(state)
    assert len(encode_snapshot(state)) < 200_000


def test_a_clone_that_queues_for_a_slot_may_still_be_settled_by_its_own_late_answer() -> None:
    run = fan("[1, 2, 3]", max_concurrency=1)
    run.time_out("n#0")
    run.tick()
    assert run.open() == ["n#1/1"]
    run.succeed("n#0", number=1)
    run.succeed("n#1", "n#2", "z")
    assert run.status == "succeeded"


def test_what_was_left_of_a_longer_list_is_forgotten_once_a_person_gave_it_up() -> None:
    run = given(
        scope(
            "s",
            step("list"),
            step("n", foreach="steps.list.result", undo=True),
            step("b", tries=1),
            failure_mode="retry",
            max_rounds=2,
        )
    )
    run.start()
    run.succeed("s/list", result=[1, 2])
    run.succeed("s/n#0", "s/n#1")
    run.fail("s/b", "TRANSIENT")
    run.tick()
    run.succeed("s/list", result=[1])
    run.succeed("s/n#0")
    run.fail("s/b")
    run.undo("s/n#0")
    run.undo_fails("s/n#1")
    run.resolve("s/n#1", "dismiss")
    run.retry()
    assert run.run_out() == "succeeded"


def test_a_step_that_waits_for_a_slot_to_be_attempted_again_stands_before_clones() -> None:
    run = given(guarded("a"), step("n", foreach="[1, 2]"), mode="parallel", max_concurrency=1)
    run.start()
    run.fail("a", "INDETERMINATE")
    assert sorted(run.open()) == ["a:guard/1", "n#0/1"]
    run.not_done("a")
    assert run.open() == ["n#0/1"]
    run.succeed("n#0")
    assert run.open() == ["a/2"]
    run.succeed("a")
    assert run.open() == ["n#1/1"]
