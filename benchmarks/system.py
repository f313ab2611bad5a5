"""A system under measurement, and the stage on which it stands: its processes, with an empty store."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from benchmarks.program import Process, Program


class Stage:
    """Clients submit and wait. Without a worker of its own, a system does its work inside the clients."""

    def __init__(
        self,
        start_client: Callable[[], Program],
        *,
        start_worker: Callable[[], Process] | None = None,
        clients: int = 1,
        server: int | None = None,
        disk_bytes: Callable[[], int] | None = None,
    ) -> None:
        self._start_client = start_client
        self._start_worker = start_worker
        self._server = server
        self.disk_bytes = disk_bytes
        self.worker: Process | None = None
        self.clients: list[Program] = []
        with ExitStack() as undo:
            undo.callback(self.end_programs)
            self.worker = start_worker() if start_worker is not None else None
            self.clients += [start_client() for _ in range(clients)]
            undo.pop_all()

    @property
    def client(self) -> Program:
        return self.clients[0]

    @property
    def roles(self) -> dict[str, int]:
        """Whose processor time and memory are told apart, and the root of each one's processes."""
        numbered = {f"client {n}": client.pid for n, client in enumerate(self.clients, 1)}
        roles = numbered if len(numbered) > 1 else {"client": self.client.pid}
        if self.worker is not None:
            roles["worker"] = self.worker.pid
        if self._server is not None:
            roles["server"] = self._server
        return roles

    def kill_worker(self) -> None:
        """`kill -9` to whoever does the work."""
        (self.worker or self.client).kill()

    def replace_worker(self) -> None:
        if self._start_worker is not None:
            self.worker = self._start_worker()
        else:
            self.clients[0] = self._start_client()

    def end_programs(self) -> None:
        for process in self._programs():
            process.close()

    def _programs(self) -> list[Process]:
        return [*self.clients, *([self.worker] if self.worker is not None else [])]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:  # in the middle of something that nobody waits for
            for process in self._programs():
                process.kill()
        self.end_programs()


@dataclass(frozen=True, kw_only=True)
class System:
    name: str
    ours: str  # the system of ours that it is compared with
    stages: Mapping[str, Callable[[], AbstractContextManager[Stage]]]  # by workload; it takes part in no other
    prepare: Callable[[], object] = lambda: None  # installs what is missing, or raises `Unavailable`
    in_flight: int = 200
    is_remote: bool = False  # its clients submit to another process in any case
