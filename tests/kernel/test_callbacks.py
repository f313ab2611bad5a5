"""Steps that are handed out and answered from outside (F7-F12, F21, 1-1 to 1-17, D8): dispatch, ack, result."""

from typing import Any

import pytest

from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref, lease_id
from tenuto.kernel.definition import ErrorClass
from tenuto.kernel.effects import DispatchAttempt, RunAttempt
from tenuto.kernel.events import AttemptDispatched
from tenuto.kernel.retry import MAX_DISPATCHES

from .build import callback, guarded, step, unsafe
from .driver import EXECUTION, Driver, given

ok = f.Succeeded()


def protocol(**fields: Any) -> Driver:
    run = given(callback("ocr", **fields), step("z"))
    run.start()
    return run


@pytest.mark.requirement("F7", "F8", "F9")
def test_dispatched_acknowledged_answered() -> None:
    run = protocol()
    assert run.state.agenda == {Ref("ocr", "forward", 1): DispatchAttempt(Ref("ocr", "forward", 1))}
    run.dispatch("ocr")
    run.tick_to(500)
    run.ack("ocr", workspace="w1")
    run.tick_to(800)
    run.answer("ocr", ok)
    run.expect("""
        started + ocr/1
        dispatched ocr/1 ack@1000
        acked ocr/1 result@10500
        ok ocr/1 + z/1
    """)
    assert run.step("ocr").workspace == "w1"
    assert run.wake_at is None


@pytest.mark.requirement("F8")
def test_a_result_implies_its_ack() -> None:
    run = protocol()
    run.dispatch("ocr")
    run.answer("ocr", ok)
    assert run.open() == ["z/1"]
    assert run.wake_at is None


def test_a_result_may_come_before_the_word_that_it_was_sent() -> None:
    run = protocol()
    run.answer("ocr", ok)
    assert run.open() == ["z/1"]
    dispatched = f.Dispatched(at=run.now, ref=Ref("ocr", "forward", 1))
    assert run.tell(dispatched) == f.Ignored("stale_attempt")


def test_an_ack_may_come_before_the_word_that_it_was_sent() -> None:
    run = protocol()
    run.ack("ocr")
    run.dispatch("ocr")
    run.expect("""
        started + ocr/1
        acked ocr/1 result@10000
        dispatched ocr/1
    """)
    run.answer("ocr", ok)
    assert run.wake_at is None


@pytest.mark.requirement("F11")
def test_the_ack_timer_starts_when_it_was_sent_and_not_before() -> None:
    run = protocol()
    assert run.wake_at is None, "a broker outage burns no time"
    run.tick_to(60_000)
    run.dispatch("ocr")
    assert run.wake_at == 61_000


@pytest.mark.requirement("F11")
@pytest.mark.parametrize(
    ("ack", "result", "sent", "acked"),
    [
        (1_000, 10_000, "dispatched ocr/1 ack@1000", "acked ocr/1 result@10000"),
        (1_000, None, "dispatched ocr/1 ack@1000", "acked ocr/1"),
        (None, 10_000, "dispatched ocr/1 result@10000", "acked ocr/1 result@10000"),
    ],
)
def test_either_timer_may_be_missing(ack: int | None, result: int | None, sent: str, acked: str) -> None:
    run = protocol(ack=ack, result=result)
    run.dispatch("ocr")
    run.ack("ocr")
    assert run.new_lines()[1:] == [sent, acked]


@pytest.mark.requirement("F11")
def test_no_ack_in_time_is_a_new_attempt() -> None:
    run = protocol()
    run.dispatch("ocr")
    run.tick()
    run.tick()
    run.expect("""
        started + ocr/1
        dispatched ocr/1 ack@1000
        timeout ocr/1 ack -> retry@1100
        granted + ocr/2
    """)


