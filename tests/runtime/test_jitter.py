"""Waits that are spread by chance."""

from tenuto.values.jitter import spread


def test_waits_differ_and_stay_within_their_bounds() -> None:
    waits = [spread(10) for _ in range(100)]
    assert len(set(waits)) > 90
    assert all(5 <= wait <= 15 for wait in waits)
    assert all(7.5 <= spread(10, 0.75, 1) <= 10 for _ in range(100))
    assert spread(0) == 0
