"""Where a handler raised, as text: which frames, in which order, and what is never in it."""

import asyncio
import json
from collections.abc import Callable

import pytest

from tenuto.kernel import facts as f
from tenuto.kernel.definition import Step
from tenuto.runtime.executor.error_trace import MAX_TRACE, error_trace
from tenuto.runtime.executor.outcomes import failed


def raised_by(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("it raised nothing")


def inner(secret: str) -> None:
    raise KeyError("city")


def outer() -> None:
    inner("canary-in-a-variable")


def test_the_innermost_frame_of_the_handlers_code_comes_first() -> None:
    head, first, second, third = error_trace(raised_by(outer)).splitlines()
    assert head == "KeyError: 'city'"
    assert first.startswith("  tests/runtime/test_error_trace.py:")
    assert (first.endswith(" in inner"), second.endswith(" in outer"), third.endswith(" in raised_by")) == (True,) * 3


def test_values_of_variables_and_lines_of_source_are_not_in_it() -> None:
    assert "canary" not in error_trace(raised_by(outer))


def test_frames_of_libraries_come_after_those_of_the_handler() -> None:
    lines = error_trace(raised_by(lambda: json.loads("{"))).splitlines()
    heading = lines.index("  in libraries:")
    assert all("tests/runtime" in line for line in lines[1:heading])
    assert any("json" in line for line in lines[heading:])


def test_texts_are_redacted() -> None:
    def leak() -> None:
        raise ValueError("password=canary")

    assert "canary" not in error_trace(raised_by(leak))


def test_a_deep_recursion_is_bounded() -> None:
    def again() -> None:
        again()

    trace = error_trace(raised_by(again))
    assert len(trace.encode()) <= MAX_TRACE
    assert "more" in trace


def test_causes_are_named() -> None:
    def wrap() -> None:
        try:
            outer()
        except KeyError as error:
            raise RuntimeError("no price") from error

    def replace() -> None:
        try:
            outer()
        except KeyError:
            raise RuntimeError("no price") from None

    assert "caused by: KeyError: 'city'" in error_trace(raised_by(wrap))
    assert "KeyError" not in error_trace(raised_by(replace))


async def test_each_error_of_a_group_is_named() -> None:
    async def fail() -> None:
        outer()

    async def several() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    with pytest.raises(ExceptionGroup) as raised:
        await several()
    trace = error_trace(raised.value)
    assert "in this group: KeyError: 'city'" in trace
    assert " in inner" in trace


def test_an_exception_that_cannot_be_read_is_classified_all_the_same() -> None:
    class Hostile(Exception):
        @property
        def __cause__(self) -> BaseException:  # type: ignore[override]
            raise SystemExit

        def __str__(self) -> str:
            raise SystemExit

    def fail() -> None:
        raise Hostile

    failure = failed(raised_by(fail), Step(id="a"), {})
    assert isinstance(failure, f.Failed)
    assert (failure.code, failure.trace) == ("Hostile", "")


def test_an_error_that_was_never_raised_has_no_trace() -> None:
    assert error_trace(KeyError("city")) == ""
