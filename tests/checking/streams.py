"""Sound records to begin with: those of the recorded histories, as a database would hold them."""

from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

import msgspec
from msgspec import Struct

from tenuto.checker import Checker
from tenuto.checker.projections import for_queues
from tenuto.checker.records import FORMAT, End, Head, Page
from tenuto.kernel import events as e
from tenuto.kernel.codec import decode_entries, encode_entries, encode_snapshot
from tenuto.kernel.definition import canonical
from tenuto.kernel.evolve import evolve
from tenuto.kernel.plan import Plan
from tenuto.kernel.state import TERMINAL, Execution
from tenuto.storage.audit import row_hash
from tenuto.storage.port import DefinitionRow, SnapshotRow
from tenuto.storage.registry import AuditEntry
from tenuto.storage.shared.records import (
    ActRecord,
    AdmissionRow,
    AuditRecord,
    EventsRow,
    ExecutionRecord,
    HeadRecord,
    MessageRow,
    ReviewRecord,
    TaskRecord,
)
from tenuto.views.messages import Announced
from tenuto.views.projections import PRIORITIES, ReviewClosed, ReviewRow, audit, reviews, tasks
from tests.kernel import history
from tests.kernel.driver import Driver

T = TypeVar("T", bound=Struct)

NOW = 10**9


def stream(name: str) -> list[Struct]:
    """All records of one recorded history, in their order."""
    kept = history.load(name)
    return stream_of(history.plan_of(kept), history.decisions_of(kept))


def driven(run: Driver) -> list[Struct]:
    """The records of what a test has driven the kernel to."""
    return stream_of(run.plan, run.decisions)


def stream_of(plan: Plan, made: list[list[e.Entry]]) -> list[Struct]:
    decisions = [decision for decision in made if decision]
    state = Execution(plan)
    snapshot = None
    for number, decision in enumerate(decisions):
        for entry in decision:
            evolve(state, entry)
        if number == len(decisions) // 2:
            snapshot = SnapshotRow(state.id, state.seq, b"[%b,[]]" % encode_snapshot(state))
    id = state.id
    entries = [entry for decision in decisions for entry in decision]
    chain = _chain(state, entries)
    assert snapshot is not None
    document = canonical(plan.definition)
    return [
        Head(format=FORMAT, at=NOW, tenuto="1"),
        DefinitionRow(
            name=plan.definition.name,
            version=plan.definition.version,
            status="published",
            hash=plan.hash,
            document=document,
            created_at=0,
            published_at=0,
        ),
        *_heads(chain),
        *chain,
        Page(at=NOW),
        _row(state, entries[0]),
        snapshot,
        *_messages(state, entries),
        *(EventsRow(execution=id, seq=d[0].seq, count=len(d), body=encode_entries(d)) for d in decisions),
        *_reviews(state, entries),
        *_tasks(state),
        *_place(state),
        *_acts(state, chain),
        End(executions=1, records=len(decisions) + 3),
    ]


def _row(state: Execution, start: e.Entry) -> ExecutionRecord:
    ended = state.status in TERMINAL
    started = start.event
    assert isinstance(started, e.ExecutionStarted)
    return ExecutionRecord(
        id=state.id,
        tenant=state.tenant,
        definition=started.definition,
        version=started.version,
        status=state.status,
        run=state.run,
        seq=state.seq,
        epoch=state.epoch,
        owner=None if ended else "session",
        owner_expires_at=NOW,
        wake_at=None,
        priority=PRIORITIES[started.priority],
        correlation_id=started.correlation_id,
        target_type=started.target[0] if started.target else "",
        target_id=started.target[1] if started.target else "",
        key=None,
        concurrency_key=state.concurrency_key,
        request_hash="",
        cancel_requested=state.cancel is not None,
        error_class=state.failure.error_class if state.failure is not None else "",
        parked="",
        created_at=start.at,
        ended_at=state.at if ended else None,
    )


def _reviews(state: Execution, entries: list[e.Entry]) -> list[ReviewRecord]:
    made = list(reviews(state, entries))
    closed = {one.id: one for one in made if isinstance(one, ReviewClosed)}
    return [_review(one, closed.get(one.id)) for one in made if isinstance(one, ReviewRow)]


def _review(opened: ReviewRow, closed: ReviewClosed | None) -> ReviewRecord:
    return ReviewRecord(
        **msgspec.structs.asdict(opened),
        resolution=None if closed is None else closed.resolution,
        resolved_by=None if closed is None else closed.actor,
        resolved_at=None if closed is None else closed.closed_at,
    )


def _tasks(state: Execution) -> list[TaskRecord]:
    return [
        TaskRecord(**msgspec.structs.asdict(made), session=None, begun_at=None, beat_at=None, parked="")
        for made in tasks(state, for_queues(state))
    ]


def _messages(state: Execution, entries: list[e.Entry]) -> list[MessageRow]:
    return [
        MessageRow(**msgspec.structs.asdict(made), published_at=NOW, session=None, tries=0, due_at=0, error="")
        for made in Announced(["*"]).rows(state, entries)
    ]


def _chain(state: Execution, entries: list[e.Entry]) -> list[AuditRecord]:
    """The audit of a tenant who has done nothing else."""
    done = audit(state, entries, entries[0].actor)
    chained: list[AuditRecord] = []
    hash = ""
    for n, act in enumerate(done, 1):
        row = AuditRecord(**msgspec.structs.asdict(act), position=n, head=len(done), n=n)
        hash = row_hash(hash, row, n)
        chained.append(msgspec.structs.replace(row, hash=hash))
    return chained


