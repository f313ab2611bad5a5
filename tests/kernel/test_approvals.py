"""People (I1, I3, E8, 0-2, 0-3, 0-17): approvals, reviews, and every resolution of each."""

from typing import Any

import pytest

from tenuto.kernel import facts as f
from tenuto.kernel.decide.people import RESOLUTIONS
from tenuto.kernel.definition import Escalation
from tenuto.kernel.events import Resolution

from .build import approval, scope, step, unsafe
from .driver import Driver, given
from .rendering import START


@pytest.mark.requirement("I1")
def test_an_approval_waits_for_a_person() -> None:
    run = given(approval("ok", permission="payments", set_variable="answer"), step("a"))
    run.start()
    assert run.status == "waiting_approval"
    assert run.step("ok").status == "awaiting_approval"
    review = next(iter(run.state.reviews.values()))
    assert (review.kind, review.path, review.permission) == ("approval", "ok", "payments")
    run.approve("ok")
    run.expect("""
        started
        review approval ok
        resolved approval ok approved -> succeed + a/1
    """)
    assert bytes(run.state.variables["answer"]) == b'{"approved":true,"by":"ann","comment":""}'


@pytest.mark.requirement("I1")
def test_who_decided_is_recorded() -> None:
    run = given(approval("ok"))
    run.start()
    run.approve("ok")
    assert run.history[2].actor == "ann"


@pytest.mark.requirement("I1")
def test_data_that_comes_with_an_approval_is_its_result() -> None:
    run = given(approval("ok"), output="${steps.ok.result}")
    run.start()
    run.resolve("ok", "approved", result={"limit": 5})
    assert bytes(run.history[-1].event.output) == b'{"limit":5}'  # type: ignore[union-attr]


@pytest.mark.requirement("I1")
def test_a_rejection_without_an_edge_fails() -> None:
    run = given(approval("ok"), step("a"))
    run.start()
    run.reject("ok")
    run.expect("""
        started
        review approval ok
        resolved approval ok rejected -> fail
        closing . failed rejected
        review dead_letter ok (rejected)
        finished failed rejected
    """)


@pytest.mark.requirement("I1")
@pytest.mark.parametrize(("how", "next_step"), [("approve", "yes@1/1"), ("reject", "no@1/1"), ("wait", "late@1/1")])
def test_each_answer_has_its_edge(how: str, next_step: str) -> None:
    run = given(
        approval("ok", timeout_ms=1_000, on_success="yes", on_failure="no", on_timeout="late"),
        step("yes"),
        step("no"),
        step("late"),
        mode="flow",
    )
    run.start()
    {"approve": lambda: run.approve("ok@1"), "reject": lambda: run.reject("ok@1"), "wait": run.tick}[how]()
    assert run.open() == [next_step]
    assert run.reviews() == []


@pytest.mark.requirement("I1")
def test_an_approval_that_nobody_gave_times_out() -> None:
    run = given(approval("ok", timeout_ms=1_000), step("a"))
    run.start()
    run.tick()
    run.expect("""
        started
        review approval ok due@1000
        resolved approval ok dismiss -> close
        expired ok approval_timeout -> fail
        closing . failed approval_timeout
        review dead_letter ok (approval_timeout)
        finished failed approval_timeout
    """)
    assert run.step("ok").status == "timed_out"


@pytest.mark.requirement("I1")
@pytest.mark.parametrize(("arrived", "status"), [(999, "succeeded"), (1_000, "failed"), (1_001, "failed")])
def test_the_race_between_an_approval_and_its_time_is_decided_by_arrival(arrived: int, status: str) -> None:
    run = given(approval("ok", timeout_ms=1_000))
    run.start()
    run.now = START + 60_000
    answer = run.tell(f.Decide(at=START + arrived, resolution="approved", path="ok"))
    assert run.status == status
    assert isinstance(answer, f.Applied if status == "succeeded" else f.Refused)


