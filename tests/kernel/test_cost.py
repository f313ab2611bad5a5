"""What a fact costs depends on what it changes, not on the size of the plan, the fan-out or the history.

Cost is counted in calls of Python functions, so it is the same on every machine and at any load.
"""

import gc
import sys
from types import FrameType

import msgspec
from msgspec import Raw

from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref
from tenuto.kernel.decide import decide
from tenuto.kernel.definition import Definition, Step
from tenuto.kernel.plan import Plan
from tenuto.kernel.state import Execution

SLACK = 4  # a counter that comes to its end, a heap that is one level deeper


def calls_of(state: Execution, fact: f.Fact) -> int:
    """How many Python functions are called to decide this fact."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    gc.disable()  # it may call functions, too, and comes when it likes
    sys.setprofile(note)
    try:
        decide(state, fact, fact.at)
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def started(definition: Definition, input: object = None) -> Execution:
    state = Execution(Plan(definition))
    raw = Raw(msgspec.json.encode(input))
    decide(state, f.Start(at=1, execution="x", tenant="t", input=raw), 1)
    return state


def succeed_next(state: Execution, at: int) -> f.Reported:
    ref = next(key for key in state.agenda if isinstance(key, Ref))
    return f.Reported(at=at, ref=ref, outcome=f.Succeeded(result=Raw(b"1")))


def fan_out(size: int) -> Execution:
    step = Step(id="each", handler="h", foreach="input", max_concurrency=50)
    return started(Definition(name="fan", mode="dag", steps=(step,)), list(range(size)))


def chain(length: int) -> Execution:
    steps = tuple(Step(id=f"s{number}", handler="h") for number in range(length))
    return started(Definition(name="chain", mode="sequence", steps=steps))


def wide(width: int) -> Execution:
    """Many steps at once, then one that waits for all of them."""
    names = tuple(f"s{number}" for number in range(width))
    steps = (*(Step(id=name, handler="h") for name in names), Step(id="join", handler="h", depends_on=names))
    return started(Definition(name="wide", mode="dag", steps=steps))


def test_a_clone_costs_the_same_in_a_small_and_a_large_fan_out() -> None:
    small, large = fan_out(200), fan_out(20_000)
    assert abs(calls_of(small, succeed_next(small, 2)) - calls_of(large, succeed_next(large, 2))) <= SLACK


def test_a_step_costs_the_same_in_a_short_and_a_long_plan() -> None:
    short, long = chain(10), chain(2_000)
    assert abs(calls_of(short, succeed_next(short, 2)) - calls_of(long, succeed_next(long, 2))) <= SLACK


def test_a_step_costs_the_same_beside_few_and_beside_many() -> None:
    few, many = wide(10), wide(2_000)
    assert abs(calls_of(few, succeed_next(few, 2)) - calls_of(many, succeed_next(many, 2))) <= SLACK


def test_a_step_costs_the_same_after_a_long_history() -> None:
    state = chain(2_000)
    first = calls_of(state, succeed_next(state, 2))
    for at in range(3, 1_500):
        decide(state, succeed_next(state, at), at)
    assert abs(calls_of(state, succeed_next(state, 2_000)) - first) <= SLACK


def test_a_late_answer_to_a_large_fan_out_costs_nothing_more() -> None:
    small, large = fan_out(200), fan_out(20_000)
    stale = f.Reported(at=2, ref=Ref("each#0", "forward", 9), outcome=f.Succeeded())
    assert calls_of(small, stale) == calls_of(large, stale)