@pytest.mark.requirement("F11", "F21")
def test_no_result_in_time_three_times_fails_it() -> None:
    run = protocol()
    for _ in range(3):
        run.dispatch("ocr")
        run.ack("ocr")
        run.tick()
        if run.wake_at is not None:
            run.tick()
    assert [line for line in run.lines() if line.startswith("timeout")] == [
        "timeout ocr/1 result -> retry@10100",
        "timeout ocr/2 result -> retry@20300",
        "timeout ocr/3 result -> fail",
    ]
    assert run.status == "failed"


@pytest.mark.requirement("F10")
def test_a_stale_result_is_told_and_changes_nothing() -> None:
    run = protocol()
    run.dispatch("ocr")
    run.tick()
    run.tick()
    run.dispatch("ocr")
    assert run.answer("ocr", ok, number=1) == f.Ignored("stale_attempt")
    assert run.ack("ocr", number=1) == f.Ignored("stale_attempt")
    assert run.answer("ocr", ok, number=3) == f.Ignored("unknown")
    assert run.ack("ocr", number=3) == f.Ignored("unknown")


@pytest.mark.requirement("F10")
def test_a_result_with_another_lease_is_told_and_changes_nothing() -> None:
    run = protocol()
    run.dispatch("ocr")
    assert run.report("ocr", ok, number=1, lease="other") == f.Ignored("stale_lease")
    acked = f.Acked(at=run.now, ref=Ref("ocr", "forward", 1), lease="other")
    assert run.tell(acked) == f.Ignored("stale_lease")


@pytest.mark.requirement("F8")
def test_an_ack_after_the_result_or_twice_changes_nothing() -> None:
    run = protocol()
    run.dispatch("ocr")
    run.ack("ocr")
    assert run.ack("ocr", number=1) == f.Ignored("duplicate")
    run.answer("ocr", ok)
    assert run.ack("ocr", number=1) == f.Ignored("duplicate")


@pytest.mark.requirement("D8")
def test_a_result_that_comes_twice_is_applied_once() -> None:
    run = protocol()
    run.dispatch("ocr")
    run.answer("ocr", ok)
    assert run.answer("ocr", ok, number=1) == f.Ignored("duplicate")
    assert run.answer("ocr", f.Failed(error_class="TRANSIENT", code="x"), number=1) == f.Ignored("duplicate")


@pytest.mark.requirement("F10")
def test_a_terminal_job_ignores_every_callback() -> None:
    run = protocol()
    run.cancel("terminate")
    assert run.answer("ocr", ok, number=1) == f.Ignored("terminal")
    assert run.ack("ocr", number=1) == f.Ignored("terminal")


@pytest.mark.requirement("F10")
def test_callbacks_for_steps_that_were_never_reached() -> None:
    run = protocol()
    ref = Ref("z", "forward", 1)
    assert run.tell(f.Acked(at=run.now, ref=ref, lease=lease_id(EXECUTION, ref))) == f.Ignored("unknown")
    assert run.answer("z", ok, number=1) == f.Ignored("unknown")
    assert run.tell(f.Begun(at=run.now, ref=ref, worker="w")) == f.Ignored("stale_attempt")
    refused = f.DispatchRefused(at=run.now, ref=ref, failure=f.Failed(error_class="TRANSIENT", code="x"))
    assert run.tell(refused) == f.Ignored("stale_attempt")
    plan = Ref("", "plan", 1)
    assert run.tell(f.Reported(at=run.now, ref=plan, outcome=f.Planned(children=()))) == f.Ignored("unknown")
    nowhere = Ref("nowhere", "plan", 1)
    assert run.tell(f.Reported(at=run.now, ref=nowhere, outcome=f.Planned(children=()))) == f.Ignored("unknown")


@pytest.mark.requirement("F9")
@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (f.Failed(error_class="TRANSIENT", code="x"), "failed ocr/1 TRANSIENT -> retry@100"),
        (f.Failed(error_class="NON_RETRYABLE", code="x"), "failed ocr/1 NON_RETRYABLE -> fail"),
    ],
)
def test_a_worker_says_what_kind_of_failure_it_was(outcome: f.Failed, line: str) -> None:
    run = protocol()
    run.dispatch("ocr")
    run.skip_lines()
    run.answer("ocr", outcome)
    assert run.new_lines()[0] == line


