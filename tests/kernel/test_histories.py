"""Histories that were recorded once are folded for ever, and come out as they did on the first day."""

from typing import get_args

import pytest

from tenuto.kernel.codec import decode_entries, decode_snapshot, encode_entries, encode_snapshot
from tenuto.kernel.events import Event
from tenuto.kernel.evolve import fold
from tenuto.kernel.state import Execution

from . import history, laws, record
from .scenarios import PROGRAMS

NAMES = history.names()


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_history_means_what_it_meant(name: str) -> None:
    kept = history.load(name)
    plan = history.plan_of(kept)
    decisions = history.decisions_of(kept)
    assert [decode_entries(encode_entries(decision)) for decision in decisions] == decisions
    entries = [entry for decision in decisions for entry in decision]
    state = fold(Execution(plan), entries)
    assert history.portrait(state) == kept["final"]
    laws.check_state(state)
    loaded = decode_snapshot(plan, encode_snapshot(state))
    assert loaded is not None
    assert history.portrait(loaded) == kept["final"]


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_history_obeys_the_tables_and_grants_nothing_twice(name: str) -> None:
    kept = history.load(name)
    state, ledger = Execution(history.plan_of(kept)), laws.Ledger()
    for decision in history.decisions_of(kept):
        for entry in decision:
            open_before = {key for key in state.agenda if not isinstance(key, str)}
            laws.check_transitions(laws.step_by_step(state, entry))
            ledger.check(state, entry, open_before)


def test_every_scenario_is_recorded() -> None:
    assert sorted(PROGRAMS) == NAMES, "python -m tests.kernel.record --missing"


def test_every_event_type_is_in_a_recorded_history() -> None:
    seen = {
        type(entry.event)
        for name in NAMES
        for decision in history.decisions_of(history.load(name))
        for entry in decision
    }
    assert sorted(event.__name__ for event in set(get_args(Event)) - seen) == []


def test_a_recorded_history_is_never_overwritten() -> None:
    with pytest.raises(SystemExit, match="never changed"):
        record.main([NAMES[0]])
    with pytest.raises(SystemExit, match="usage"):
        record.main([])
    with pytest.raises(SystemExit, match="usage"):
        record.main(["no_such_scenario"])


def test_what_would_be_recorded_today_folds_to_what_it_says() -> None:
    run = PROGRAMS["order_confirmed"]()
    made = history.recorded("order_confirmed", run)
    plan = history.plan_of(made)
    entries = [entry for decision in history.decisions_of(made) for entry in decision]
    assert history.portrait(fold(Execution(plan), entries)) == made["final"]