@pytest.mark.requirement("I1")
def test_an_approval_is_decided_once() -> None:
    run = given(approval("ok"), step("a"))
    run.start()
    run.approve("ok")
    answer = run.reject("ok")
    assert isinstance(answer, f.Refused)
    assert answer.code == "not_waiting"


@pytest.mark.parametrize(
    ("decided", "told"),
    [
        ({"path": "a"}, "step 'a' does not wait for a decision: its status is running"),
        ({"path": "b"}, "step 'b' does not wait for a decision: it has not started"),
        ({"path": "nowhere"}, "the execution has no step 'nowhere'"),
        ({"review": "x1.99"}, "review 'x1.99' is not open: it was resolved already, or there never was one"),
        ({}, "the decision names neither a step nor a review"),
    ],
)
def test_a_decision_that_nothing_waits_for_is_refused_with_the_reason(decided: Any, told: str) -> None:
    run = given(step("a"), approval("ok"), step("b", after=("a", "ok")), mode="dag")
    run.start()
    answer = run.tell(f.Decide(at=run.now, resolution="approved", **decided))
    assert answer == f.Refused("not_waiting", told, "decide on what waits: 'ok' (approval)")


def test_a_decision_is_refused_with_what_waits_instead() -> None:
    run = given(step("a"), *(approval(f"ok{number}") for number in range(12)), mode="parallel")
    run.start()
    answer = run.tell(f.Decide(at=run.now, resolution="approved", path="a"))
    assert isinstance(answer, f.Refused)
    assert answer.hint.endswith("'ok8' (approval), 'ok9' (approval), and 2 more")
    for number in range(12):
        run.approve(f"ok{number}")
    answer = run.approve("ok0")
    assert isinstance(answer, f.Refused)
    assert answer.message == "step 'ok0' does not wait for a decision: its status is succeeded"
    assert answer.hint == "nothing in this execution waits for a decision"


@pytest.mark.requirement("I1")
def test_it_waits_for_a_person_only_when_nothing_else_can_go_on() -> None:
    run = given(approval("ok"), step("a"), mode="parallel")
    run.start()
    assert run.status == "running"
    assert run.step("ok").status == "awaiting_approval"
    run.fail("a", "TRANSIENT")
    assert run.status == "running", "a delay ends by itself"
    run.tick()
    run.succeed("a")
    assert run.status == "waiting_approval"


@pytest.mark.parametrize(
    ("kind", "word", "means"),
    [
        ("approval", "completed", "approved"),
        ("approval", "not_completed", "rejected"),
        ("compensation", "approved", "compensate"),
        ("compensation", "rejected", "dismiss"),
    ],
)
def test_yes_and_no_are_understood_everywhere(kind: str, word: Resolution, means: str) -> None:
    run = given(approval("x")) if kind == "approval" else given(unsafe("x", undo=True, compensation_policy="manual"))
    run.start()
    if kind == "compensation":
        run.begin("x")
        run.fail("x", "TRANSIENT")
    run.skip_lines()
    run.resolve("x", word)
    assert run.new_lines()[0].startswith(f"resolved {kind} x {means} ->")


def test_a_word_that_a_review_does_not_take_is_refused_and_the_others_are_told() -> None:
    run = given(approval("ok"))
    run.start()
    answer = run.resolve("ok", "compensate")
    assert isinstance(answer, f.Refused)
    assert (answer.code, answer.hint) == ("bad_resolution", "approved, rejected")


# -- A step that a person must judge -----------------------------------------------------------------------------------


def compensation_review(**fields: Any) -> Driver:
    run = given(step("first", undo=True), unsafe("pay", undo=True, **fields), step("z"))
    run.start()
    run.succeed("first")
    run.begin("pay")
    run.skip_lines()
    run.fail("pay", "COMPENSATION_REQUIRED")
    run.expect("""
        failed pay/1 COMPENSATION_REQUIRED -> review
        review compensation pay
    """)
    assert run.status == "waiting_approval"
    return run


@pytest.mark.requirement("I3")
def test_compensation_required_halts_and_asks() -> None:
    run = compensation_review()
    assert run.step("pay").status == "awaiting_approval"
    assert run.open() == []


