"""Standard output and standard error as streams that can fail: a full disk, a closed pipe, a lost terminal."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO, cast

from tenuto.values.terminal import escape_lines

NAME = "standard output"


@contextmanager
def named(name: str) -> Iterator[None]:
    """Writes below fail with the name of their file. The operating system gives it only for files that are opened."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = name
        raise


class Output:
    """A stream whose failures carry its name."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with named(NAME):
            return self._stream.write(text)

    def flush(self) -> None:
        with named(NAME):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def named_output() -> Iterator[None]:
    """Below, `sys.stdout` is such a stream."""
    with redirect_stdout(cast("TextIO", Output(sys.stdout))):
        yield


def discard_unwritten() -> None:
    """Drops text that a failed stream still holds, which the interpreter would try to write again at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def print_to_stderr(text: str) -> None:
    """Prints lines to standard error. If that fails, only the exit code reports the error."""
    try:
        print(escape_lines(text), file=sys.stderr)
    except BrokenPipeError:
        raise
    except OSError:
        discard_unwritten()
