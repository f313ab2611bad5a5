"""Small histories of what the simulation found in large ones, where no other test says it."""

from .build import guarded, scope, step
from .driver import given


def test_what_was_half_made_in_one_round_and_is_known_not_to_be_made_in_the_next_is_not_undone() -> None:
    run = given(scope("s", guarded("n", undo=True, tries=1, partial_effect=True), failure_mode="retry", max_rounds=2))
    run.start()
    run.fail("s/n", "TRANSIENT")
    run.tick()
    run.time_out("s/n")
    run.not_done("s/n")
    assert run.status == "failed"
    assert run.undone() == {}


def test_what_an_earlier_round_completed_is_undone_whatever_a_later_one_left() -> None:
    run = given(
        scope(
            "s",
            guarded("n", undo=True, tries=1, partial_effect=True),
            step("b", tries=1),
            failure_mode="retry",
            max_rounds=3,
        )
    )
    run.start()
    run.succeed("s/n")
    run.fail("s/b", "TRANSIENT")
    run.tick()
    run.fail("s/n", "TRANSIENT")
    run.tick()
    run.time_out("s/n")
    run.not_done("s/n")
    run.undo("s/n")
    assert run.undone() == {"s/n": "done"}


def test_undos_that_a_person_had_tried_again_are_over_before_earlier_ones_begin() -> None:
    made = step("a", undo=True), step("b", undo=True, after=("a",)), step("c", undo=True, after=("a",))
    run = given(*made, step("d", after=("b", "c")), mode="dag", compensation="GROUPED_PARALLEL")
    run.start()
    run.succeed("a", "b", "c")
    run.fail("d")
    run.undo_fails("b")
    run.undo_fails("c")
    run.resolve("b", "retry")
    run.resolve("c", "retry")
    run.undo("b")
    assert run.open() == ["c:undo/2"]
    run.undo_fails("c")
    assert run.open() == []
    run.resolve("c", "retry")
    run.undo("c", "a")
    assert run.status == "failed"
    assert run.undone() == {"a": "done", "b": "done", "c": "done"}
