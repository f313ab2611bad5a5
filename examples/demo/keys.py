"""One key from the terminal, without stopping anything else. Where that cannot be had, nobody is asked."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

try:
    import termios
    import tty
except ImportError:  # Windows
    can_ask = False
else:
    can_ask = sys.stdin.isatty()


async def yes_or_no() -> bool:
    """Waits for y or n."""
    answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    stdin = sys.stdin.fileno()

    def read() -> None:
        key = os.read(stdin, 1).lower()  # nothing, if the terminal is gone
        if key in (b"y", b"n", b"") and not answered.done():
            answered.set_result(key == b"y")

    with _single_keys(stdin):
        asyncio.get_running_loop().add_reader(stdin, read)
        try:
            return await answered
        finally:
            asyncio.get_running_loop().remove_reader(stdin)


@contextmanager
def _single_keys(stdin: int) -> Iterator[None]:
    before = termios.tcgetattr(stdin)
    tty.setcbreak(stdin, termios.TCSADRAIN)  # what was typed meanwhile counts
    try:
        yield
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
