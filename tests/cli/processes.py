"""The command as a process of its own, and what a terminal shows of it."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
TENUTO = str(Path(sys.executable).parent / "tenuto")


class Running(NamedTuple):
    """A process, and what it had written when it was ready."""

    process: "subprocess.Popen[str]"
    seen: str


@contextmanager
def running(*arguments: str, ready: str, folder: Path = ROOT, **environment: str) -> "Iterator[Running]":
    """A process that was started and has said that it is ready. It is killed if it is still there at the end."""
    command = [TENUTO, *arguments]
    given = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
    process = subprocess.Popen(
        command, cwd=folder, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    try:
        assert process.stdout is not None
        seen = ""
        while ready not in seen:
            line = process.stdout.readline()
            if not line:
                raise AssertionError(f"{command} ended before it was ready: {seen}{process.communicate()[1]}")
            seen += line
        yield Running(process, seen)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def on_terminal(
    *arguments: str, columns: int = 80, folder: Path = ROOT, interrupt_at: str | None = None, **environment: str
) -> tuple[int, str]:
    """The exit code, and all that was written to a terminal of that width; interrupted as soon as a text is seen."""
    terminal, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    given = {**os.environ, "TERM": "xterm-256color", **environment}
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        given.pop(name, None)
    process = subprocess.Popen([TENUTO, *arguments], cwd=folder, env=given, stdin=inner, stdout=inner, stderr=inner)
    os.close(inner)
    written = b""
    while part := _read(terminal):
        written += part
        if interrupt_at is not None and interrupt_at in written.decode(errors="ignore"):
            process.send_signal(signal.SIGINT)
            interrupt_at = None
    os.close(terminal)
    return process.wait(), written.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # how Linux says that nobody holds the other end any more
        return b""