@pytest.mark.requirement("I3")
@pytest.mark.parametrize(
    ("resolution", "events"),
    [
        ("completed", ["resolved compensation pay completed -> succeed + z/1"]),
        ("retry", ["resolved compensation pay retry -> retry + pay/2"]),
        (
            "compensate",
            [
                "resolved compensation pay compensate -> undo",
                "closing . failed compensation_required",
                "undo because failed: pay | first + pay:undo/1",
            ],
        ),
        (
            "not_completed",
            [
                "resolved compensation pay not_completed -> fail",
                "closing . failed compensation_required",
                "undo because failed: first + first:undo/1",
            ],
        ),
        (
            "dismiss",
            [
                "resolved compensation pay dismiss -> fail",
                "closing . failed compensation_required",
                "undo because failed: first + first:undo/1",
            ],
        ),
    ],
)
def test_every_resolution_of_a_compensation_review(resolution: Resolution, events: list[str]) -> None:
    run = compensation_review()
    run.resolve("pay", resolution)
    assert run.new_lines() == events


@pytest.mark.requirement("B15")
def test_do_it_again_takes_a_new_key() -> None:
    run = compensation_review()
    run.resolve("pay", "retry", again=True)
    assert run.step("pay").generation == 2
    run = compensation_review()
    run.resolve("pay", "retry")
    assert run.step("pay").generation == 1


@pytest.mark.requirement("B15")
def test_again_is_refused_where_no_step_is_tried_again() -> None:
    """A compensation has the key of the effect that it undoes, and an escalation has no effect."""
    undo = given(step("x", undo=True), step("z"))
    undo.start()
    undo.succeed("x")
    undo.fail("z")
    undo.undo_fails("x")
    manual = given(step("x", undo=True, compensation_policy="manual"), step("z"))
    manual.start()
    manual.succeed("x")
    manual.fail("z")
    escalated = given(step("x", tries=9, delay=0), escalation=Escalation(errors=1))
    escalated.start()
    escalated.fail("x", "TRANSIENT")
    escalated.fail("x", "TRANSIENT")
    abandoned = given(unsafe("x", undo=True))
    abandoned.start()
    abandoned.begin("x")
    abandoned.cancel("terminate")
    kinds = {undo: "compensation_failed", manual: "compensation", escalated: "escalation", abandoned: "indeterminate"}
    for run, kind in kinds.items():
        answer = run.resolve("x", "retry", again=True, kind=kind)
        assert isinstance(answer, f.Refused), kind
        assert (answer.code, answer.hint) == ("bad_resolution", "retry without `again`")
        assert run.resolve("x", "retry", kind=kind) == f.APPLIED


def test_a_person_who_says_undo_where_there_is_no_undo_says_no() -> None:
    run = given(unsafe("pay"))
    run.start()
    run.begin("pay")
    run.fail("pay", "COMPENSATION_REQUIRED")
    run.resolve("pay", "compensate")
    assert run.lines()[-4] == "resolved compensation pay compensate -> fail"
    assert run.status == "failed"


def indeterminate_review(**fields: Any) -> Driver:
    run = given(step("first", undo=True), unsafe("pay", undo=True, **fields), step("z"))
    run.start()
    run.succeed("first")
    run.begin("pay")
    run.skip_lines()
    run.time_out("pay")
    run.expect("""
        timeout pay/1 attempt -> review
        review indeterminate pay
    """)
    return run


@pytest.mark.requirement("C11")
@pytest.mark.parametrize(
    ("resolution", "events"),
    [
        ("completed", ["resolved indeterminate pay completed -> succeed + z/1"]),
        ("not_completed", ["resolved indeterminate pay not_completed -> retry + pay/2"]),
        ("retry", ["resolved indeterminate pay retry -> retry + pay/2"]),
        (
            "compensate",
            [
                "resolved indeterminate pay compensate -> undo",
                "closing . failed attempt_timeout",
                "undo because failed: pay | first + pay:undo/1",
            ],
        ),
        (
            "dismiss",
            [
                "resolved indeterminate pay dismiss -> fail",
                "closing . failed attempt_timeout",
                "undo because failed: first + first:undo/1",
            ],
        ),
    ],
)
def test_every_resolution_of_an_indeterminate_review(resolution: Resolution, events: list[str]) -> None:
    run = indeterminate_review()
    run.resolve("pay", resolution)
    assert run.new_lines() == events


