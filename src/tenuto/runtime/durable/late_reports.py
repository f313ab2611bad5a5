"""Handlers that continue though their executions have another owner by now, and what they report.

A process that lost its session may be in the middle of a step that is not safe to retry. If its handler were cancelled,
the effect would be unknown. So the handler runs to its end, and its report goes to the mailbox of the execution. The
owner has the kernel judge it, and it applies as long as nothing else is known of the attempt.

Such a handler begins no other attempt. In this process no other attempt of its step begins before it has ended.
"""

from collections.abc import Callable, Iterator, Mapping

from tenuto.kernel import facts as f
from tenuto.kernel.codec import encode_fact
from tenuto.runtime.executor import Job
from tenuto.runtime.executor.held_execution import Record
from tenuto.runtime.executor.worker import Worker
from tenuto.storage.port import Store
from tenuto.storage.tasks import MailMessage

from .batched_writes import BatchedWrites


class LateReports:
    """Keeps the handlers of executions that are no longer held, and mails their reports to the owners."""

    def __init__(
        self,
        store: Store,
        worker: Worker,
        notify_owners: Callable[[set[str | None]], None],
        *records: Mapping[str, Record],
    ) -> None:
        """`records`: the executions in memory, by id. A new record of an execution waits for its old handlers."""
        self._store = store
        self._worker = worker
        self._notify_owners = notify_owners
        self._records = records
        self._jobs: dict[str, dict[str, Job]] = {}  # by execution and path
        self.outgoing = BatchedWrites[MailMessage]("tenuto-late-reports", self._send)

    def jobs(self) -> Iterator[Job]:
        return (job for jobs in self._jobs.values() for job in jobs.values())

    def keep(self, record: Record) -> None:
        """The execution is let go of: handlers that have begun, and are not safe to retry, continue."""
        for ref, job in list(record.jobs.items()):
            if _matters(job) and job.begun and not job.stopped:
                del record.jobs[ref]
                record.zombies[ref.path] = job
        running = {path: job for path, job in record.zombies.items() if _matters(job)}
        if running:
            self._jobs.setdefault(record.state.id, {}).update(running)

    def attach(self, record: Record) -> None:
        """The execution is held again: its steps wait for the handlers that still run."""
        record.zombies.update(self._jobs.get(record.state.id, {}))

    def ended(self, record: Record, path: str, job: Job) -> None:
        """The handler has ended. Attempts of other records that waited for this may start."""
        id = record.state.id
        jobs = self._jobs.get(id, {})
        if jobs.get(path) is job:
            del jobs[path]
            if not jobs:
                del self._jobs[id]
        for records in self._records:
            other = records.get(id)
            if other is not None and other.zombies.get(path) is job:
                self._worker.bury(other, path)

    def stop(self, id: str) -> None:
        """The execution was cancelled, and no report counts any more."""
        for job in self._jobs.get(id, {}).values():
            job.stop()

    def send(self, execution_id: str, fact: f.Reported) -> None:
        self.outgoing.add(MailMessage(self._worker.environment.new_id(), execution_id, encode_fact(fact)))

    async def _send(self, messages: list[MailMessage]) -> None:
        owners: set[str | None] = set()
        for message in messages:  # the same id is stored once: it may be sent again
            posted = await self._store.mailbox.post(message.id, message.execution, message.body)
            if posted is not None:
                owners.add(posted[1])
        self._notify_owners(owners)


def _matters(job: Job) -> bool:
    """Whether its outcome has to be known: steps that are safe to retry are run again."""
    return job.attempt.role.begins and not job.attempt.role.dispatches
