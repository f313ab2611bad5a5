"""A measured process, seen from the measuring one: it is started, asked, and ended, always within bounds."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from time import monotonic, sleep
from types import TracebackType
from typing import Self

from benchmarks.runner import Answer

ROOT = Path(__file__).parent.parent
OPEN_WITHIN_S = 60.0
CLOSE_WITHIN_S = 20.0


class Unavailable(Exception):
    """This system, or this workload on it, cannot be measured here; the message says why."""


class Process:
    """A child in a process group of its own. Its output is kept for the day it fails."""

    def __init__(self, command: list[str], *, piped: bool = False, **environment: str) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self.popen = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else self._log,
            stderr=self._log,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.popen.pid

    def last_words(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), 2_000, max(0, size - 2_000)).decode(errors="replace").strip()
        return text.splitlines()[-1] if text else "it said nothing"

    def has_ended(self, within: float = 0.0) -> bool:
        """Looks without reaping: until it is reaped, its number, and with it its group's, is nobody else's."""
        give_up_at = monotonic() + within
        while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if monotonic() >= give_up_at:
                return False
            sleep(0.01)
        return True

    def kill(self) -> None:
        """`kill -9` to it and its children, which have no chance to say goodbye."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self.popen.returncode is not None:
            return
        os.killpg(self.pid, number)
        self.has_ended(CLOSE_WITHIN_S)
        os.killpg(self.pid, signal.SIGKILL)  # whoever of the group is left
        self.popen.wait()
        for stream in (self.popen.stdin, self.popen.stdout, self._log):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Program(Process):
    """A process that runs `runner.serve`."""

    def __init__(self, module: str, *arguments: str, python: str = sys.executable, **environment: str) -> None:
        super().__init__([python, "-m", module, *arguments], piped=True, **environment)
        try:
            self.hear(OPEN_WITHIN_S)
        except BaseException:
            self.kill()
            raise

    def ask(self, command: str, *, within: float, **arguments: object) -> Answer:
        self.tell(command, **arguments)
        return self.hear(within)

    def tell(self, command: str, **arguments: object) -> None:
        assert self.popen.stdin is not None
        with suppress(BrokenPipeError):  # it died; `hear` says with which words
            self.popen.stdin.write(json.dumps({"command": command, **arguments}).encode() + b"\n")
            self.popen.stdin.flush()

    def close(self) -> None:
        """The end of its input tells it to close; that failing, a signal does."""
        assert self.popen.stdin is not None
        if self.popen.returncode is None:
            with suppress(BrokenPipeError):
                self.popen.stdin.close()
            self.has_ended(CLOSE_WITHIN_S)
        super().close()

    def hear(self, within: float) -> Answer:
        assert self.popen.stdout is not None
        line = b""
        give_up_at = monotonic() + within
        with DefaultSelector() as selector:
            selector.register(self.popen.stdout, EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, give_up_at - monotonic())):
                    raise Unavailable(f"no answer within {within:.0f} s")
                part = os.read(self.popen.stdout.fileno(), 1 << 16)
                if not part:
                    raise Unavailable(f"the process ended: {self.last_words()}")
                line += part
        answer: Answer = json.loads(line)
        if "not_built" in answer:
            raise Unavailable(f"not built yet {answer['not_built']}".strip())
        if "failed" in answer:
            raise Unavailable(answer["failed"])
        return answer