@pytest.mark.requirement("C11")
def test_not_completed_is_bounded_by_max_attempts_and_retry_is_not() -> None:
    run = indeterminate_review(tries=1)
    run.resolve("pay", "not_completed")
    assert run.new_lines()[0] == "resolved indeterminate pay not_completed -> fail"
    run = indeterminate_review(tries=1)
    run.resolve("pay", "retry")
    assert run.open() == ["pay/2"]


def test_a_persons_verdict_has_the_result_the_variable_and_the_mark() -> None:
    run = given(
        unsafe("pay", set_variable="v", idempotency_key="k"),
        step("z", when="steps.pay.result == 9"),
        step("again", idempotency_key="k"),
    )
    run.start()
    run.begin("pay")
    run.time_out("pay")
    run.resolve("pay", "completed", result=9)
    assert run.open() == ["z/1"]
    assert bytes(run.state.variables["v"]) == b"9"
    run.succeed("z")
    assert run.statuses()["again"] == "skipped"
    assert run.status == "succeeded"


def test_a_deadline_does_not_end_a_review_that_only_a_person_can_end() -> None:
    for error in ("COMPENSATION_REQUIRED", "INDETERMINATE"):
        run = given(unsafe("pay", timeout=50, timeout_ms=100))
        run.start()
        run.begin("pay")
        run.fail("pay", error)
        run.tick_to(1_000)
        assert run.status == "waiting_approval"
        assert len(run.reviews()) == 1


def test_under_a_cancel_nothing_is_attempted_again_by_a_persons_word() -> None:
    run = indeterminate_review()
    run.cancel("compensate")
    assert run.status == "waiting_approval"
    run.skip_lines()
    run.resolve("pay", "retry")
    run.undo("first")
    run.expect("""
        resolved indeterminate pay retry -> fail
        undo because canceled: first + first:undo/1
        ok first:undo/1
        finished canceled
    """)


def test_a_review_in_a_nested_scope_holds_its_scope_open() -> None:
    run = given(scope("s", unsafe("pay"), step("b"), mode="parallel"), step("z"))
    run.start()
    run.begin("s/pay")
    run.time_out("s/pay")
    run.fail("s/b")
    assert run.status == "waiting_approval"
    run.resolve("s/pay", "completed")
    assert run.status == "failed"


# -- Reviews that stand apart ------------------------------------------------------------------------------------------


@pytest.mark.requirement("I3")
@pytest.mark.parametrize("resolution", ["completed", "dismiss"])
def test_a_dead_letter_outlives_its_run_and_is_resolved_once(resolution: Resolution) -> None:
    run = given(step("a"))
    run.start()
    run.fail("a")
    assert run.reviews() == ["dead_letter a"]
    run.skip_lines()
    run.resolve("a", resolution)
    run.expect(f"resolved dead_letter a {resolution} -> close")
    assert run.status == "failed"
    assert run.reviews() == []


@pytest.mark.requirement("I3")
def test_a_dead_letter_is_not_resolved_by_a_word_that_starts_something() -> None:
    run = given(step("a"))
    run.start()
    run.fail("a")
    answer = run.resolve("a", "retry")
    assert isinstance(answer, f.Refused)
    assert (answer.code, answer.hint) == ("bad_resolution", "completed, dismiss")


def test_every_kind_of_review_has_a_resolution_that_ends_it() -> None:
    assert set(RESOLUTIONS) == {
        "approval",
        "compensation",
        "indeterminate",
        "compensation_failed",
        "escalation",
        "dead_letter",
    }
    for kind, words in RESOLUTIONS.items():
        assert words, kind
