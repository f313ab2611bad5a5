"""Temporal's development server with a worker and a client in processes of their own.

*Tuned* lifts its rate caps: as shipped, each workflow task waits for a tick of 50 ms. In memory it is not durable at
all; on its SQLite file it is. A production cluster is another thing than this server.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.disk import files_bytes
from benchmarks.program import Process, Program
from benchmarks.servers import free_ports, wait_until
from benchmarks.system import Stage, System
from benchmarks.targets import SQLITE

from .install import python_environment

PROGRAM = "benchmarks.peers.temporal_program"
ALONE = ["--disable-config-file", "--disable-config-env"]  # whatever this machine's user has set up
ASK_WITHIN_S = 10
LIFTED = [
    "frontend.rps",
    "frontend.namespaceRPS",
    "frontend.globalNamespaceRPS",
    "history.rps",
    "history.persistenceMaxQPS",
    "history.timerProcessorMaxPollRPS",
    "history.timerProcessorMaxPollHostRPS",
    "history.transferProcessorMaxPollRPS",
    "history.transferProcessorMaxPollHostRPS",
    "matching.rps",
    "matching.persistenceMaxQPS",
]

prepare = partial(python_environment, "temporal")


@contextmanager
def stage(*, tuned: bool, in_file: bool = False, local: bool = False) -> Iterator[Stage]:
    with TemporaryDirectory(prefix="tenuto-bench-") as directory, _server(Path(directory), tuned, in_file) as server:
        address = server.address
        python = str(prepare() / "python")
        style = ["--local-activities"] if local else []
        with Stage(
            partial(Program, PROGRAM, "client", address, *style, python=python),
            start_worker=partial(Program, PROGRAM, "worker", address, python=python),
            server=server.pid,
            disk_bytes=(lambda: files_bytes(Path(directory))) if in_file else None,
        ) as stage:
            yield stage


class Server(Process):
    def __init__(self, directory: Path, tuned: bool, in_file: bool) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        options = ["--ip", "127.0.0.1", "--port", str(port), "--headless", "--log-level", "error", *ALONE]
        for key in LIFTED if tuned else []:
            options += ["--dynamic-config-value", f"{key}=100000"]
        if in_file:
            options += ["--db-filename", str(directory / "temporal.db")]
        self.binary = str(prepare() / "temporal")
        # The version check would ask the internet.
        super().__init__([self.binary, "server", "start-dev", *options], TEMPORAL_VERSION_CHECK_DISABLED="1")

    def is_ready(self) -> bool:
        """Its namespace answers."""
        question = ["operator", "namespace", "describe", "default", "--address", self.address, *ALONE]
        asked = subprocess.run([self.binary, *question], capture_output=True, check=False, timeout=ASK_WITHIN_S)
        return asked.returncode == 0


@contextmanager
def _server(directory: Path, tuned: bool, in_file: bool) -> Iterator[Server]:
    with Server(directory, tuned, in_file) as server:
        wait_until(server.is_ready, server, "the Temporal server")
        yield server


IN_MEMORY = partial(stage, tuned=True)

SYSTEMS = [
    System(
        name="Temporal dev server, in memory, tuned",
        ours=SQLITE,
        stages=dict.fromkeys(("W1", "W2", "W3", "W4"), IN_MEMORY),
        prepare=prepare,
        is_remote=True,
    ),
    System(
        name="Temporal dev server, in memory, tuned, local activities",
        ours=SQLITE,
        stages=dict.fromkeys(("W1", "W2"), partial(stage, tuned=True, local=True)),
        prepare=prepare,
        is_remote=True,
    ),
    System(
        name="Temporal dev server, in memory, as shipped",
        ours=SQLITE,
        stages=dict.fromkeys(("W1", "W2"), partial(stage, tuned=False)),
        prepare=prepare,
        is_remote=True,
    ),
    System(
        name="Temporal dev server, SQLite file, tuned",
        ours=SQLITE,
        stages=dict.fromkeys(("W1", "W2"), partial(stage, tuned=True, in_file=True)),
        prepare=prepare,
        is_remote=True,
    ),
]
