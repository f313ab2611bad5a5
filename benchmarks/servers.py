"""Servers of peers: on free ports of the loopback, and ready or given up within bounds."""

import socket
from collections.abc import Callable
from time import monotonic, sleep

from benchmarks.program import Process, Unavailable

READY_WITHIN_S = 60.0


def free_ports(number: int) -> list[int]:
    """Held together while they are chosen, so that they differ."""
    probes = [socket.socket() for _ in range(number)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def wait_until(is_ready: Callable[[], bool], process: Process, what: str) -> None:
    give_up_at = monotonic() + READY_WITHIN_S
    while not is_ready():
        if process.has_ended() or monotonic() > give_up_at:
            raise Unavailable(f"{what} did not start: {process.last_words()}")
        sleep(0.05)


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True
