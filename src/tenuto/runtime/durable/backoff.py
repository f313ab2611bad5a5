"""How long a database is left alone that did not answer."""

from typing import Final

from tenuto.values.jitter import spread

SECONDS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


def pause_s(failures: int) -> float:
    """After so many failures in a row, the last one not counted."""
    return spread(SECONDS[min(failures, len(SECONDS) - 1)])
