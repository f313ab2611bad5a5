"""The event loop that commands run on."""

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    from .event_loop import run  # help is shown without an event loop

    return run(main)
