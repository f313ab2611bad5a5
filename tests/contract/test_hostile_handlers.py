"""A handler may do anything that a program can. Its own step pays for that, and nobody else."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest

from tenuto import Engine, SagaBuilder, SagaContext
from tenuto.errors import RateLimitedError, StepError, TransientError
from tenuto.views.results import StepResult

from .conftest import MakeEngine

Function = Callable[..., Any]


async def healthy() -> str:
    return "well"


HEALTHY = SagaBuilder("healthy").step("y", healthy).build()


def hostile(function: Function, **options: Any) -> Any:
    return SagaBuilder("hostile").step("x", function, **{"retry": 0, **options}).build()


async def suffered(make_engine: MakeEngine, function: Function, **options: Any) -> StepResult:
    """What became of a step with this handler. The engine is as well as before, and says so."""
    engine = await make_engine(hostile(function, **options), HEALTHY)
    result = await engine.execute("hostile")
    assert (await engine.execute("healthy")).succeeded
    status = await engine.get(result.execution_id).status()
    assert status["status"] == result.status
    assert await engine.get(result.execution_id).history()
    return result.steps["x"]


# -- What it raises ----------------------------------------------------------------------------------------------------


class Custom(BaseException):
    """Of somebody who did not read which class to derive from."""


class Mute(Exception):
    """Cannot be printed, and goes to extremes over it."""

    def __str__(self) -> str:
        raise SystemExit("never")


class Endless(Exception):
    def __str__(self) -> str:
        return "x" * 5_000_000


class Forged(StepError):
    """Says of itself what no error says."""

    def __init__(self) -> None:
        super().__init__("forged")
        self.message = Mute()  # type: ignore[assignment]  # which is the point
        self.code = Mute()  # type: ignore[assignment]  # as above
        self.retry_after = object()  # type: ignore[assignment]  # as above


def _nested(depth: int) -> BaseException:
    error: Exception = ValueError("at the bottom")
    for _ in range(depth):
        error = ExceptionGroup("group", [error])
    return error


def _chained(length: int) -> BaseException:
    error: BaseException = ValueError("the first")
    for number in range(length):
        later = ValueError(str(number))
        later.__cause__ = error
        error = later
    return error


def _recursion() -> BaseException:
    try:
        return _recursion()
    except RecursionError as error:
        return error


RAISED: dict[str, Callable[[], BaseException]] = {
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "MemoryError": MemoryError,
    "a BaseException of his own": Custom,
    "cannot be printed": Mute,
    "5 MB of text": Endless,
    "an error of ours with strange fields": Forged,
    "groups in groups": lambda: _nested(3_000),
    "a long chain": lambda: _chained(50_000),
    "recursion": _recursion,
    "a lone surrogate": lambda: ValueError("\ud800"),
    "a NUL": lambda: ValueError("a\0b"),
}


MANNERS = ["at once", "later", "in a thread"]


def _acting(manner: str, act: Callable[[str], Any]) -> Function:
    """A handler that does what its input says, in the loop or beside it."""

    async def at_once(what: str) -> Any:
        return act(what)

    async def later(what: str) -> Any:
        await asyncio.to_thread(lambda: None)
        return act(what)

    def in_thread(what: str) -> Any:
        return act(what)

    return {"at once": at_once, "later": later, "in a thread": in_thread}[manner]


async def _each(make_engine: MakeEngine, function: Function, kinds: Iterable[str]) -> dict[str, StepResult]:
    """All of them one after another in the same engine, with a healthy one after each."""
    engine = await make_engine(hostile(function), HEALTHY)
    found = {}
    for kind in kinds:
        result = await engine.execute("hostile", kind)
        assert (await engine.execute("healthy")).succeeded, kind
        assert (await engine.get(result.execution_id).status())["status"] == result.status
        found[kind] = result.steps["x"]
    return found


@pytest.mark.parametrize("manner", MANNERS)
async def test_whatever_it_raises_is_a_failure_of_its_step(make_engine: MakeEngine, manner: str) -> None:
    def act(what: str) -> None:
        raise RAISED[what]()

    found = await _each(make_engine, _acting(manner, act), RAISED)
    assert {what: step.status for what, step in found.items()} == dict.fromkeys(RAISED, "failed")
    assert all(step.error is not None and len(step.error.encode()) < 5_000 for step in found.values())
    assert found["recursion"].error_code == "RecursionError"


WAITS: list[Any] = [10**400, 1e300, float("nan"), float("inf"), -1, "soon", object(), [], True]


async def test_it_asks_to_wait_for_nonsense(make_engine: MakeEngine) -> None:
    """It waits as long as can be written down, or as long as if it had not asked; and can be cancelled meanwhile."""

    async def step(number: int) -> None:
        raise RateLimitedError("wait", retry_after=WAITS[number])

    engine = await make_engine(hostile(step, retry=3), HEALTHY)
    for number in range(len(WAITS)):
        handle = await engine.start("hostile", number)
        while (await handle.status())["steps"][0]["status"] != "retrying":
            assert (await engine.execute("healthy")).succeeded
        await handle.cancel("terminate")
        assert (await handle.result()).status == "canceled"


# -- What it returns ---------------------------------------------------------------------------------------------------


class Explosive:
    """Looks like a model, and is none."""

    def model_dump(self, **_: Any) -> Any:
        raise SystemExit("boom")


class Sly(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise KeyboardInterrupt

    def __iter__(self) -> Iterator[str]:
        raise MemoryError

    def __len__(self) -> int:
        return -1


def _in_lists(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def _holds_itself() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


RETURNED: dict[str, Callable[[], Any]] = {
    "NaN": lambda: [float("nan")],
    "Infinity": lambda: {"n": float("-inf")},
    "a lone surrogate": lambda: {"s": "\udfff"},
    "a NUL": lambda: "a\0b",
    "a NUL in a key": lambda: {"a\0": 1},
    "10,000 lists in one another": lambda: _in_lists(10_000),
    "a list that holds itself": _holds_itself,
    "5 MB of bytes": lambda: bytes(5_000_000),
    "2 MB of text": lambda: "x" * 2_000_000,
    "an object": object,
    "a function": lambda: healthy,
    "a generator": lambda: (n for n in range(3)),
    "a class": lambda: Explosive,
    "what refuses to be written": Explosive,
    "a mapping that lies": Sly,
    "an exception": lambda: ValueError("x"),
    "keys that are no text": lambda: {(1, 2): 3},
}


@pytest.mark.parametrize("manner", MANNERS)
async def test_a_result_that_cannot_be_kept_fails_its_step(make_engine: MakeEngine, manner: str) -> None:
    found = await _each(make_engine, _acting(manner, lambda what: RETURNED[what]()), RETURNED)
    assert {what: step.status for what, step in found.items()} == dict.fromkeys(RETURNED, "failed")
    assert all(step.error_code for step in found.values())
    gc.collect()  # what it left behind breaks nobody either


NUMBERS = [2**63, -(2**63) - 1, 2**64 - 1, 2**400, 1e308, 5e-324]


async def test_a_number_is_kept_or_refused_and_never_changed(make_engine: MakeEngine) -> None:
    found = await _each(make_engine, _acting("at once", lambda what: NUMBERS[int(what)]), map(str, range(len(NUMBERS))))
    for number, step in zip(NUMBERS, found.values(), strict=True):
        kept = step.status == "succeeded" and step.result == number
        assert kept or step.error_code == "invalid_result", number


async def test_progress_that_cannot_be_kept_is_its_own_error(make_engine: MakeEngine) -> None:
    async def step(ctx: SagaContext) -> None:
        await ctx.heartbeat({"n": float("nan")})

    assert (await suffered(make_engine, step)).error_code == "payload_invalid"


# -- What it does not do -----------------------------------------------------------------------------------------------


async def test_a_loop_without_an_end_in_a_thread(make_engine: MakeEngine) -> None:
    stop = threading.Event()

    def step() -> None:
        while not stop.is_set():
            pass

    try:
        found = await suffered(make_engine, step, timeout="50ms")
        assert found.status in ("failed", "timed_out")
    finally:
        stop.set()


async def test_a_handler_that_will_not_be_cancelled(make_engine: MakeEngine) -> None:
    release = asyncio.Event()
    ended = asyncio.Event()

    async def step() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        ended.set()

    found = await suffered(make_engine, step, timeout="50ms")
    assert found.status in ("failed", "timed_out")
    release.set()
    await ended.wait()


async def test_a_handler_that_cancels_tasks_of_its_own_ends(make_engine: MakeEngine) -> None:
    async def step() -> None:
        task = asyncio.current_task()
        assert task is not None
        for _ in range(5):
            task.cancel()
        await asyncio.to_thread(lambda: None)

    assert (await suffered(make_engine, step)).status == "failed"


async def test_a_handler_that_shuts_the_executor_of_the_loop(make_engine: MakeEngine) -> None:
    async def step() -> None:
        await asyncio.get_running_loop().shutdown_default_executor()

    assert (await suffered(make_engine, step)).status == "succeeded"


async def test_a_hundred_hostile_ones_at_once(make_engine: MakeEngine) -> None:
    """All kinds in one engine, beside healthy ones."""
    kinds = list(RAISED)

    async def step(number: int) -> None:
        await asyncio.to_thread(lambda: None)
        raise RAISED[kinds[number % len(kinds)]]()

    engine: Engine = await make_engine(hostile(step), HEALTHY)
    bad = [await engine.start("hostile", number) for number in range(100)]
    good = [await engine.start("healthy") for _ in range(100)]
    assert {(await handle.result()).status for handle in bad} == {"failed"}
    assert {(await handle.result()).status for handle in good} == {"succeeded"}


async def test_an_undo_and_a_probe_may_be_hostile_too(make_engine: MakeEngine) -> None:
    async def make() -> int:
        return 1

    async def fail() -> None:
        raise TransientError("no")

    async def undo() -> None:
        raise Custom

    saga = SagaBuilder("undone").step("a", make, compensate=undo).step("b", fail, depends_on=["a"], retry=0)
    engine = await make_engine(saga, HEALTHY)
    result = await engine.execute("undone")
    assert result.status in ("failed", "waiting_approval")
    kinds = [review["kind"] async for review in engine.reviews()]
    assert kinds == ["compensation_failed"]
    assert (await engine.execute("healthy")).succeeded
