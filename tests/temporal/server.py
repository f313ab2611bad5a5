"""A real Temporal server for tests: its own process, on a free port of the loopback, with nothing kept on disk."""

import os
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from tests.servers.ports import free_port

STARTS = 3  # a free port may be taken before the server has it
READY_WITHIN_S = 60.0
ALONE = ["--disable-config-file", "--disable-config-env"]  # whatever this machine's user has set up
OPTIONS = [
    *ALONE,
    "--headless",
    "--log-level=error",
    # A server looks for due timers once a second, as in production. Tests with short timers need not wait for that.
    '--dynamic-config-value=history.timerProcessorMaxTimeShift="10ms"',
]


@contextmanager
def temporal_server() -> Iterator[str]:
    """Gives the address of a server whose namespace `default` takes workflows."""
    binary = _binary()
    with TemporaryFile() as log:
        for _ in range(STARTS):
            port = free_port()
            server = subprocess.Popen(
                [binary, "server", "start-dev", "--ip=127.0.0.1", f"--port={port}", *OPTIONS],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C in the terminal is for pytest, which stops the server in its own order
                env={**os.environ, "TEMPORAL_VERSION_CHECK_DISABLED": "1"},  # it would ask the internet
            )
            try:
                if _is_ready(binary, server, port):
                    yield f"127.0.0.1:{port}"
                    return
            finally:
                server.kill()  # it keeps everything in memory: there is nothing to save
                server.wait()
        log.seek(0)
        pytest.fail(f"The Temporal server did not start:\n{log.read().decode(errors='replace')}", pytrace=False)


def _binary() -> Path:
    binary = Path(sysconfig.get_path("scripts"), "temporal")
    if not os.access(binary, os.X_OK):
        pytest.fail(f"These tests need a Temporal server, and {binary} is missing: run `make setup`.", pytrace=False)
    return binary


def _is_ready(binary: Path, server: subprocess.Popen[bytes], port: int) -> bool:
    """Waits until the namespace answers; False when the server ended, or took too long."""
    give_up_at = time.monotonic() + READY_WITHIN_S
    while server.poll() is None and time.monotonic() < give_up_at:
        asked = subprocess.run(
            [binary, "operator", "namespace", "describe", "default", f"--address=127.0.0.1:{port}", *ALONE],
            capture_output=True,
            check=False,
        )
        if asked.returncode == 0:
            return server.poll() is None  # or else it was another server that answered
    return False