def _heads(chain: list[AuditRecord]) -> list[HeadRecord]:
    return [
        HeadRecord(tenant=row.tenant, n=row.n or 0, hash=row.hash or "", last_n=row.n, last_hash=row.hash)
        for row in chain[-1:]
    ]


def _acts(state: Execution, chain: list[AuditRecord]) -> list[ActRecord]:
    fields = AuditEntry.__struct_fields__
    return [ActRecord(execution=state.id, **{name: getattr(row, name) for name in fields}) for row in chain]


def _place(state: Execution) -> list[AdmissionRow]:
    if state.concurrency_key is None or state.finished is not None:
        return []
    name, key = state.plan.definition.name, state.concurrency_key
    return [AdmissionRow(execution=state.id, tenant=state.tenant, definition=name, key=key, position=1, ahead=0)]


async def found_in(records: Iterable[Struct]) -> list[str]:
    """The ids of all invariants that a check finds violated, or tells of."""
    checker = Checker()
    found = [found.invariant async for found in checker.findings(given(records))]
    return [*found, *(told.invariant for told in checker.told)]


async def given(records: Iterable[Struct]) -> AsyncIterator[Struct]:
    for record in records:
        yield record


def change(records: list[Struct], kind: type[T], edit: Callable[[T], Struct | None], nth: int = 0) -> list[Struct]:
    """The records with one of them, the nth of its kind, changed or left out."""
    places = [index for index, record in enumerate(records) if isinstance(record, kind)]
    at = places[nth]
    record = records[at]
    assert isinstance(record, kind)
    edited = edit(record)
    return [*records[:at], *([] if edited is None else [edited]), *records[at + 1 :]]


def edit_entries(records: list[Struct], edit: Callable[[list[e.Entry]], list[e.Entry]]) -> list[Struct]:
    """The records with another history, one entry to a row, numbered as the edited entries say."""
    rows = [record for record in records if isinstance(record, EventsRow)]
    entries = edit([entry for row in rows for entry in decode_entries(row.body)])
    changed = [
        EventsRow(execution=rows[0].execution, seq=entry.seq, count=1, body=encode_entries([entry]))
        for entry in entries
    ]
    at = records.index(rows[0])
    others = [record for record in records[at:] if not isinstance(record, EventsRow)]
    return [*records[:at], *changed, *others]


def numbered(entries: Iterable[e.Entry]) -> list[e.Entry]:
    return [msgspec.structs.replace(entry, seq=seq) for seq, entry in enumerate(entries, 1)]


# -- Edits of a history ------------------------------------------------------------------------------------------------


def _nth(entries: list[e.Entry], kind: type, nth: int) -> int:
    return [index for index, entry in enumerate(entries) if isinstance(entry.event, kind)][nth]


def altered(records: list[Struct], kind: type[Struct], nth: int = 0, **fields: object) -> list[Struct]:
    """The nth event of a kind, with other fields."""

    def edit(entries: list[e.Entry]) -> list[e.Entry]:
        at = _nth(entries, kind, nth)
        event = msgspec.structs.replace(entries[at].event, **fields)
        entries[at] = msgspec.structs.replace(entries[at], event=event)
        return entries

    return edit_entries(records, edit)


def placed(records: list[Struct], kind: type[Struct], nth: int = 0, **fields: object) -> list[Struct]:
    """The entry of the nth event of a kind, with another time, epoch, cause or other grants."""

    def edit(entries: list[e.Entry]) -> list[e.Entry]:
        at = _nth(entries, kind, nth)
        entries[at] = msgspec.structs.replace(entries[at], **fields)
        return entries

    return edit_entries(records, edit)


def without(records: list[Struct], kind: type[Struct], nth: int = 0) -> list[Struct]:
    def edit(entries: list[e.Entry]) -> list[e.Entry]:
        del entries[_nth(entries, kind, nth)]
        return numbered(entries)

    return edit_entries(records, edit)


def followed(records: list[Struct], kind: type[Struct], event: e.Event, *grants: e.Grant, nth: int = 0) -> list[Struct]:
    """One more entry after the nth event of a kind, at the same moment."""

    def edit(entries: list[e.Entry]) -> list[e.Entry]:
        at = _nth(entries, kind, nth)
        more = msgspec.structs.replace(entries[at], event=event, grants=grants, cause=None)
        return numbered([*entries[: at + 1], more, *entries[at + 1 :]])

    return edit_entries(records, edit)


def rewritten(run: Driver, edit: Callable[[list[e.Entry]], list[e.Entry]]) -> list[Struct]:
    """Another history, with all the rows that an engine which wrote it would have left beside it."""
    return stream_of(run.plan, [[entry] for entry in numbered(edit(list(run.history)))])


def moved(run: Driver, kind: type[Struct], before: type[Struct], nth: int = 0) -> list[Struct]:
    """The first event of a kind comes before the nth of another, at the time of what is then before it."""

    def edit(entries: list[e.Entry]) -> list[e.Entry]:
        entry = entries.pop(_nth(entries, kind, 0))
        to = _nth(entries, before, nth)
        return [*entries[:to], msgspec.structs.replace(entry, at=entries[to - 1].at), *entries[to:]]

    return rewritten(run, edit)


def at_once(run: Driver) -> list[Struct]:
    """All of it happened at the time of the start."""
    at = run.history[0].at
    return rewritten(run, lambda entries: [msgspec.structs.replace(entry, at=at) for entry in entries])
