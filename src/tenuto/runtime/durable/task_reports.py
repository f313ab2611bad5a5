"""Reports about the tasks that this process has taken: that they begin, what came of them, which it gives back.

Reports are sent in batches, and again until the database has confirmed them. Each names the taking that it is about, so
a report that arrives twice or late does no harm.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

from msgspec import Raw, Struct

from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref, lease_id
from tenuto.kernel.codec import decode_answer, encode_fact
from tenuto.runtime.executor import Job
from tenuto.runtime.executor.held_execution import Inbox, Record, Ticket
from tenuto.runtime.executor.worker import Worker
from tenuto.storage.port import Store, mail_for
from tenuto.storage.tasks import Answered, Beginning, MailMessage, Taking
from tenuto.views import Waiting

from .batched_writes import BatchedWrites
from .late_reports import LateReports
from .parked_executions import ParkedExecutions
from .session import CurrentSession, Session
from .task_executions import TaskExecution
from .wakeups import Owners, Wakeups


class PendingBegin(NamedTuple):
    """An attempt that begins once the owner has recorded this."""

    ticket: Ticket
    since: float


class ReturnedTask(Struct, frozen=True):
    taking: Taking
    why: str
    learned: int  # how often this process had been given code by then


class TaskReports:
    """Reports to the owners of executions. It is the `Controller` of every `TaskExecution`."""

    def __init__(
        self,
        store: Store,
        current: CurrentSession,
        wakeups: Wakeups,
        owners: Owners,
        worker: Worker,
        parked_executions: ParkedExecutions,
        late_reports: LateReports,
        claim_one: Callable[[str], Awaitable[None]],
        inbox: Inbox,
    ) -> None:
        self._store = store
        self._current = current
        self._wakeups = wakeups
        self._owners = owners
        self._worker = worker
        self._parked_executions = parked_executions
        self._late_reports = late_reports
        self._claim_one = claim_one
        self.limits = worker.limits
        self.inbox = inbox
        self.taken: dict[Taking, TaskExecution] = {}  # and neither answered nor given back
        self.unconfirmed: set[Taking] = set()  # answered or given back, and not confirmed by the database
        self.must_retry = False  # tasks were given back that this process could not run
        self.served: tuple[str, frozenset[str]] | None = None  # session and handlers, as the database knows them
        self._pending: dict[str, PendingBegin] = {}  # by message
        self._beginnings = BatchedWrites[Ticket]("tenuto-task-begins", self._send_beginnings)
        self._answers = BatchedWrites[Answered]("tenuto-task-answers", self._send_answers)
        self._returns = BatchedWrites[ReturnedTask]("tenuto-task-returns", self._send_returns)

    @property
    def _writers(self) -> tuple[BatchedWrites[Any], ...]:
        return self._beginnings, self._answers, self._returns

    def start(self) -> None:
        for writer in self._writers:
            writer.start()

    @property
    def has_ended(self) -> bool:
        return any(writer.has_ended for writer in self._writers)

    async def stop(self, patience_s: float) -> None:
        for writer in self._writers:
            await writer.stop(patience_s)

    # -- Beginning -----------------------------------------------------------------------------------------------------

    def begin(self, ticket: Ticket) -> None:
        self._beginnings.add(ticket)

    async def _send_beginnings(self, tickets: list[Ticket]) -> None:
        session = self._current.session
        wanted = [(self._beginning(session, ticket), ticket) for ticket in tickets]
        begun, owners = await self._store.tasks.begin(session.id, list(dict.fromkeys(each for each, _ in wanted)))
        for beginning, ticket in wanted:
            if beginning.taking not in begun or not session.may_start or self._worker.closing:
                self._withdraw(ticket)
            elif beginning.message is None:
                self._worker.begin(ticket)
            else:
                self._pending[beginning.message.id] = PendingBegin(ticket, time.monotonic())
        if owners:
            self._owners.notify(owners)
            self._wakeups.tasks.set()

    def _beginning(self, session: Session, ticket: Ticket) -> Beginning:
        """An attempt that is only dispatched from here may be dispatched again: it is not lost with its worker."""
        record, ref, role = ticket
        assert isinstance(record, TaskExecution)
        taking, message = record.takings[ref], None
        if role.begins:
            id = f"begun:{lease_id(record.state.id, ref)}:{session.id}:{taking.number}"
            message = MailMessage(id, record.state.id, encode_fact(self._worker.begun(ref)))
        return Beginning(taking, marks=not role.dispatches, message=message)

    def _withdraw(self, ticket: Ticket) -> None:
        """The attempt does not begin: it was settled, another worker has it, or this session may have expired."""
        record, ref, _ = ticket
        if isinstance(record, TaskExecution) and record.tickets.get(ref) is ticket:
            self.give_back(record, ref, "")
        self._worker.begin(ticket)

    def is_pending(self, message_id: str) -> bool:
        """Whether an attempt here waits for the verdict on this message."""
        return message_id in self._pending

    @property
    def newest_pending(self) -> float | None:
        """When the newest of the attempts that wait for a verdict asked for it."""
        return max((pending.since for pending in self._pending.values()), default=None)

    async def read_verdicts(self) -> None:
        """Reads whether attempts that wait for this may begin."""
        if not self._pending:
            return
        for id, verdict in (await self._store.mailbox.verdicts(list(self._pending))).items():
            pending = self._pending.pop(id, None)
            if pending is None:
                continue
            if self._current.session.may_start and _may_begin(verdict):
                self._worker.begin(pending.ticket)
            else:
                self._withdraw(pending.ticket)
        long_ago = time.monotonic() - 2 * self._wakeups.poll_s
        unheard = [pending.ticket.record.state.id for pending in self._pending.values() if pending.since < long_ago]
        for id in dict.fromkeys(unheard):
            await self._claim_one(id)  # if it has no owner: no handler is needed to read a message
        if unheard:
            self._wakeups.notify(mail_for(self._current.session.id))

    def cancel_pending(self) -> None:
        """Attempts that wait for a verdict are no longer wanted, and free their slots."""
        pending, self._pending = self._pending, {}
        for each in pending.values():
            self._worker.begin(each.ticket)

    # -- Reporting -----------------------------------------------------------------------------------------------------

    def report(self, record: Record, ref: Ref, fact: f.Fact) -> None:
        assert isinstance(record, TaskExecution)
        taking = record.takings[ref]
        self.taken.pop(taking, None)
        self.unconfirmed.add(taking)
        message = MailMessage(self._worker.environment.new_id(), record.state.id, encode_fact(fact))
        is_last = isinstance(fact, f.Reported) and isinstance(fact.outcome, f.Succeeded)
        self._answers.add(Answered(taking, message, record.take_news(ref.path), is_last))
        if ref in record.jobs:
            self._worker.drop(record, ref)  # its time is over, and its handler continues

    def report_unsafe(self, record: Record, ref: Ref, fact: f.Reported) -> None:
        self.report(record, ref, fact)

    async def _send_answers(self, answers: list[Answered]) -> None:
        owners = await self._store.tasks.answer(self._current.session.id, answers)
        self.unconfirmed.difference_update(answered.taking for answered in answers)
        self._owners.notify(owners)
        self._wakeups.tasks.set()  # there is room for more tasks

    def cannot_run(self, record: Record, ref: Ref, why: Waiting) -> None:
        assert isinstance(record, TaskExecution)
        # Without a bus its queue is paused, and this process may take it again afterwards.
        self.give_back(record, ref, "" if why.reason == "bus" else why.what)

    def handler_ended(self, record: Record, path: str, job: Job) -> None:
        self._late_reports.ended(record, path, job)

    def slot_freed(self, record: Record) -> None:
        """Task executions are not released one by one."""

    def give_back(self, execution: TaskExecution, ref: Ref, why: str) -> None:
        execution.tickets.pop(ref, None)
        taking = execution.takings[ref]
        if self.taken.pop(taking, None) is not None:
            self.return_task(taking, why)

    def return_task(self, taking: Taking, why: str) -> None:
        self.must_retry = self.must_retry or bool(why)
        self.unconfirmed.add(taking)
        self._returns.add(ReturnedTask(taking, why, self._parked_executions.learned))

    async def _send_returns(self, returned: list[ReturnedTask]) -> None:
        learned = self._parked_executions.learned
        reasons = [each.why if each.learned == learned else "" for each in returned]  # it may be able to by now
        for why in dict.fromkeys(reasons):
            takings = [each.taking for each, reason in zip(returned, reasons, strict=True) if reason == why]
            await self._store.tasks.give_back(self._current.session.id, takings, why)
        self.unconfirmed.difference_update(each.taking for each in returned)
        if any(reasons) and learned != self._parked_executions.learned:  # this process was given code meanwhile
            self.must_retry, self.served = True, None
            self._wakeups.tasks.set()

    # -- Progress ------------------------------------------------------------------------------------------------------

    async def send_heartbeats(self) -> None:
        if not self.taken:
            return
        news = list(self._news())
        try:
            await self._store.tasks.beat(self._current.session.id, {taking: progress for taking, progress, _ in news})
        except BaseException:
            for taking, progress, execution in news:
                execution.news.setdefault(taking.key.path, Raw(progress))
            raise

    def _news(self) -> Iterator[tuple[Taking, bytes, TaskExecution]]:
        for taking, execution in self.taken.items():
            progress = execution.take_news(taking.key.path)
            if progress is not None:
                yield taking, progress, execution


def _may_begin(verdict: bytes) -> bool:
    try:
        answer = decode_answer(verdict)
    except Exception:  # written by another release
        return False
    # A duplicate: the worker that had the task before gave it back without running it.
    return answer == f.APPLIED or answer == f.Ignored("duplicate")
