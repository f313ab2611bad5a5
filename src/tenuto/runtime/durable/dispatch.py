"""What the command gateway needs of the durable runtime."""

from tenuto.runtime.executor.worker import Worker
from tenuto.storage.jobs import JobStore
from tenuto.storage.port import tasks_in

from .wakeups import Wakeups


class DurableDispatch:
    """Implements `Dispatch`."""

    def __init__(self, jobs: JobStore, worker: Worker, wakeups: Wakeups) -> None:
        self.jobs = jobs
        self._worker = worker
        self._wakeups = wakeups

    def pause_queue(self, queue: str) -> None:
        self._worker.paused_queues.add(queue)

    def resume_queue(self, queue: str) -> None:
        self._worker.paused_queues.discard(queue)
        self._wakeups.notify_tasks(frozenset({tasks_in(queue)}))
