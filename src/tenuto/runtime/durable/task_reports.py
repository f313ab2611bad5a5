"""What a guest says about the tasks it has taken: that they begin, what came of them, and which it gives back.

What it says is gathered, and said again until the database has heard it. It names the taking that it is about: heard
twice, or late, it does no harm.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

from msgspec import Raw, Struct

from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref, lease_id
from tenuto.kernel.codec import decode_answer, encode_fact
from tenuto.runtime.clock import Environment
from tenuto.runtime.executor.held_execution import Record, Ticket
from tenuto.runtime.executor.worker import Worker, WorkerOptions
from tenuto.storage.port import Store, mail_for
from tenuto.storage.tasks import Answered, Beginning, Letter, Taking
from tenuto.views import Waiting

from .batched_writes import BatchedWrites
from .parked_executions import ParkedExecutions
from .session import CurrentSession, Session
from .task_executions import Visit
from .wakeups import Owners, Wakeups


class Asking(NamedTuple):
    ticket: Ticket
    since: float


class Returned(Struct, frozen=True):
    taking: Taking
    why: str
    learned: int  # how often this process had learned something by then


class TaskReports(Worker):
    """A worker that can speak for attempts of executions that it does not hold."""

    def __init__(
        self,
        environment: Environment,
        store: Store,
        current: CurrentSession,
        wakeups: Wakeups,
        owners: Owners,
        parked_executions: ParkedExecutions,
        options: WorkerOptions,
    ) -> None:
        self._store = store
        self._current = current
        self._wakeups = wakeups
        self._owners = owners
        self._parked_executions = parked_executions
        super().__init__(environment, options)
        # Claims an execution that nobody owns, to decide what is in its mailbox. Set when the claimer is made.
        self.claim_one: Callable[[str], Awaitable[None]]
        self._in_hand: dict[Taking, Visit] = {}
        self._untold: set[Taking] = set()  # answered or given back, and the database has not confirmed it yet
        self._asking: dict[str, Asking] = {}  # by message: whether they may begin
        self._gave_back = False  # something that it could not run
        self._served: tuple[str, frozenset[str]] | None = None  # what the database knows of this process
        self._beginnings = BatchedWrites[Ticket]("tenuto-beginnings", self._send_beginnings)
        self._answers = BatchedWrites[Answered]("tenuto-answers", self._send_answers)
        self._returns = BatchedWrites[Returned]("tenuto-returns", self._send_returns)

    @property
    def _words(self) -> tuple[BatchedWrites[Any], ...]:
        return self._beginnings, self._answers, self._returns

    def is_asking(self, message_id: str) -> bool:
        """Whether an attempt here waits for the verdict on this message."""
        return message_id in self._asking

    # -- Beginning -----------------------------------------------------------------------------------------------------

    def _ask_to_begin(self, ticket: Ticket) -> None:
        if ticket.record.is_guest:
            self._beginnings.add(ticket)
        else:
            super()._ask_to_begin(ticket)

    async def _send_beginnings(self, tickets: list[Ticket]) -> None:
        session = self._current.session
        wanted = [(self._beginning(session, ticket), ticket) for ticket in tickets]
        begun, owners = await self._store.tasks.begin(session.id, list(dict.fromkeys(each for each, _ in wanted)))
        for beginning, ticket in wanted:
            if beginning.taking not in begun or not session.may_start or self.closing:
                self._withdraw(ticket)
            elif beginning.letter is None:
                self._begin(ticket)
            else:
                self._asking[beginning.letter.id] = Asking(ticket, time.monotonic())
        if owners:
            self._owners.notify(owners)
            self._wakeups.tasks.set()

    def _beginning(self, session: Session, ticket: Ticket) -> Beginning:
        """What is only sent from here, and answered elsewhere, may be sent again: it is never lost with its worker."""
        record, ref, role = ticket
        assert isinstance(record, Visit)
        taking, letter = record.takings[ref], None
        if role.begins:
            id = f"begun:{lease_id(record.state.id, ref)}:{session.id}:{taking.number}"
            letter = Letter(id, record.state.id, encode_fact(self._begun(ref)))
        return Beginning(taking, marks=not role.dispatches, letter=letter)

    def _withdraw(self, ticket: Ticket) -> None:
        """It does not begin: it is somebody else's now, or settled, or this process may be taken for dead."""
        record, ref, _ = ticket
        if isinstance(record, Visit) and record.tickets.get(ref) is ticket:
            self._give_back(record, ref, "")
        self._begin(ticket)

    async def _hear_owners(self) -> None:
        """What owners said to those who asked whether they may begin."""
        if not self._asking:
            return
        for id, verdict in (await self._store.mailbox.verdicts(list(self._asking))).items():
            asking = self._asking.pop(id, None)
            if asking is None:
                continue
            if self._current.session.may_start and _may_begin(verdict):
                self._begin(asking.ticket)
            else:
                self._withdraw(asking.ticket)
        long_ago = time.monotonic() - 2 * self._wakeups.poll_s
        unheard = [asking.ticket.record.state.id for asking in self._asking.values() if asking.since < long_ago]
        for id in dict.fromkeys(unheard):
            await self.claim_one(id)  # if nobody owns it: to read one letter, no handler is needed
        if unheard:
            self._wakeups.notify(mail_for(self._current.session.id))

    def _stop_asking(self) -> None:
        """Those who asked whether they may begin are no longer wanted, and leave their slots."""
        asking, self._asking = self._asking, {}
        for each in asking.values():
            self._begin(each.ticket)

    # -- Answering -----------------------------------------------------------------------------------------------------

    def _answer(self, record: Record, ref: Ref, fact: f.Fact) -> None:
        if not isinstance(record, Visit):
            self.apply(record, fact)
            return
        taking = record.takings[ref]
        self._in_hand.pop(taking, None)
        self._untold.add(taking)
        letter = Letter(self.environment.new_id(), record.state.id, encode_fact(fact))
        is_last = isinstance(fact, f.Reported) and isinstance(fact.outcome, f.Succeeded)
        self._answers.add(Answered(taking, letter, record.take_news(ref.path), is_last))
        if ref in record.jobs:
            self._drop(record, ref)  # its time is over, and it goes on all the same

    async def _send_answers(self, answers: list[Answered]) -> None:
        owners = await self._store.tasks.answer(self._current.session.id, answers)
        self._untold.difference_update(answered.taking for answered in answers)
        self._owners.notify(owners)
        self._wakeups.tasks.set()  # there is room for others

    def _park(self, record: Record, ref: Ref, why: Waiting) -> None:
        if isinstance(record, Visit):
            self._give_back(record, ref, why.what)
        else:
            super()._park(record, ref, why)

    def _give_back(self, visit: Visit, ref: Ref, why: str) -> None:
        visit.tickets.pop(ref, None)
        taking = visit.takings[ref]
        if self._in_hand.pop(taking, None) is not None:
            self._return(taking, why)

    def _return(self, taking: Taking, why: str) -> None:
        self._gave_back = self._gave_back or bool(why)
        self._untold.add(taking)
        self._returns.add(Returned(taking, why, self._parked_executions.learned))

    async def _send_returns(self, returned: list[Returned]) -> None:
        learned = self._parked_executions.learned
        reasons = [each.why if each.learned == learned else "" for each in returned]  # it may be able to by now
        for why in dict.fromkeys(reasons):
            takings = [each.taking for each, reason in zip(returned, reasons, strict=True) if reason == why]
            await self._store.tasks.give_back(self._current.session.id, takings, why)
        self._untold.difference_update(each.taking for each in returned)
        if any(reasons) and learned != self._parked_executions.learned:  # while that was said
            self._gave_back, self._served = True, None
            self._wakeups.tasks.set()

    # -- How far they are ----------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        if not self._in_hand:
            return
        news = list(self._news())
        try:
            await self._store.tasks.beat(self._current.session.id, {taking: progress for taking, progress, _ in news})
        except BaseException:
            for taking, progress, visit in news:
                visit.news.setdefault(taking.key.path, Raw(progress))
            raise

    def _news(self) -> Iterator[tuple[Taking, bytes, Visit]]:
        for taking, visit in self._in_hand.items():
            progress = visit.take_news(taking.key.path)
            if progress is not None:
                yield taking, progress, visit


def _may_begin(verdict: bytes) -> bool:
    try:
        answer = decode_answer(verdict)
    except Exception:  # in the words of another release
        return False
    # A duplicate: whoever had it before left without running it, and gave it back.
    return answer == f.APPLIED or answer == f.Ignored("duplicate")
