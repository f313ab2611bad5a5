"""Chance in the length of waits, so that many processes do not all come at one moment."""

import random


def spread(seconds: float, least: float = 0.5, most: float = 1.5) -> float:
    """About so long: those who began together, or were cut off together, go apart."""
    return seconds * random.uniform(least, most)  # noqa: S311  (nobody gains by guessing it)
