"""An event loop, with an end: handlers may ignore that they are told to."""

import asyncio
import os
import sys
import traceback
from collections.abc import Coroutine
from typing import Any, TypeVar

from .output import discard_unwritten, print_to_stderr

T = TypeVar("T")

END_SECONDS = 5.0  # for whatever was told to end


def run(main: Coroutine[Any, Any, T]) -> T:
    """On uvloop, which costs a worker and a service less; on Windows there is none."""
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
    """A handler may ignore that it is told to end. The process ends all the same: nothing of it is kept any more."""
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
