"""Follows one execution entry by entry: checks the invariants, then updates model and state."""

from collections.abc import Callable, Iterator

import msgspec
from msgspec import Struct

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref
from tenuto.kernel.codec import decode_entries
from tenuto.kernel.evolve import apply, apply_grant, enter
from tenuto.kernel.plan import Plan
from tenuto.kernel.state import Execution
from tenuto.storage.ledger.port import IndexRow
from tenuto.storage.port import DefinitionRow, SnapshotRow
from tenuto.storage.shared.records import (
    ActRecord,
    AdmissionRow,
    BusRecord,
    EventsRow,
    ExecutionRecord,
    MailRow,
    MessageRow,
    NoticeRecord,
    ReviewRecord,
    TaskRecord,
)
from tenuto.views.jobs import CallbackRow, LedgerAttempt, LedgerRow
from tenuto.views.projections import AUDITED, AuditRow, reviews
from tenuto.views.projections import audit as acts

from . import (
    attempts,
    audit,
    compensation,
    counters,
    credits,
    definitions,
    jobs,
    lifecycle,
    mail,
    messages,
    model_updates,
    order,
    people,
    projections,
    retries,
    statuses,
    stuck,
    waking,
)
from .findings import Finding, finding, show, show_entry
from .invariants import Invariant, Violated
from .lifecycle import G3
from .model import Model, refs_of

MOST = 20  # findings per execution, because the first ones usually cause the rest

ON_ENTRY: tuple[Callable[[Model, e.Entry], None], ...] = (
    lifecycle.recorded,
    waking.recorded,
    attempts.recorded,
    retries.recorded,
    order.recorded,
    compensation.recorded,
    people.recorded,
    credits.recorded,
)
ON_GRANT: tuple[Callable[[Model, Ref, e.Entry], None], ...] = (
    lifecycle.granted,
    attempts.granted,
    retries.granted,
    order.granted,
    compensation.granted,
)


Ask = Callable[..., None]


class Follower:
    """The model and the folded state of one history. `ask` calls each rule and catches `Violated`."""

    def __init__(self, plan: Plan, ask: Ask) -> None:
        self.model = Model(plan)
        self.state = Execution(plan)
        self.statuses = statuses.Statuses()
        self._ask = ask

    def follow(self, entry: e.Entry) -> None:
        for on_entry in ON_ENTRY:
            self._ask(on_entry, self.model, entry)
        self._record(entry)
        for grant in entry.grants:
            self._grant(grant, entry)
        self.state.changed.clear()

    def _record(self, entry: e.Entry) -> None:
        model, state, ask = self.model, self.state, self._ask
        ask(self.statuses.changes, state, entry.event)
        enter(state, entry.seq, entry.at, entry.epoch, entry.actor)
        apply(state, entry.event)
        model_updates.apply(model, entry)
        ask(credits.noted, model)
        self._ask_statuses(entry.event)
        if isinstance(entry.event, e.ScopeOpened):
            ask(order.took_slot, model, entry.event.path)

    def _grant(self, grant: e.Grant, entry: e.Entry) -> None:
        model, ask = self.model, self._ask
        for ref in refs_of(grant):
            for on_grant in ON_GRANT:
                ask(on_grant, model, ref, entry)
            model_updates.grant(model, ref, entry)
            if ref.phase == "forward":
                ask(order.took_slot, model, ref.path)
        apply_grant(self.state, grant)
        self._ask_statuses(e.AttemptsGranted())

    def _ask_statuses(self, event: e.Event) -> None:
        paths, self.model.touched = list(self.model.touched), {}
        self._ask(self.statuses.changed, self.state, event, paths)


