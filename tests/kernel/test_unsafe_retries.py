"""What a new run would try again although that is not safe: wherever it begins, and however deep that stands."""

from tenuto.kernel.decide.runs import unsafe_again

from .build import scope, step, unsafe
from .driver import Driver, given


def test_a_failed_one_is_told_wherever_the_run_begins() -> None:
    run = given(step("a"), scope("g", step("b"), unsafe("pay")))
    run.start()
    run.succeed("a", "g/b")
    run.fail("g/pay")
    for start in (None, "a", "b", "g", "pay"):
        assert unsafe_again(run.state, start) == ["g/pay"], start
    run.retry(start="a")
    run.succeed("a", "g/b")
    assert run.open() == ["g/pay/2"], "and it is tried again"


def test_one_that_failed_beside_the_first_failure_is_told() -> None:
    run = given(unsafe("pay"), step("b"), mode="parallel")
    run.start()
    run.begin("pay")
    run.fail("b")
    run.fail("pay")
    assert run.state.failure is not None
    assert run.state.failure.path == "b"
    assert unsafe_again(run.state, None) == ["pay"]


def test_a_failed_clone_is_told_until_it_has_succeeded() -> None:
    run = given(unsafe("n", foreach="[1, 2, 3]"))
    run.start()
    run.succeed("n#0", "n#2")
    run.fail("n#1")
    assert run.state.finished == "failed"
    for start in (None, "n"):
        assert unsafe_again(run.state, start) == ["n"]
    run.retry()
    run.succeed("n#1")
    assert unsafe_again(run.state, None) == []


def test_a_clone_that_failed_in_an_earlier_run_is_told() -> None:
    run = given(step("a"), unsafe("n", foreach="[1]"))
    run.start()
    run.succeed("a")
    run.fail("n#0")
    run.retry(start="a")
    run.fail("a")
    assert unsafe_again(run.state, None) == ["n"]


def test_what_is_done_or_was_never_tried_or_was_undone_is_not_told() -> None:
    run = given(unsafe("first", undo=True), unsafe("kept"), step("b"), unsafe("later"))
    run.start()
    run.succeed("first", "kept")
    run.fail("b")
    run.undo("first")
    assert run.state.finished == "failed"
    assert unsafe_again(run.state, None) == []


def test_a_flow_that_begins_after_it_leaves_it_alone() -> None:
    run: Driver = given(
        step("d", on_success="pay"),
        unsafe("pay", on_failure="ask"),
        step("ask"),
        mode="flow",
    )
    run.start()
    run.succeed("d@1")
    run.fail("pay@1")
    run.fail("ask@1")
    assert unsafe_again(run.state, None) == []
    assert unsafe_again(run.state, "ask") == []
    assert unsafe_again(run.state, "pay") == ["pay@1"]
    assert unsafe_again(run.state, "d") == ["pay@1"]
    assert unsafe_again(run.state, "nothing") == []
