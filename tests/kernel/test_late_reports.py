"""Late truth (design section 3): what an attempt says after its time is believed until something else is known."""

from tenuto.kernel import facts as f

from .build import guarded, scope, step, unsafe
from .driver import given


def test_a_late_success_of_a_safe_step_spares_the_next_attempt() -> None:
    run = given(step("a"), step("z"))
    run.start()
    run.time_out("a")
    run.succeed("a", number=1)
    run.expect("""
        started + a/1
        timeout a/1 attempt -> retry@100
        ok a/1 + z/1
    """)
    assert run.wake_at is None


def test_a_late_success_is_stale_once_another_attempt_was_granted() -> None:
    run = given(step("a"))
    run.start()
    run.time_out("a")
    run.tick()
    assert run.succeed("a", number=1) == f.Ignored("stale_attempt")


def test_a_late_success_settles_what_a_probe_was_asked_for() -> None:
    run = given(unsafe("pay", reconcile=True), step("z"))
    run.start()
    run.begin("pay")
    run.time_out("pay")
    run.skip_lines()
    run.succeed("pay", number=1)
    run.expect("""
        abandoned pay:reconcile/1 (settled)
        ok pay/1 + z/1
    """)
    assert run.report("pay", f.NotDone(), phase="reconcile", number=1) == f.Ignored("duplicate")


def test_a_late_success_settles_what_a_person_was_asked_for() -> None:
    run = given(unsafe("pay"), step("z"))
    run.start()
    run.begin("pay")
    run.time_out("pay")
    run.skip_lines()
    run.succeed("pay", number=1)
    run.expect("""
        resolved indeterminate pay dismiss -> close
        ok pay/1 + z/1
    """)


def test_a_late_success_of_a_lost_attempt_is_believed() -> None:
    run = given(unsafe("pay", reconcile=True), step("z"))
    run.start()
    run.begin("pay")
    run.crash()
    run.succeed("pay", number=1)
    assert run.open() == ["z/1"]
    assert run.wake_at is None


def test_a_late_answer_is_stale_once_a_probe_said_not_done() -> None:
    run = given(unsafe("pay", reconcile=True, tries=2), mode="parallel")
    run.start()
    run.begin("pay")
    run.time_out("pay")
    run.not_done("pay")
    assert run.succeed("pay", number=1) == f.Ignored("stale_attempt")


def test_a_late_answer_is_stale_once_a_person_decided() -> None:
    run = given(unsafe("pay"), step("z"))
    run.start()
    run.begin("pay")
    run.time_out("pay")
    run.resolve("pay", "completed")
    assert run.succeed("pay", number=1) == f.Ignored("duplicate")


def test_a_late_answer_is_stale_once_its_step_failed_for_good() -> None:
    run = given(step("a", tries=1), step("b"), mode="parallel")
    run.start()
    run.time_out("a")
    assert run.succeed("a", number=1) == f.Ignored("duplicate")
    run.succeed("b")
    assert run.status == "failed"


def test_a_late_failure_of_a_safe_step_changes_the_delay_and_is_counted_once() -> None:
    run = given(step("a", tries=2))
    run.start()
    run.time_out("a")
    run.fail("a", "RATE_LIMITED", number=1)
    run.tick()
    run.succeed("a")
    run.expect("""
        started + a/1
        timeout a/1 attempt -> retry@100
        failed a/1 RATE_LIMITED -> retry@1000
        granted + a/2
        ok a/2
        finished succeeded
    """)


def test_a_late_refusal_of_an_unsafe_step_is_a_refusal() -> None:
    run = given(unsafe("pay", reconcile=True, undo=True))
    run.start()
    run.begin("pay")
    run.time_out("pay")
    run.skip_lines()
    run.fail("pay", "NON_RETRYABLE", number=1)
    run.expect("""
        abandoned pay:reconcile/1 (settled)
        failed pay/1 NON_RETRYABLE -> fail
        closing . failed non_retryable
        review dead_letter pay (non_retryable)
        finished failed non_retryable
    """)


def test_that_it_is_still_unknown_is_no_news() -> None:
    run = given(unsafe("pay", reconcile=True))
    run.start()
    run.begin("pay")
    run.time_out("pay")
    assert run.report("pay", f.TimedOut(), number=1) == f.Ignored("duplicate")
    assert run.fail("pay", "INDETERMINATE", number=1) == f.Ignored("duplicate")
    assert run.open() == ["pay:reconcile/1"]


def test_a_late_answer_in_a_closing_scope_counts() -> None:
    run = given(scope("s", guarded("a", undo=True), step("b"), mode="parallel"))
    run.start()
    run.time_out("s/a")
    run.fail("s/b")
    run.succeed("s/a", number=1)
    assert run.open() == ["s/a:undo/1"]


def test_a_late_answer_of_a_step_that_queues_for_a_slot_counts() -> None:
    run = given(step("a"), step("b"), step("c"), mode="parallel", max_concurrency=1)
    run.start()
    run.time_out("a")
    run.time_out("b")
    run.tick_to(1_000)
    assert run.open() == ["c/1"], "the others queue"
    run.succeed("a", number=1)
    run.succeed("c")
    assert run.open() == ["b/2"]
    run.succeed("b")
    assert run.status == "succeeded"