# -- Sends that failed -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("F12")
def test_a_send_that_was_not_confirmed_is_a_new_attempt_and_costs_none() -> None:
    run = given(callback("ocr", tries=1))
    run.start()
    run.refuse_dispatch("ocr")
    assert run.step("ocr").tries == 0
    run.tick()
    run.dispatch("ocr")
    run.answer("ocr", ok)
    assert [line.split("@")[0] for line in run.lines()] == [
        "started + ocr/1",
        "undispatched ocr/1 -> retry",
        "granted + ocr/2",
        "dispatched ocr/2 ack",
        "ok ocr/2",
        "finished succeeded",
    ]


@pytest.mark.requirement("F12")
def test_sends_have_a_bound_of_their_own() -> None:
    run = protocol()
    for _ in range(MAX_DISPATCHES - 1):
        run.refuse_dispatch("ocr")
        run.tick()
    run.skip_lines()
    run.refuse_dispatch("ocr")
    run.expect("""
        undispatched ocr/10 -> fail
        closing . failed broker
        review dead_letter ocr (broker)
        finished failed broker
    """)


@pytest.mark.requirement("F12")
def test_a_send_that_was_refused_for_good_is_not_tried_again() -> None:
    run = protocol()
    run.refuse_dispatch("ocr", "NON_RETRYABLE")
    assert run.status == "failed"


def test_a_send_that_failed_in_a_closing_scope_is_not_tried_again() -> None:
    run = given(callback("ocr"), step("b"), mode="parallel")
    run.start()
    run.fail("b")
    run.refuse_dispatch("ocr")
    assert run.status == "failed"


@pytest.mark.requirement("C10")
def test_an_unsafe_directive_that_may_have_got_through_is_not_sent_again() -> None:
    run = given(unsafe("pay", queue="q", reconcile=True))
    run.start()
    run.skip_lines()
    run.refuse_dispatch("pay", "INDETERMINATE")
    assert run.step("pay").status == "retrying"
    run.tick()
    assert run.open() == ["pay:reconcile/1"]
    assert run.step("pay").number == 1


def test_an_undo_on_a_queue_that_cannot_be_sent_is_sent_again_and_then_asks() -> None:
    run = given(step("a", undo=True, queue="q"), step("b"))
    run.start()
    run.dispatch("a")
    run.succeed("a")
    run.fail("b")
    for _ in range(MAX_DISPATCHES - 1):
        run.refuse_dispatch("a")
        run.tick()
    run.skip_lines()
    run.refuse_dispatch("a")
    run.expect("""
        undispatched a:undo/10 -> review
        review compensation_failed a
    """)


def test_a_guard_on_a_queue_that_cannot_be_sent_is_sent_again_and_then_asks() -> None:
    run = given(guarded("a", queue="q"))
    run.start()
    run.dispatch("a")
    run.time_out("a")
    for _ in range(MAX_DISPATCHES - 1):
        run.refuse_dispatch("a")
        run.tick()
    run.skip_lines()
    run.refuse_dispatch("a")
    run.expect("""
        undispatched a:guard/10 -> review
        review indeterminate a
    """)


# -- Queues ------------------------------------------------------------------------------------------------------------


def test_a_step_on_a_queue_is_handed_out_with_all_its_phases() -> None:
    run = given(guarded("a", undo=True, queue="q"), step("b"))
    run.start()
    assert isinstance(run.state.agenda[Ref("a", "forward", 1)], DispatchAttempt)
    run.time_out("a")
    assert isinstance(run.state.agenda[Ref("a", "guard", 1)], DispatchAttempt)
    run.done("a")
    assert isinstance(run.state.agenda[Ref("b", "forward", 1)], RunAttempt)
    run.fail("b")
    assert isinstance(run.state.agenda[Ref("a", "compensate", 1)], DispatchAttempt)


