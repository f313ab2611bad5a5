"""`tenuto dev --reload`: runs the process again whenever a file of the app changes.

One process watches the files, and the app runs in a child process. Executions are in the database, so the next child
continues them. The socket belongs to the parent: requests wait while the app restarts.
"""

import asyncio
import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from .printer import Printer

if TYPE_CHECKING:
    import socket

POLL_SECONDS: Final = 0.25
_SUFFIXES: Final = (".py", ".json", ".toml")
_SKIPPED: Final = ("__pycache__", "node_modules", "site-packages")

VARIABLE: Final = "_TENUTO_RELOAD"  # what the parent tells its child: the number of the socket, and a word

Stamps = Mapping[Path, tuple[int, int]]


class AppFiles:
    """The files of an app: those below the folder that contains its top-level module."""

    def __init__(self, app: str) -> None:
        self.folder = _folder_of(app.partition(":")[0])

    def stamps(self) -> Stamps:
        """Returns each file with its time of change and its size."""
        found: dict[Path, tuple[int, int]] = {}
        for file in _files_in(self.folder):
            with contextlib.suppress(OSError):  # it was removed in the meantime
                stat = file.stat()
                found[file] = (stat.st_mtime_ns, stat.st_size)
        return found

    async def changed(self, before: Stamps) -> Path:
        """Waits until a file differs, and returns it."""
        while True:
            now = self.stamps()
            different = [file for file in {**before, **now} if before.get(file) != now.get(file)]
            if different:
                return min(different)
            await asyncio.sleep(POLL_SECONDS)


def _folder_of(module: str) -> Path:
    """Returns the folder in which Python finds the top-level module, without importing it."""
    sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        spec = None
    finally:
        sys.path.pop(0)
    if spec is None:
        return Path.cwd()
    places = list(spec.submodule_search_locations or ()) or [str(spec.origin)]
    return Path(places[0]).parent


def _files_in(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        inner = [each for each in folders if not each.startswith(".") and each not in _SKIPPED]
        folders[:] = [each for each in inner if not (Path(place) / each / "pyvenv.cfg").exists()]
        yield from (Path(place) / file for file in files if file.endswith(_SUFFIXES))


class Reloader:
    """Runs this command in a child process, again after each change, until `stop` is set."""

    def __init__(self, files: AppFiles, listener: "socket.socket") -> None:
        self._files = files
        self._socket = listener.fileno()

    async def run(self, stop: asyncio.Event) -> None:
        word = "started"
        stopped = asyncio.create_task(stop.wait())
        while not stop.is_set():
            changed = asyncio.create_task(self._files.changed(self._files.stamps()))
            child = await self._start(word)
            ended = asyncio.create_task(child.wait())
            await asyncio.wait({stopped, ended, changed}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done() and not stop.is_set():
                Printer().text("ended: it starts again when a file changes")
                await asyncio.wait({stopped, changed}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                child.terminate()
                await ended
            if changed.done() and not stop.is_set():
                Printer().text(f"changed: {changed.result().relative_to(self._files.folder)}")
            changed.cancel()
            word = "restarted"
        stopped.cancel()

    async def _start(self, word: str) -> asyncio.subprocess.Process:
        """The child has a session of its own, so that Ctrl-C reaches only this process, which then stops it.

        Its standard input is a pipe. If this process is killed, the pipe closes and the child stops.
        """
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tenuto", *sys.argv[1:]),
            env={**os.environ, VARIABLE: f"{self._socket} {word}"},
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(self._socket,),
            start_new_session=True,
        )


class Reloaded:
    """What a child process has from its parent: the socket, and whether it was started or restarted."""

    def __init__(self, listener: "socket.socket", word: str) -> None:
        self.listener = listener
        self.word = word

    @classmethod
    def from_environment(cls) -> Self | None:
        """Returns None in a process that no `Reloader` started."""
        import socket

        given = os.environ.pop(VARIABLE, None)
        if given is None:
            return None
        number, word = given.split()
        return cls(socket.socket(fileno=int(number)), word)

    def stop_with_parent(self, stop: asyncio.Event) -> None:
        """Sets `stop` when the parent ends, which closes the pipe at standard input."""
        loop, end = asyncio.get_running_loop(), sys.stdin.fileno()

        def closed() -> None:
            loop.remove_reader(end)
            stop.set()

        loop.add_reader(end, closed)
