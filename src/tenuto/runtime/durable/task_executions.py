"""Visits to executions that are decided elsewhere: their histories are folded as they are found, and followed."""

from collections.abc import Container

from msgspec import Raw

from tenuto.kernel.address import Ref
from tenuto.kernel.codec import decode_entries
from tenuto.kernel.events import ExecutionStarted
from tenuto.kernel.evolve import evolve
from tenuto.runtime.executor import Performer
from tenuto.runtime.executor.held_execution import Record
from tenuto.runtime.executor.worker import Worker
from tenuto.storage.port import Loaded
from tenuto.storage.tasks import Held, Taking


class Visit(Record):
    """An execution that attempts run here for, and that is decided elsewhere."""

    __slots__ = ("news", "takings")

    is_guest = True

    def __init__(self, worker: Worker, performer: Performer, idempotency_key: str | None) -> None:
        super().__init__(worker, performer, idempotency_key)
        self.news: dict[str, Raw] = {}  # how far steps are, by path, since that was last told
        self.takings: dict[Ref, Taking] = {}  # the last of each attempt

    def keep_progress(self, path: str, progress: Raw) -> None:
        super().keep_progress(path, progress)
        self.news[path] = progress

    def take_news(self, path: str) -> bytes | None:
        progress = self.news.pop(path, None)
        return None if progress is None else bytes(progress)

    def forget_takings(self, in_hand: Container[Taking]) -> None:
        """An execution may have a hundred thousand attempts on this worker: those that are over are no longer known."""
        self.takings = {
            ref: taking
            for ref, taking in self.takings.items()
            if taking in in_hand or ref in self.beginning or ref.path in self.zombies
        }

    def follow(self, bodies: list[bytes]) -> None:
        entries = [entry for body in bodies for entry in decode_entries(body)]
        if entries:
            for entry in entries:
                evolve(self.state, entry)
            self.note(entries)
            self.state.changed.clear()

    def lags(self, held: Held) -> bool:
        """Whether the execution was paused, resumed or cancelled since: a handler that asks is told."""
        state = self.state
        is_paused = state.pause is not None
        return is_paused != (held.status == "paused") or (held.cancel_requested and state.cancel is None)


def plan_hash(loaded: Loaded) -> str:
    """Of the plan with which the execution was started: a worker may have another under the same name and version."""
    started = decode_entries(loaded.bodies[0])[0].event
    assert isinstance(started, ExecutionStarted)
    return started.plan_hash
