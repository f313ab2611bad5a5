"""Random jitter for waits, so that processes do not act at the same moment."""

import random


def spread(seconds: float, least: float = 0.5, most: float = 1.5) -> float:
    """Returns the duration multiplied by a random factor between `least` and `most`."""
    return seconds * random.uniform(least, most)  # noqa: S311  (not a secret)
