"""Graceful shutdown on SIGTERM and SIGINT."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping() -> Iterator[asyncio.Event]:
    """Yields an event that SIGTERM or Ctrl-C sets. A second signal ends the process immediately."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        stop.set()
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop
    finally:
        if not stop.is_set():
            for number in _STOP_SIGNALS:
                loop.remove_signal_handler(number)
