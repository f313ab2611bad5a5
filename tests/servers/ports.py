"""Ports for servers of tests."""

import random
import socket

# Below those that systems give to whoever connects to something: one of these might be taken before a server has it.
RANGE = (20_000, 30_000)


def free_port() -> int:
    while True:
        port = random.SystemRandom().randrange(*RANGE)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
