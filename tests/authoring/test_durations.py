"""Durations as people write them."""

from datetime import timedelta
from typing import Any

import pytest

from tenuto.values.durations import milliseconds, patience


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("200ms", 200),
        ("5s", 5_000),
        ("1.5s", 1_500),
        ("10m", 600_000),
        ("24h", 86_400_000),
        ("2d", 172_800_000),
        ("1h30m", 5_400_000),
        (" 1 h 30 m ", 5_400_000),
        ("0s", 0),
        (2, 2_000),
        (0.25, 250),
        (0, 0),
        (timedelta(minutes=1), 60_000),
        (timedelta(microseconds=1_500), 2),
    ],
)
def test_what_is_written_is_what_is_meant(written: Any, meant: int) -> None:
    assert milliseconds(written) == meant


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("5", "'5' is not a duration: write \"200ms\""),
        ("", "is not a duration"),
        ("5 parsecs", "is not a duration"),
        ("-5s", "is not a duration"),
        ("1s5", "is not a duration"),
        (-1, "is negative"),
        (timedelta(seconds=-1), "is negative"),
        (float("nan"), "must be finite"),
        (float("inf"), "must be finite"),
        (0.0001, "shorter than a millisecond"),
        (True, "a bool is not a duration"),
        (None, "a NoneType is not a duration"),
        ([1], "a list is not a duration"),
    ],
)
def test_what_is_wrong_is_said(written: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why.replace("(", r"\(")):
        milliseconds(written)


@pytest.mark.parametrize(
    ("left", "waits"), [(2e-25, 1), (0.0004, 1), (timedelta(microseconds=1), 1), (0, 0), (0.001, 1), ("2s", 2_000)]
)
def test_what_is_left_of_a_time_may_be_very_little(left: Any, waits: int) -> None:
    assert patience(left) == waits
