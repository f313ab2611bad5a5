"""The event loop that commands run on."""

import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """On uvloop, which costs a worker and a service less; on Windows there is none."""
    if sys.platform == "win32":
        import asyncio

        return asyncio.run(main)
    import uvloop

    return uvloop.run(main)
