"""The length of a history: what counts, which commands are refused when it is nearly full, and how it ends."""

from collections.abc import Callable

import pytest

from tenuto.kernel import facts as f
from tenuto.kernel.codec import decode_snapshot, encode_snapshot
from tenuto.kernel.decide import length

from .build import approval, pause_for, scope, step, unsafe, wait_for
from .driver import Driver, given, raw


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten events are all that a history holds, and nine all that commands may fill."""
    monkeypatch.setattr(length, "MAX_HISTORY_EVENTS", 10)


@pytest.fixture
def size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length, "MAX_HISTORY_BYTES", 10_000)


def code_of(answer: f.Answer) -> str:
    return answer.code if isinstance(answer, f.Refused) else "applied"


def long_one() -> Driver:
    """Nine events: started, waiting, and seven signals that nothing waits for."""
    run = given(wait_for("w", "go"), approval("ok"), step("a", undo=True))
    run.start()
    for _ in range(7):
        run.signal("early")
    assert len(run.history) == 9
    return run


COMMANDS: dict[str, Callable[[Driver], f.Answer]] = {
    "signal that is kept": lambda run: run.signal("early"),
    "signal that a step waits for": lambda run: run.signal("go"),
    "pause": lambda run: run.pause(),
}


@pytest.mark.usefixtures("events")
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_refused_when_the_history_is_nearly_full(command: str) -> None:
    run = long_one()
    answer = COMMANDS[command](run)
    assert isinstance(answer, f.Refused)
    assert answer.code == "history_limit"
    assert "9 events" in answer.message
    assert run.status == "running", "whoever sends it does not end the execution"


@pytest.mark.usefixtures("events")
def test_a_signal_that_was_heard_is_heard_though_the_history_is_nearly_full() -> None:
    run = given(wait_for("w", "go"), wait_for("v", "stop"))
    run.start()
    run.signal("go", id="first")
    for _ in range(7):
        run.signal("early")
    assert run.signal("go", id="first") == f.APPLIED


@pytest.mark.usefixtures("events")
@pytest.mark.parametrize("mode", ["drain", "terminate", "compensate"])
def test_a_cancel_is_never_refused(mode: str) -> None:
    run = long_one()
    run.cancel(mode)  # type: ignore[arg-type]  # one of the three
    assert run.status == "canceled"


@pytest.mark.usefixtures("events")
def test_a_decision_is_never_refused_and_the_execution_then_ends() -> None:
    run = given(approval("ok"), step("a"), step("b"))
    run.start()
    for _ in range(7):
        run.signal("early")
    assert len(run.history) == 9
    assert code_of(run.approve("ok")) == "applied"
    run.succeed("a")
    assert (run.status, run.state.failure and run.state.failure.code) == ("failed", "history_limit")


@pytest.mark.usefixtures("events")
def test_an_execution_that_fills_its_history_fails_and_undoes_what_it_did() -> None:
    run = given(step("a", undo=True), *(step(f"s{n}") for n in range(20)))
    run.start()
    run.succeed("a", *(f"s{n}" for n in range(8)))
    assert len(run.history) == 11
    run.skip_lines()
    run.succeed("s8")
    run.undo("a")
    run.expect("""
        ok s8/1
        undo because failed: a + a:undo/1
        ok a:undo/1
        review dead_letter . (history_limit)
        finished failed history_limit
    """)
    assert run.state.failure is not None
    assert (run.state.failure.error_class, run.state.failure.code) == ("NON_RETRYABLE", "history_limit")
    answer = run.retry()
    assert code_of(answer) == "history_limit"


@pytest.mark.usefixtures("events")
def test_what_runs_when_the_history_is_full_is_awaited() -> None:
    run = given(*(step(f"s{n}") for n in range(6)), scope("p", unsafe("pay"), step("q"), mode="parallel"))
    run.start()
    run.succeed(*(f"s{n}" for n in range(6)))
    run.begin("p/pay")
    run.succeed("p/q")
    assert len(run.history) >= 10
    assert (run.status, run.open()) == ("running", ["p/pay/1"])
    run.succeed("p/pay")
    assert (run.status, run.step("p/pay").status) == ("failed", "succeeded")


@pytest.mark.usefixtures("events")
def test_an_execution_that_is_paused_fails_when_it_is_resumed() -> None:
    run = given(pause_for("w", 1_000), *(step(f"s{n}") for n in range(9)), mode="parallel")
    run.start()
    run.pause()
    run.succeed(*(f"s{n}" for n in range(9)))
    assert (run.status, len(run.history) > 10) == ("paused", True)
    run.resume()
    assert (run.status, run.state.failure and run.state.failure.code) == ("failed", "history_limit")


@pytest.mark.usefixtures("size")
def test_bytes_count_like_events() -> None:
    run = given(wait_for("w", "go"), step("a"), step("b"))
    run.start({"text": "x" * 5_000})
    assert 5_000 < run.state.size < 5_500
    run.signal("early", "x" * 3_000)
    assert 8_000 < run.state.size < 8_500
    assert code_of(run.signal("early", "x" * 1_000)) == "applied"
    assert code_of(run.signal("early")) == "history_limit"


@pytest.mark.usefixtures("size")
def test_results_that_fill_the_history_end_the_execution() -> None:
    run = given(step("a"), step("b"), step("c"))
    run.start()
    run.report("a", f.Succeeded(result=raw("x" * 6_000)))
    assert run.status == "running"
    run.report("b", f.Succeeded(result=raw("x" * 6_000)))
    run.succeed("c")
    assert run.status == "failed"


def test_what_a_caller_sends_with_a_start_and_a_command_counts() -> None:
    run = given(step("a"))
    run.start(variables={"v": "x" * 100})
    before = run.state.size
    assert before > 100
    run.pause()
    assert run.state.size == before + len("maintenance")


def test_the_size_is_in_a_snapshot_and_the_bytes_of_early_signals_are_derived() -> None:
    run = given(wait_for("w", "go"), wait_for("v", "early"))
    run.start()
    run.signal("early", "x" * 100, id="s")
    assert run.state.signal_bytes == 1 + 102
    loaded = decode_snapshot(run.plan, encode_snapshot(run.state))
    assert loaded is not None
    assert (loaded.size, loaded.signal_bytes) == (run.state.size, run.state.signal_bytes)
    run.signal("go")
    assert run.state.signal_bytes == 0, "the wait for it has opened"