class History:
    """The rows of one execution, in the order of the record stream. `findings` collects violations."""

    def __init__(self, row: ExecutionRecord, definition: DefinitionRow, plan: Plan, audited_since: int = 0) -> None:
        self.row = row
        self.definition = definition
        self._audited_since = audited_since
        self.findings: list[Finding] = []
        self.follower = Follower(plan, self._ask)
        self.broken = False
        self._entry: e.Entry | None = None
        self._snapshot: SnapshotRow | None = None
        self._started: e.Entry | None = None
        self._made = projections.Reviews()
        self._done: list[AuditRow] = []
        self._traces = mail.Traces()
        self._mail: list[mail.PostedMail] = []
        self._reviews: list[ReviewRecord] = []
        self._tasks: list[TaskRecord] = []
        self._messages: dict[int, MessageRow] = {}
        self._notices: list[NoticeRecord] = []
        self._acts: list[ActRecord] = []
        self._place: AdmissionRow | None = None
        self._jobs = jobs.Jobs()

    def take(self, record: Struct) -> None:
        match record:
            case EventsRow():
                self._take_events(record)
            case SnapshotRow():
                self._snapshot = record
            case MailRow():
                self._mail.append(mail.opened(record))
            case ReviewRecord():
                self._reviews.append(record)
            case TaskRecord():
                self._tasks.append(record)
            case MessageRow():
                self._messages[record.seq] = record
            case NoticeRecord():
                self._notices.append(msgspec.structs.replace(record, receipt=None))
            case ActRecord():
                self._acts.append(record)
            case AdmissionRow():
                self._place = record
            case LedgerRow():
                self._jobs.ledger.append(record)
            case LedgerAttempt():
                self._jobs.attempts.append(record)
            case IndexRow():
                self._jobs.index.append(record)
            case CallbackRow():
                self._jobs.callbacks.append(record)
            case BusRecord():
                self._jobs.messages.append(record)

    # -- Entries -------------------------------------------------------------------------------------------------------

    def _take_events(self, row: EventsRow) -> None:
        if self.broken:
            return
        try:
            entries = decode_entries(row.body)
        except msgspec.DecodeError:
            self._give_up(f"the row at {row.seq} cannot be read", show(row))
            return
        seqs = [entry.seq for entry in entries]
        if len(seqs) != row.count or seqs != list(range(row.seq, row.seq + len(seqs))):
            self._find(G3, f"the row at {row.seq} says how many entries it holds: {row.count}", show(row))
        for entry in entries:
            self._follow(entry, row.seq)
        if not self.broken:
            self._jobs.note(self.follower.state, entries)

    def _follow(self, entry: e.Entry, row: int) -> None:
        if self.broken:
            return
        self._entry = entry
        try:
            self.follower.follow(entry)
            self._note(entry, row)
            self._ask_beside(entry)
        except Exception as error:  # an invalid history can make any later code fail
            self._give_up(f"the history cannot be followed past this entry ({type(error).__name__})", show_entry(entry))

    def _note(self, entry: e.Entry, row: int) -> None:
        """Remembers an entry for the comparison with other tables."""
        state = self.follower.state
        self._traces.note(entry, row)
        if self._started is None:
            self._started = entry
        if isinstance(entry.event, e.ReviewOpened | e.ReviewResolved):
            self._made.take(reviews(state, (entry,)))
        if type(entry.event) in AUDITED:
            self._done += acts(state, (entry,), self._started.actor)

    def _ask_beside(self, entry: e.Entry) -> None:
        """Checks rows that were written together with this entry."""
        state = self.follower.state
        if self._snapshot is not None and self._snapshot.seq == entry.seq:
            self._ask(projections.snapshot_is_fold, self._snapshot, state)
        if self.row.seq == entry.seq:
            self._ask(projections.row_stands, self.row, state)
        if (message := self._messages.get(entry.seq)) is not None:
            self._ask(messages.message_is_of_entry, message, entry, state)
            self._messages[entry.seq] = msgspec.structs.replace(message, body=b"")

    # -- The end -------------------------------------------------------------------------------------------------------

    def end(self, now: int, slack_ms: int) -> Iterator[Finding]:
        """Checks the complete set of rows and yields all findings."""
        self._entry = None
        state, model, row = self.follower.state, self.follower.model, self.row
        if not state.seq and not self.broken:
            self._give_up("it has no history", show(row))
        if not self.broken:
            assert model.started is not None
            self._ask(definitions.pinned, row, model.started, self.definition)
            self._ask(definitions.input_is_valid, model.started, model.plan.definition)
            self._ask(waking.at_rest, state)
            self._ask(counters.at_rest, state)
            self._ask(compensation.at_rest, model)
            self._ask_rows(state, model, row, now + slack_ms)  # rows may be newer than the time of the page
        self._ask_lateness(now - slack_ms)
        yield from self.findings

    def _ask_lateness(self, before: int) -> None:
        if (late := stuck.overdue(self.row, before)) is not None:
            self._find(late[0], late[1], show(self.row))
        for item in self._mail:
            if item.row.verdict is None and item.row.received_at < before:
                self._find(stuck.V6, f"unread since {item.row.received_at}", show(item.row))
        for task in self._tasks:
            if stuck.is_abandoned(task, before):
                self._find(stuck.L8, f"the worker that took {task.path} is gone, and no other has it", show(task))
        for message in self._messages.values():
            if messages.is_late(message, before):
                self._find(messages.B2, f"not published since {message.created_at}", show(message))

    def _ask_rows(self, state: Execution, model: Model, row: ExecutionRecord, soon: int) -> None:
        unread = {item.row.id: None for item in self._mail if item.row.verdict is None}
        self._ask(projections.row_was_started, row, self._started)
        self._ask(projections.row_is_fold, row, state, model, soon)
        self._ask(projections.wakes, row, state, len(unread), soon)
        self._ask(self._made.are_listed, self._reviews, row)
        self._ask(projections.person_is_asked, row, self._reviews)
        self._ask(projections.tasks_are_listed, state, self._tasks, len(unread))
        self._ask(projections.admission_is_in_turn, row, state, self._place, unread)
        self._ask(audit.acts_are_told, self._done, self._acts, self._audited_since)
        self._ask(messages.published_in_order, list(self._messages.values()))
        self._ask(self._traces.have_mail, self._mail)
        for item in self._mail:
            self._ask(self._traces.is_told, item)
        for message in self._messages.values():
            self._ask(messages.message_is_recorded, message, row, state)
        self._ask(self._jobs.are_shown, row)
        self._ask(self._jobs.were_called_back)
        self._ask(self._jobs.recorded_callbacks, self._jobs.causes)
        self._ask(self._jobs.are_leased)
        self._ask(self._jobs.are_directed)
        for notice in self._notices:
            self._ask(projections.notice_is_of_execution, notice, row)
        if self._snapshot is not None and self._snapshot.seq > state.seq:
            self._find(projections.G4, f"the snapshot is of entry {self._snapshot.seq}, the last is {state.seq}")

    # -- Findings ------------------------------------------------------------------------------------------------------

    def _ask(self, rule: Callable[..., None], *arguments: object) -> None:
        try:
            rule(*arguments)
        except Violated as violated:
            rows = (show_entry(self._entry),) if self._entry is not None else (show(self.row),)
            self._find(violated.invariant, violated.detail, *rows)
        except Exception as error:
            if self._entry is not None:  # the history cannot be folded any further
                raise
            self._find(G3, f"a row beside it cannot be read ({type(error).__name__})", show(self.row))

    def _give_up(self, detail: str, *rows: str) -> None:
        self.broken = True
        self._find(G3, detail, *rows)

    def _find(self, invariant: Invariant, detail: str, *rows: str) -> None:
        if len(self.findings) < MOST:
            self.findings.append(finding(invariant, self.row.id, detail, *rows))
