"""The tables of what may follow what (B1): every line of them happens in a recorded history, and nothing else does."""

from collections.abc import Callable, Mapping
from typing import get_args

import pytest

from tenuto.kernel import events as e
from tenuto.kernel.codec import encode_snapshot
from tenuto.kernel.evolve import apply
from tenuto.kernel.state import (
    CLOSED,
    TERMINAL,
    CompensationStatus,
    Execution,
    ExecutionStatus,
    FanOutStatus,
    FanState,
    ScopeState,
    ScopeStatus,
    StepState,
    StepStatus,
)
from tenuto.kernel.transitions import (
    COMPENSATION_TRANSITIONS,
    EXECUTION_TRANSITIONS,
    FAN_OUT_TRANSITIONS,
    SCOPE_TRANSITIONS,
    STEP_TRANSITIONS,
    IllegalTransition,
    set_compensation,
    set_fan_out_status,
    set_scope_status,
    set_status,
)

from . import history, laws
from .build import scope, step
from .driver import given


def test_the_tables_have_every_status() -> None:
    assert set(EXECUTION_TRANSITIONS) == set(get_args(ExecutionStatus))
    assert set(STEP_TRANSITIONS) == set(get_args(StepStatus))
    assert set(COMPENSATION_TRANSITIONS) == set(get_args(CompensationStatus))
    assert set(SCOPE_TRANSITIONS) == set(get_args(ScopeStatus))
    assert set(FAN_OUT_TRANSITIONS) == set(get_args(FanOutStatus))


@pytest.mark.requirement("B1")
def test_a_terminal_execution_has_no_way_out_but_an_audited_retry() -> None:
    assert {status: EXECUTION_TRANSITIONS[status] for status in TERMINAL} == {
        "succeeded": (),
        "failed": ("running",),
        "canceled": (),
    }


@pytest.mark.requirement("B1")
def test_the_seeds_transitions_are_allowed() -> None:
    """000 section 3.1, with decisions 0-1 (retry) and S-9 (pausing what waits for a person)."""
    seeds = {
        ("running", "waiting_approval"),
        ("waiting_approval", "running"),
        ("running", "paused"),
        ("paused", "running"),
        ("running", "succeeded"),
        ("running", "failed"),
        ("running", "canceled"),
        ("paused", "canceled"),
        ("waiting_approval", "canceled"),
        ("failed", "running"),
        ("waiting_approval", "paused"),
        ("paused", "waiting_approval"),
    }
    assert {(old, new) for old, news in EXECUTION_TRANSITIONS.items() for new in news} == seeds


def test_a_closed_step_is_only_ever_pending_again() -> None:
    assert {STEP_TRANSITIONS[status] for status in CLOSED} == {("pending",)}


def test_every_line_of_the_tables_happens_in_a_recorded_history() -> None:
    """From one event to the next; of executions also from one decision to the next, which is what others see."""
    visited: set[laws.Transition] = set()
    for name in history.names():
        kept = history.load(name)
        state = Execution(history.plan_of(kept))
        for decision in history.decisions_of(kept):
            before = state.status if state.seq else "running"
            for entry in decision:
                visited.update(laws.step_by_step(state, entry))
            visited.add(laws.Transition("execution", before, state.status))
    assert sorted(laws.ALLOWED - visited) == []


STEP, FAN, SCOPE = given(step("a", undo=True), step("f", foreach="[1]"), scope("s", step("b"))).state.plan.root.children
Change = Callable[[str, str], str]


def _step(old: str, new: str) -> str:
    node = StepState(STEP, "a", status=old)  # type: ignore[arg-type]  # any status
    return _after(lambda: set_status(node, new), lambda: node.status)  # type: ignore[arg-type]


def _compensation(old: str, new: str) -> str:
    node = StepState(STEP, "a", undo=old)  # type: ignore[arg-type]  # any status
    return _after(lambda: set_compensation(node, new), lambda: node.undo)  # type: ignore[arg-type]


def _scope(old: str, new: str) -> str:
    node = ScopeState(SCOPE, "s", status=old)  # type: ignore[arg-type]  # any status
    return _after(lambda: set_scope_status(node, new), lambda: node.status)  # type: ignore[arg-type]


def _fan_out(old: str, new: str) -> str:
    node = FanState(FAN, "f", status=old)  # type: ignore[arg-type]  # any status
    return _after(lambda: set_fan_out_status(node, new), lambda: node.status)  # type: ignore[arg-type]


def _after(change: Callable[[], None], status: Callable[[], str]) -> str:
    """The status after a change, and `raised` before it if the change is refused."""
    try:
        change()
    except IllegalTransition:
        return f"raised {status()}"
    return status()


@pytest.mark.parametrize(
    ("change", "table"),
    [
        (_step, STEP_TRANSITIONS),
        (_compensation, {**COMPENSATION_TRANSITIONS, "none": COMPENSATION_TRANSITIONS["pending"]}),
        (_scope, SCOPE_TRANSITIONS),
        (_fan_out, FAN_OUT_TRANSITIONS),
    ],
)
def test_a_status_change_that_is_not_in_its_table_raises_and_changes_nothing(
    change: Change, table: Mapping[str, tuple[str, ...]]
) -> None:
    """A compensation leaves `none` by way of `pending`, in one event."""
    for old, legal in table.items():
        for new in table:
            assert change(old, new) == (new if new in (old, *legal) else f"raised {old}"), (old, new)


@pytest.mark.parametrize(
    "event",
    [
        e.Paused("maintenance", None),
        e.Resumed(1_000),
        e.RunOpened(2, "again"),
        e.ExecutionFinished("failed"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_that_would_change_a_succeeded_execution_raises_and_changes_nothing(event: e.Event) -> None:
    run = given(step("a"))
    run.start()
    run.succeed("a")
    before = encode_snapshot(run.state)
    with pytest.raises(IllegalTransition, match="cannot change from 'succeeded'"):
        apply(run.state, event)
    assert encode_snapshot(run.state) == before
