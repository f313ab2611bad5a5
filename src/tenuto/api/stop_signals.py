"""The signals that ask a process to end."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_ASKING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping() -> Iterator[asyncio.Event]:
    """An event that SIGTERM and Ctrl-C set. A second one ends the process at once, whatever it is doing."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told() -> None:
        stop.set()
        for number in _ASKING:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in _ASKING:
        loop.add_signal_handler(number, told)
    try:
        yield stop
    finally:
        if not stop.is_set():
            for number in _ASKING:
                loop.remove_signal_handler(number)
