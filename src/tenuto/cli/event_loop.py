"""The event loop that commands run on. It ends even if a handler ignores its cancellation."""

import os
import sys
import traceback
from collections.abc import Coroutine
from typing import Any, TypeVar

from .output import discard_unwritten, print_to_stderr

T = TypeVar("T")

END_SECONDS = 5.0  # for canceled tasks


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a command on uvloop, which is faster; Windows has none. Help is shown without loading either."""
    import asyncio

    if sys.platform == "win32":
        make = None
    else:
        import uvloop

        make = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=make) as runner:
        return runner.run(_and_end(main))


async def _and_end(main: Coroutine[Any, Any, T]) -> T:
    try:
        ended = await main
    except BaseException as error:
        await _end_the_rest(getattr(error, "exit_code", 1))
        raise
    await _end_the_rest(ended if isinstance(ended, int) else 0)
    return ended


async def _end_the_rest(code: int) -> None:
    """Cancels all other tasks, and ends the process if they do not end in time."""
    import asyncio

    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    left = (await asyncio.wait(rest, timeout=END_SECONDS))[1] if rest else ()
    if left:
        if sys.exception() is not None:
            print_to_stderr(traceback.format_exc())
        names = ", ".join(sorted(task.get_name() for task in left))
        print_to_stderr(f"tenuto: did not end when it was told to, and is left behind: {names}")
        discard_unwritten()
        os._exit(code)
