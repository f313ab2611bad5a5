"""What the command gateway needs of the memory runtime."""

from collections.abc import Callable

from tenuto.runtime.executor.worker import Worker
from tenuto.storage.jobs import JobStore
from tenuto.storage.memory.registry import MemoryRegistry

from .executions import MemoryExecutions


class MemoryDispatch:
    """Implements `Dispatch`."""

    def __init__(self, worker: Worker, executions: MemoryExecutions, registry: Callable[[], MemoryRegistry]) -> None:
        self._worker = worker
        self._executions = executions
        self._registry = registry

    @property
    def jobs(self) -> JobStore:
        return self._registry().jobs

    def pause_queue(self, queue: str) -> None:
        self._worker.paused_queues.add(queue)

    def resume_queue(self, queue: str) -> None:
        self._worker.paused_queues.discard(queue)
        self._executions.resume_parked()
