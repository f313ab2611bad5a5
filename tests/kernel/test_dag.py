"""Dependencies (A10, E14, 4-14): layers with a barrier, or each step as soon as what it needs is there."""

from typing import Any

import pytest

from tenuto.kernel.definition import Scheduling

from .build import scope, step
from .driver import Driver, given


def diamond(scheduling: Scheduling, **policies: Any) -> Driver:
    """a and b are first; c needs a, d needs both."""
    return given(
        step("a"),
        step("b"),
        step("c", after=("a",)),
        step("d", after=("a", "b")),
        mode="dag",
        scheduling=scheduling,
        **policies,
    )


@pytest.mark.requirement("A10")
def test_layers_wait_for_the_whole_layer_before_them() -> None:
    run = diamond("layered")
    run.start()
    run.succeed("a")
    assert run.open() == ["b/1"]
    run.succeed("b")
    assert run.open() == ["c/1", "d/1"]
    run.succeed("d", "c")
    run.expect("""
        started + a/1 b/1
        ok a/1
        ok b/1 + c/1 d/1
        ok d/1
        ok c/1
        finished succeeded
    """)


@pytest.mark.requirement("A10")
def test_eager_steps_wait_for_what_they_need_alone() -> None:
    run = diamond("eager")
    run.start()
    run.succeed("a")
    assert run.open() == ["b/1", "c/1"]
    run.succeed("c", "b", "d")
    run.expect("""
        started + a/1 b/1
        ok a/1 + c/1
        ok c/1
        ok b/1 + d/1
        ok d/1
        finished succeeded
    """)


@pytest.mark.requirement("E14")
@pytest.mark.parametrize("scheduling", ["layered", "eager"])
def test_no_more_at_once_than_the_layer_concurrency(scheduling: Scheduling) -> None:
    run = diamond(scheduling, max_concurrency=1)
    run.start()
    order = []
    while run.status == "running":
        [attempt] = run.open()
        path = attempt.partition("/")[0]
        order.append(path)
        run.succeed(path)
    assert order == ["a", "b", "c", "d"]


@pytest.mark.requirement("C15")
@pytest.mark.parametrize("scheduling", ["layered", "eager"])
def test_a_failed_dependency_starts_nothing_that_needs_it(scheduling: Scheduling) -> None:
    run = diamond(scheduling)
    run.start()
    run.fail("a")
    run.succeed("b")
    assert run.status == "failed"
    assert run.statuses() == {"a": "failed", "b": "succeeded"}


@pytest.mark.requirement("C15")
@pytest.mark.parametrize("scheduling", ["layered", "eager"])
def test_continue_skips_what_needs_a_failed_step(scheduling: Scheduling) -> None:
    run = diamond(scheduling, failure_mode="continue")
    run.start()
    run.fail("b")
    run.succeed("a", "c")
    assert run.statuses() == {"a": "succeeded", "b": "skipped", "c": "succeeded", "d": "skipped"}
    assert (run.status, run.state.outcome) == ("succeeded", "partial")


@pytest.mark.requirement("G5")
def test_the_three_modes_order_their_children() -> None:
    def opened(mode: str) -> list[str]:
        run = given(step("a"), step("b"), mode=mode)
        run.start()
        return run.open()

    assert opened("sequence") == ["a/1"]
    assert opened("parallel") == ["a/1", "b/1"]
    assert opened("dag") == ["a/1", "b/1"]


def test_a_nested_dag_is_one_child_of_the_outer_one() -> None:
    run = given(
        scope("inner", step("x"), step("y", after=("x",)), mode="dag", scheduling="layered"),
        step("z", after=("inner",)),
        mode="dag",
    )
    run.start()
    run.succeed("inner/x", "inner/y", "z")
    run.expect("""
        started
        open inner + inner/x/1
        ok inner/x/1 + inner/y/1
        ok inner/y/1
        scope inner succeeded + z/1
        ok z/1
        finished succeeded
    """)
