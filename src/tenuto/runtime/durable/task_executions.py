"""Executions of which this process runs tasks, while another process, or this one in another role, owns them.

Their histories are folded as they are stored, and followed; nothing is decided on them.
"""

from collections.abc import Container

from msgspec import Raw

from tenuto.kernel.address import Ref
from tenuto.kernel.codec import decode_entries
from tenuto.kernel.events import ExecutionStarted
from tenuto.kernel.evolve import evolve
from tenuto.runtime.executor import Performer
from tenuto.runtime.executor.held_execution import Controller, Record
from tenuto.storage.port import Loaded
from tenuto.storage.tasks import Held, Taking


class TaskExecution(Record):
    """An execution of which this process runs tasks, and for which its owner decides."""

    __slots__ = ("news", "takings")

    is_remote = True

    def __init__(self, controller: Controller, performer: Performer, idempotency_key: str | None) -> None:
        super().__init__(controller, performer, idempotency_key)
        self.news: dict[str, Raw] = {}  # progress by path that is not written yet
        self.takings: dict[Ref, Taking] = {}  # the last one of each attempt

    def keep_progress(self, path: str, progress: Raw) -> None:
        super().keep_progress(path, progress)
        self.news[path] = progress

    def take_news(self, path: str) -> bytes | None:
        progress = self.news.pop(path, None)
        return None if progress is None else bytes(progress)

    def forget_takings(self, taken: Container[Taking]) -> None:
        """Forgets attempts that are over: an execution may have 100,000 of them on this worker."""
        self.takings = {
            ref: taking
            for ref, taking in self.takings.items()
            if taking in taken or ref in self.beginning or ref.path in self.zombies
        }

    def follow(self, bodies: list[bytes]) -> None:
        entries = [entry for body in bodies for entry in decode_entries(body)]
        if entries:
            for entry in entries:
                evolve(self.state, entry)
            self.note(entries)
            self.state.changed.clear()

    def lags(self, held: Held) -> bool:
        """Whether the execution was paused, resumed or cancelled meanwhile: handlers may ask for this."""
        state = self.state
        is_paused = state.pause is not None
        return is_paused != (held.status == "paused") or (held.cancel_requested and state.cancel is None)


def plan_hash(loaded: Loaded) -> str:
    """Of the plan that the execution was started with. A worker may have another under the same name and version."""
    started = decode_entries(loaded.bodies[0])[0].event
    assert isinstance(started, ExecutionStarted)
    return started.plan_hash
