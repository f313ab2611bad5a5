"""Starts the processes, hurts them, and puts others in their place."""

import os
import signal
import time
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from .roles import Role, perform

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

END_S = 180.0  # in which a process that was told to end has ended

_processes = get_context("forkserver")
_processes.set_forkserver_preload(["tests.chaos.roles"])


class Troupe:
    """Processes by name. `wrong` is what they did that they should not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, tuple[Role, ForkServerProcess]] = {}
        self.wrong: list[str] = []
        self.stops: list[float] = []  # how long each that was told to end took

    def start(self, role: Role) -> int:
        process = _processes.Process(target=perform, args=(role,), name=role.name)
        process.start()
        self._running[role.name] = (role, process)
        assert process.pid is not None
        return process.pid

    def names(self, play: str) -> list[str]:
        return [name for name, (role, _) in self._running.items() if role.play == play]

    def kill(self, name: str) -> int:
        """Gives the process that is no more. Another has taken its place."""
        role, process = self._running.pop(name)
        assert process.pid is not None
        self._look(name, process)
        process.kill()
        process.join()
        self.start(role)
        return process.pid

    def freeze(self, name: str) -> int:
        return self._send(name, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self._send(name, signal.SIGCONT)

    def end(self, name: str) -> Role:
        """Tells it to end, and waits until it has."""
        began = time.monotonic()
        self._send(name, signal.SIGTERM)
        role, process = self._running.pop(name)
        process.join(END_S)
        if process.exitcode is None:
            self.wrong.append(f"{name} had not ended {END_S:.0f} s after it was told to")
            process.kill()
            process.join()
        elif process.exitcode not in (0, -signal.SIGTERM):  # the latter was not up yet, and had nothing
            self.wrong.append(f"{name} ended with {process.exitcode}\n{self._note(name)}")
        self.stops.append(time.monotonic() - began)
        return role

    def kill_all(self) -> None:
        for _, process in self._running.values():
            process.kill()
            process.join()

    def check(self) -> None:
        """Whoever ended without having been told to is noted, and replaced."""
        for name, (role, process) in list(self._running.items()):
            if self._look(name, process):
                self.start(role)

    def _look(self, name: str, process: "ForkServerProcess") -> bool:
        ended = process.exitcode is not None
        if ended:
            self.wrong.append(f"{name} ended by itself with {process.exitcode}\n{self._note(name)}")
        return ended

    def _note(self, name: str) -> str:
        note = self._folder / f"failed-{name}"
        return note.read_text() if note.exists() else ""

    def _send(self, name: str, what: signal.Signals) -> int:
        _, process = self._running[name]
        assert process.pid is not None
        with suppress(ProcessLookupError):  # it ended by itself, which is found out elsewhere
            os.kill(process.pid, what)
        return process.pid
