"""Waits and signals (A8, I8): timers, signals that come early, late or too often, and deadlines."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from tenuto.errors import ExpressionError
from tenuto.kernel import facts as f
from tenuto.kernel.decide import decide
from tenuto.kernel.decide.scopes.opening import instant_ms
from tenuto.kernel.definition import JSON, Step
from tenuto.kernel.events import NULL

from .build import pause_for, scope, step, wait_for
from .driver import Driver, given, raw
from .rendering import START


@pytest.mark.requirement("A8")
def test_a_wait_ends_when_its_time_has_come() -> None:
    run = given(pause_for("w", 1_000), step("a"))
    run.start()
    assert (run.status, run.wake_at) == ("running", 1_000)
    run.tick()
    run.expect("""
        started
        wait w timer due@1000
        waited w by timer + a/1
    """)


@pytest.mark.requirement("A8")
def test_a_duration_may_be_computed() -> None:
    run = given(pause_for("w", "${input.seconds * 1000}"))
    run.start({"seconds": 3})
    assert run.wake_at == 3_000


@pytest.mark.parametrize("duration", [-1, "soon", True, None])
def test_a_duration_that_is_none_fails_the_step(duration: JSON) -> None:
    run = given(pause_for("w", "${input}"))
    run.start(duration)
    assert run.lines()[1] == "refused w bad_duration -> fail"


def until(value: JSON, input: JSON = None) -> Driver:
    run = given(Step(id="w", type="wait", with_={"until": value}))
    run.start(input)
    return run


@pytest.mark.requirement("A8")
def test_a_wait_for_a_moment() -> None:
    assert until(START + 5_000).wake_at == 5_000
    assert until("1970-01-01T00:20:00Z").wake_at == 200_000
    assert until("${input.at}", {"at": "1970-01-01T01:20:00+01:00"}).wake_at == 200_000


def test_a_moment_that_is_past_is_now() -> None:
    run = until("1970-01-01T00:00:01Z")
    assert run.status == "succeeded"


def test_a_moment_that_is_none_fails_the_step() -> None:
    assert until("${input}", "tomorrow").lines()[1] == "refused w bad_time -> fail"
    assert until("${input}", None).lines()[1] == "refused w bad_time -> fail"
    assert until("${input}", True).lines()[1] == "refused w bad_time -> fail"


@for_all(
    st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)),  # noqa: DTZ001  (a zone is added)
    st.integers(-23 * 60, 23 * 60),
    st.sampled_from(["T", "t", " "]),
)
def test_rfc_3339_is_read_as_the_standard_library_reads_it(naive: datetime, offset: int, between: str) -> None:
    moment = naive.replace(microsecond=naive.microsecond // 1_000 * 1_000, tzinfo=timezone(timedelta(minutes=offset)))
    expected = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    text = moment.isoformat(between)
    assert instant_ms(text) == expected
    assert instant_ms(text.replace("+00:00", "Z")) == expected


@pytest.mark.parametrize(
    "text",
    [
        "2026-13-01T00:00:00Z",
        "2026-00-01T00:00:00Z",
        "2026-01-32T00:00:00Z",
        "2026-01-00T00:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T00:60:00Z",
        "2026-01-01T00:00:61Z",
        "2026-01-01T00:00:00",
        "2026-01-01",
        "",
        "now",
    ],
)
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError, match="RFC 3339"):
        instant_ms(text)


def test_milliseconds_are_a_moment() -> None:
    assert instant_ms(1.5e3) == 1_500


# -- Signals -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("A8")
def test_a_signal_ends_a_wait_and_its_payload_is_the_result() -> None:
    run = given(wait_for("w", "paid", set_variable="payment"), step("a", when="steps.w.result.amount == 5"))
    run.start()
    assert run.status == "running"
    run.signal("paid", {"amount": 5}, id="m1")
    run.expect("""
        started
        wait w paid
        waited w by m1 + a/1
    """)
    assert bytes(run.state.variables["payment"]) == b'{"amount":5}'


def test_the_name_of_a_signal_may_be_computed() -> None:
    run = given(wait_for("w", "paid-${input.id}"), step("a"))
    run.start({"id": 7})
    run.signal("paid-8")
    assert run.open() == []
    run.signal("paid-7")
    assert run.open() == ["a/1"]


def test_a_signal_that_comes_early_is_kept_and_the_oldest_is_taken_first() -> None:
    run = given(step("a"), wait_for("w", "go", set_variable="x"), wait_for("v", "go", set_variable="y"), step("z"))
    run.start()
    run.signal("go", 1)
    run.signal("go", 2)
    run.succeed("a")
    run.expect("""
        started + a/1
        signal go s1
        signal go s2
        ok a/1
        wait w go
        waited w by s1
        wait v go
        waited v by s2 + z/1
    """)
    assert {name: bytes(value) for name, value in run.state.variables.items()} == {"x": b"1", "y": b"2"}
    assert run.state.signals == {}


def test_a_kept_signal_that_comes_twice_is_kept_once() -> None:
    run = given(step("a"))
    run.start()
    assert run.signal("go", id="m1") == f.APPLIED
    assert run.signal("go", id="m1") == f.APPLIED
    assert len(run.state.signals["go"]) == 1


def test_a_signal_that_was_used_and_comes_again_is_the_same_message() -> None:
    run = given(wait_for("w", "go"), step("a"), wait_for("v", "go"))
    run.start()
    run.signal("go", 1, id="m1")
    assert run.signal("go", 1, id="m1") == f.APPLIED
    run.succeed("a")
    run.signal("go", 1, id="m1")
    assert run.step("v").status == "running"
    run.signal("go", 2, id="m2")
    assert run.status == "succeeded"
    assert run.signal("go", 2, id="m2") == f.APPLIED  # its sender was not told, and sends it again


def test_the_last_thousand_signals_are_known_again() -> None:
    run = given(scope("s", wait_for("w", "go"), repeat_until="false", max_visits=10_000))
    run.start()
    state = run.state

    def signal(number: int) -> int:
        return len(decide(state, f.Signal(at=START, name="go", id=f"m{number}", payload=NULL), START).entries)

    assert all(signal(number) for number in range(1_001))
    assert len(state.heard) == 1_000
    assert not signal(1)
    assert signal(0)


def signals(run: Driver, count: int, *, size: int = 0) -> list[str]:
    """The codes of the answers, each name used twice. Not by `run.tell`, which checks every law after each of them."""
    codes: list[str] = []
    for number in range(count):
        fact = f.Signal(at=run.now, name=f"n{number // 2}", id=f"i{number:05}", payload=raw("x" * size))
        answer = decide(run.state, fact, run.now).answer
        codes.append(answer.code if isinstance(answer, f.Refused) else "applied")
    return codes


def test_signals_that_come_early_are_bounded_in_number_over_all_names() -> None:
    run = given(wait_for("w", "go"))
    run.start()
    assert signals(run, 1_002) == ["applied"] * 1_000 + ["too_many_signals"] * 2


def test_signals_that_come_early_are_bounded_in_bytes_over_all_names() -> None:
    run = given(wait_for("w", "go"))
    run.start()
    size = 1024 * 1024 // 4 - 8  # with its quotes and its id a quarter of what is kept
    assert signals(run, 5, size=size) == ["applied"] * 4 + ["too_many_signals"]
    assert run.state.signal_bytes == 1024 * 1024


def test_a_signal_that_a_step_waits_for_is_taken_however_many_are_kept() -> None:
    run = given(wait_for("w", "go"), wait_for("v", "n0"), wait_for("u", "never"))
    run.start()
    signals(run, 1_000)
    answer = decide(run.state, f.Signal(at=run.now, name="go", id="now", payload=raw(None)), run.now).answer
    assert answer == f.APPLIED
    assert sum(len(kept) for kept in run.state.signals.values()) == 999, "the next step has taken one"
    again = f.Signal(at=run.now, name="x", id="one more", payload=raw(None))
    assert decide(run.state, again, run.now).answer == f.APPLIED


def test_a_signal_goes_to_the_wait_that_was_opened_first() -> None:
    run = given(wait_for("w", "go"), wait_for("v", "go"), mode="parallel")
    run.start()
    run.signal("go")
    assert run.statuses() == {"w": "succeeded", "v": "running"}
    run.signal("go")
    assert run.status == "succeeded"


def test_a_terminal_execution_takes_no_signals() -> None:
    run = given(step("a"))
    run.start()
    run.succeed("a")
    answer = run.signal("go")
    assert isinstance(answer, f.Refused)
    assert answer.code == "terminal"


@pytest.mark.requirement("C14")
def test_a_wait_for_a_signal_has_a_deadline() -> None:
    run = given(wait_for("w", "go", timeout_ms=1_000), step("a"))
    run.start()
    run.tick()
    run.expect("""
        started
        wait w go deadline@1000
        expired w deadline -> fail
        closing . failed deadline
        review dead_letter w (deadline)
        finished failed deadline
    """)
    assert run.state.waits == {}


def test_a_signal_that_arrived_in_time_wins_however_late_it_is_handled() -> None:
    run = given(wait_for("w", "go", timeout_ms=1_000))
    run.start()
    run.now = START + 5_000
    run.tell(f.Signal(at=START + 999, name="go", id="m", payload=NULL))
    assert run.status == "succeeded"
    run = given(wait_for("w", "go", timeout_ms=1_000))
    run.start()
    run.now = START + 5_000
    run.tell(f.Signal(at=START + 1_000, name="go", id="m", payload=NULL))
    assert run.status == "failed"


def test_a_signal_while_paused_is_taken_and_acts_on_resume() -> None:
    run = given(wait_for("w", "go"), step("a"))
    run.start()
    run.pause()
    run.signal("go")
    assert run.step("w").status == "succeeded"
    assert run.open() == []
    run.resume()
    assert run.open() == ["a/1"]


@pytest.mark.requirement("I8")
def test_a_wait_is_visible() -> None:
    run = given(wait_for("w", "go"), wait_for("v", "go"), mode="parallel")
    run.start()
    assert run.state.waits == {"go": {"w": None, "v": None}}
    assert run.step("w").waits_for == "go"