def test_a_callback_step_is_undone_here() -> None:
    run = given(callback("ocr", undo=True), step("b"))
    run.start()
    run.answer("ocr", ok)
    run.fail("b")
    assert isinstance(run.state.agenda[Ref("ocr", "compensate", 1)], RunAttempt)


def test_only_callbacks_have_ack_and_result_timers() -> None:
    run = given(step("a", queue="q"))
    run.start()
    run.dispatch("a")
    assert run.wake_at is None


def test_a_takeover_does_not_lose_what_others_run() -> None:
    run = protocol()
    run.dispatch("ocr")
    run.skip_lines()
    run.crash()
    assert run.new_lines() == []
    assert run.open() == ["ocr/1"]


# -- What directives carry ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("F22")
def test_the_next_directive_names_the_workspace_of_the_last_answer() -> None:
    run = given(callback("ocr"), callback("embed"), callback("sis"))
    run.start()
    run.dispatch("ocr")
    run.ack("ocr", workspace="w/1")
    assert run.state.workspace == "w/1"
    run.answer("ocr", ok)
    run.dispatch("embed")
    run.ack("embed")
    assert run.state.workspace == "w/1", "an answer that names none changes nothing"
    ref = Ref("embed", "forward", 1)
    busy = f.Failed(error_class="TRANSIENT", code="busy")
    lease = lease_id(EXECUTION, ref)
    run.tell(f.Reported(at=run.now, ref=ref, outcome=busy, lease=lease, workspace="w/2"))
    assert (run.state.workspace, run.step("embed").workspace) == ("w/2", "w/2")
    run.tick()
    run.dispatch("embed")
    second = Ref("embed", "forward", 2)
    run.tell(f.Reported(at=run.now, ref=second, outcome=ok, lease=lease_id(EXECUTION, second), workspace="w/3"))
    assert (run.state.workspace, run.step("ocr").workspace) == ("w/3", "w/1")


@pytest.mark.requirement("F4", "F5")
def test_where_a_directive_went_is_on_record() -> None:
    run = protocol()
    run.tell(f.Dispatched(at=run.now, ref=Ref("ocr", "forward", 1), lane=8, routing_key="acmedoc-42"))
    event = run.history[-1].event
    assert isinstance(event, AttemptDispatched)
    assert (event.lane, event.routing_key) == (8, "acmedoc-42")


# -- Cancel ------------------------------------------------------------------------------------------------------------


ENDS: list[tuple[str, str]] = [
    ("ack", "timeout ocr/1 ack -> fail"),
    ("result", "timeout ocr/1 result -> fail"),
    ("INDETERMINATE", "failed ocr/1 INDETERMINATE -> fail"),
    ("COMPENSATION_REQUIRED", "failed ocr/1 COMPENSATION_REQUIRED -> fail"),
    ("unconfirmed", "undispatched ocr/1 -> fail"),
]


@pytest.mark.requirement("F13")
@pytest.mark.parametrize(("how", "line"), ENDS, ids=[how for how, _ in ENDS])
def test_a_drain_ends_with_the_attempt_even_if_its_outcome_is_unknown(how: str, line: str) -> None:
    """A person can still record what was found."""
    run = given(callback("ocr", safety="NOT_SAFE_TO_RETRY", compensation_policy="manual"), callback("embed"))
    run.start()
    if how != "unconfirmed":
        run.dispatch("ocr")
    if how == "result":
        run.ack("ocr")
    run.cancel("drain")
    run.skip_lines()
    if how in ("ack", "result"):
        run.tick()
    elif how == "unconfirmed":
        run.refuse_dispatch("ocr", "INDETERMINATE")
    else:
        error_class: ErrorClass = "INDETERMINATE" if how == "INDETERMINATE" else "COMPENSATION_REQUIRED"
        run.answer("ocr", f.Failed(error_class=error_class, code="x"))
    assert run.new_lines()[0] == line
    assert run.status == "canceled"
    kind = "compensation" if how == "COMPENSATION_REQUIRED" else "indeterminate"
    assert run.reviews() == [f"{kind} ocr"]
