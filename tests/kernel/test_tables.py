"""The tables of what may follow what (B1): every line of them happens in a recorded history, and nothing else does."""

from typing import get_args

from tenuto.kernel.state import (
    CLOSED,
    EXECUTION_TRANSITIONS,
    STEP_TRANSITIONS,
    TERMINAL,
    UNDO_TRANSITIONS,
    Execution,
    ExecutionStatus,
    StepStatus,
    UndoStatus,
)

from . import history, laws


def test_the_tables_have_every_status() -> None:
    assert set(EXECUTION_TRANSITIONS) == set(get_args(ExecutionStatus))
    assert set(STEP_TRANSITIONS) == set(get_args(StepStatus))
    assert set(UNDO_TRANSITIONS) == set(get_args(UndoStatus))


def test_b1_a_terminal_execution_has_no_way_out_but_an_audited_retry() -> None:
    assert {status: EXECUTION_TRANSITIONS[status] for status in TERMINAL} == {
        "succeeded": (),
        "failed": ("running",),
        "canceled": (),
    }


def test_b1_the_seeds_transitions_are_allowed() -> None:
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
