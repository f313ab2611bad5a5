"""The runtime behind `sqlite://` and `postgresql://`: executions that outlive their processes.

The executions that this process owns are held in memory and driven as in the memory runtime; what is decided is kept by
the committer, and acted upon when its commit is acknowledged. Everything else reaches an execution through its mailbox.
Executions that wait leave memory, and are claimed again, by whoever is first, when they are due or have mail.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Literal, get_args

import msgspec

from tenuto.errors import (
    DefinitionError,
    NotFound,
    ResultTimeout,
    StorageError,
)
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref
from tenuto.kernel.codec import decode_answer, decode_entries, decode_fact, encode_answer, encode_entries, encode_fact
from tenuto.kernel.decide import decide
from tenuto.kernel.definition import Definition, from_document
from tenuto.kernel.effects import EffectKey, RequestHold, RunAttempt
from tenuto.kernel.events import Entry, ReviewKind, ReviewOpened, ReviewResolved
from tenuto.kernel.evolve import evolve, holder_of
from tenuto.kernel.state import Execution, ExecutionStatus
from tenuto.messages import Announced, Publish
from tenuto.program import Handler, Program
from tenuto.projection import (
    AUDITED,
    AuditRow,
    ReviewClosed,
    ReviewRow,
    TaskEnded,
    TaskRow,
    audit,
    reviews,
    standing,
    tasks,
)
from tenuto.runtime import (
    BacklogRow,
    DefinitionStatus,
    Environment,
    Filter,
    Notices,
    Observer,
    Page,
    Pruned,
    Published,
    Reading,
    Submission,
    Submitted,
    Summary,
    Until,
    Vitals,
    dead_letter_document,
    review_document,
)
from tenuto.runtimes.in_flight import tenant_is_full
from tenuto.runtimes.limits import limit_row
from tenuto.runtimes.perform import Performer, Role
from tenuto.runtimes.relay import Relay
from tenuto.runtimes.slots import RESUME
from tenuto.runtimes.worker import (
    ASYNC_SLOTS,
    THREADS,
    Record,
    Then,
    Ticket,
    changed_plan,
    check_startable,
    definition_row,
    has_come,
)
from tenuto.storage.audit import seal
from tenuto.storage.callers import Caller, caller_of, check_database
from tenuto.storage.catalog import Catalog
from tenuto.storage.inbox import note_once
from tenuto.storage.joining import find_existing, save_definition, start_within
from tenuto.storage.outbox import OutboxStore
from tenuto.storage.permits import Ask, Dealt, LimitUse, TenantUse
from tenuto.storage.registry import Registry
from tenuto.storage.reviews import ReviewsWanted, StoredReview
from tenuto.storage.store import (
    EVERYTHING,
    MAIL_AT_ONCE,
    NEWS,
    WORK,
    Append,
    Batch,
    Claim,
    DefinitionRow,
    ExecutionRow,
    Hints,
    Loaded,
    Mail,
    MailVerdict,
    ProgressRow,
    SessionRow,
    Store,
    Turn,
    Wanted,
    mail_for,
)
from tenuto.view import (
    NOTHING_UNDER_WAY,
    Activity,
    DeadLetterRow,
    LimitRow,
    TenantLimitRow,
    Waiting,
    WorkerRow,
    rfc3339,
)
from tenuto.view import ReviewRow as ReviewDocument

from . import snapshots
from .beats import EVERY_SECONDS, Beats
from .clock import DatabaseClock
from .committer import Committer, Fate, Told, Write
from .guests import GuestWorker
from .letters import Letters
from .permits import Permits
from .queued import has_queued, with_queued
from .retention import keep_pruning, prune
from .session import LEASE_MS, Session
from .starting import new_execution, refusal_of, replayed
from .watched import Watched

POLL_MS = 200
SEAL_MS = 500  # how long what somebody did may stand unchained in the audit
CATALOG_MS = 1_000  # how long others may not know of a definition that was published
IN_HAND = 4_000  # executions that one process holds at most
CLAIM_AT_ONCE = 200
# When to ask for claims that went astray: longer than a database takes to carry out what its client has given up.
ASTRAY_SECONDS = (0.0, 1.0, 3.0, 8.0, 20.0, 35.0)
REAP_SECONDS = 1.0  # between looks for sessions that are over
LAST_SEQ = 2**31 - 1
EVICT_MS = 2_000  # a wait longer than this is spent outside of memory
VERDICT_SECONDS = 30
MORE_MAIL_SECONDS = 0.02  # until what was read is answered, and makes room for the rest
LAST_WORDS_SECONDS = 5.0  # what a database that cannot be reached gets, when the engine is closed
SET_ASIDE_MS = 60_000
NUDGE_SECONDS = (0.005, 0.05)  # most callers commit soon after they have started something
ROOM_SECONDS = 0.02  # before it is asked again whether a tenant may start something
PROJECTED = AUDITED | {ReviewOpened, ReviewResolved}  # events that other tables may show


class Kept(Write, gc=False):
    """A decision on its way into the database, and what follows when it is there."""

    runtime: "DurableRuntime"
    record: Record
    entries: list[Entry]
    changed: list[EffectKey]
    rank: int | None
    answer: f.Answer
    then: Then | None

    def settle(self, fate: Fate) -> None:
        self.runtime.settle(self, fate)


class Started(Kept, gc=False):
    fate: asyncio.Future[Fate]

    def settle(self, fate: Fate) -> None:
        start = self.start
        assert start is not None
        if start.owner is not None:
            self.runtime.settle(self, fate)
        elif fate == "committed":
            self.runtime.tell_observers(self.record, self.entries)
        if not self.fate.done():
            self.fate.set_result(fate)


class Released(Kept, gc=False):
    """An execution was let go of: nothing follows here."""

    def settle(self, fate: Fate) -> None:
        self.runtime.has_left(self.execution)


class HandedOver(Released, gc=False):
    """An execution was let go of for others to run: they are told that there is work."""

    def settle(self, fate: Fate) -> None:
        super().settle(fate)
        self.runtime._store.ring(WORK)


class DurableRuntime(GuestWorker):
    def __init__(
        self,
        environment: Environment,
        store: Store,
        compile: Callable[[Definition], Program],
        *,
        observers: Sequence[Observer] = (),
        worker: bool = True,
        queues: Sequence[str] = ("default",),
        slots: int = ASYNC_SLOTS,
        threads: int = THREADS,
        lease_ms: int = LEASE_MS,
        poll_ms: int = POLL_MS,
        announced: Announced | None = None,
        publish: Publish | None = None,
        keep_ms: int | None = None,
    ) -> None:
        super().__init__(environment, observers=observers, worker=worker, queues=queues, slots=slots, threads=threads)
        self._store = store
        self._compile = compile
        self._lease_ms = lease_ms
        self._poll_ms = poll_ms
        self._smallest_tail = snapshots.SMALLEST_TAIL
        self._fetching: dict[asyncio.Future[None], None] = {}
        self._announced = announced
        self._keep_ms = keep_ms
        self._pruning: asyncio.Task[None] | None = None
        self._relay = None if publish is None else Relay(store.outbox, publish, self._now, self._live_session)
        self._stored: dict[tuple[str, int], str] = {}
        self._in_catalog: dict[tuple[str, int], str] = {}
        self._read_catalog_at = 0
        self._seal_audit_at = 0
        self._unreadable: set[tuple[str, int]] = set()
        self._session: Session
        self._committer: Committer
        self._hints: Hints = frozenset()
        self._held_up: frozenset[Performer] = frozenset()
        self._turn = ""  # the tenant that was last in turn to be claimed for
        self._next_turn = 0.0
        self._nudged = asyncio.Event()
        self._polling: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._claimed: dict[str, Claim] = {}  # and not loaded yet
        self._asked: dict[Record, list[asyncio.Future[f.Answer]]] = {}  # callers who wait for a commit
        self._letters = Letters()
        self._fresh: dict[str, None] = {}  # claimed, and their mail not read yet: to let go of them would lose it
        self._mail_in_hand: str | None = None
        self._lingering: dict[str, int] = {}
        self._runnable: dict[Performer, bool] = {}
        self._watched = Watched(store)
        self._beats = Beats(store)
        self._letting_go: Counter[str] = Counter()  # let go of, and that is not recorded yet
        self._astray_at: list[float] = []  # a claim failed, and may have been made, or be made yet
        self._reopening: asyncio.Task[None] | None = None
        self._prepare_guests()

    def _make_limits(self) -> Permits:
        self._permits = Permits(self.environment.clock, self._exchange, self._wanted, self._pump)
        return self._permits

    @property
    def registry(self) -> Registry:
        return self._store.registry

    @property
    def outbox(self) -> OutboxStore:
        return self._store.outbox

    def _live_session(self) -> str | None:
        return self._session.id if self._session.alive else None

    # -- Life ----------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._note_time(await self._store.open(migrate=True))
        try:
            await self._open_session()
        except BaseException:
            await self._store.close()
            raise
        self._store.listen(self._hear)
        self._polling = asyncio.create_task(self._keep_polling(), name="tenuto-poll")
        self._beating = asyncio.create_task(self._keep_beating(), name="tenuto-beats")
        if self._relay is not None:
            self._relay.start()
        if self._keep_ms is not None:
            sweeps = keep_pruning(self._store.pruning, self._now, self._keep_ms)
            self._pruning = asyncio.create_task(sweeps, name="tenuto-prune")
        self._open_guests()

    async def _open_session(self) -> None:
        environment = self.environment
        session = Session(self._store, environment.new_id(), self._lose_session, lease_ms=self._lease_ms)
        queues = sorted(self._queues) if self._works else ()
        self._note_time(await session.open(environment.worker, environment.build, queues))
        self._session = session
        self._committer = Committer(self._store, session.id, self._note_time, session.lose)
        self._committer.start()

    def _note_time(self, now_ms: int) -> None:
        clock = self.environment.clock
        if isinstance(clock, DatabaseClock):
            clock.note(now_ms)

    async def close(self, grace_ms: int) -> None:
        """In good order: what ended is recorded, what was not begun is handed back, the rest is due for others at once.

        Where the database cannot be reached, nothing is waited for beyond a few seconds: it is as if this process died.
        """
        if self._closing or self._loop is None:
            return
        self._closing = True  # from here on nothing is begun
        try:
            await self._leave_queues(LAST_WORDS_SECONDS)
            stopped = await self._stop_work(grace_ms)
            await self._close_guests(LAST_WORDS_SECONDS)
            for task in (self._polling, self._beating, self._reopening, self._pruning):
                if task is not None:
                    task.cancel()
                    await asyncio.wait([task])
            with suppress(StorageError):
                await self._beats.write(self._records)
            unknown = {(job.attempt.host, job.attempt.ref) for job in stopped}
            for record in list(self._records.values()):
                self._return_work(record, [ref for host, ref in unknown if host is record])
            for record in list(self._records.values()):
                self._release(record)
            await self._committer.stop(LAST_WORDS_SECONDS)
            if self._relay is not None:
                await self._relay.stop(min(grace_ms / 1_000, LAST_WORDS_SECONDS))
        finally:
            self._close_up()
            self._watched.close()
            self._session.stop()
        with suppress(StorageError, TimeoutError):  # others find the session over, by and by
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self._session.close()
                await self._store.tasks.sweep(self._lease_ms)
        self._store.ring(WORK)
        await self._store.close()

    def _return_work(self, record: Record, unknown: Collection[Ref]) -> None:
        """What was granted and never begun is handed back: nothing is lost with this process, and nothing counted.

        `unknown` are the attempts that had to be stopped: what came of them nobody knows.
        """
        agenda = record.state.agenda
        granted = [effect.ref for effect in agenda.values() if isinstance(effect, RunAttempt)]
        refs = tuple(ref for ref in granted if ref not in unknown and ref not in record.jobs)
        if refs and record.owned:
            self.apply(record, f.Returned(at=self._now(), refs=refs))

    def _lose_session(self) -> None:
        """This process was taken for dead. Others have its executions: forget them, and begin again."""
        records, self._records = self._records, {}
        for record in records.values():
            self._forget_work(record)
            record.wake_at = None
            self._fail_waiters(record, _Moved())
        self._claimed.clear()
        self._astray_at = []
        self._fresh.clear()
        self._letters.clear()
        self._beats.clear()
        self._forget_visits()
        self._permits.forget()
        if not self._closing:
            self._reopening = asyncio.ensure_future(self._reopen(self._committer))

    async def _reopen(self, former: Committer) -> None:
        """What the former session still wanted to commit is refused, and told so."""
        wait = self._poll_ms / 1_000
        while True:
            try:
                await self._open_session()
                break
            except StorageError:
                await asyncio.sleep(wait * random.uniform(0, 2))  # noqa: S311  (jitter)
        self._reopening = None
        self._hear(EVERYTHING)
        await former.stop()

    async def _until_reopened(self) -> None:
        if self._reopening is not None:
            await asyncio.wait([self._reopening])

    # -- Keeping -------------------------------------------------------------------------------------------------------

    def apply(self, record: Record, fact: f.Fact, rank: int | None = None, then: Then | None = None) -> f.Answer:
        state = record.state
        if self._records.get(state.id) is not record:
            return f.Ignored("stale_lease")  # given up, or let go of: whoever has it now decides
        decision = self._decide(record, fact)
        entries, answer = decision.entries, decision.answer
        if entries:
            changed, state.changed = state.changed, []
            record.unkept += 1
            kept = Kept(self, record, entries, changed, rank, answer, then, execution=state.id)
            self._write(kept)
        elif then is not None and record.unkept:
            # An answer may rest on what is not kept yet: it waits for that.
            tell = partial(self._answer_when_kept, record, then, answer)
            self._committer.add(Told(execution=state.id, tell=tell, record=record))
        elif then is not None:
            then(answer)
        if state.timers or record.wake_at is not None:
            self._set_alarm(record)
        return answer

    def _answer_when_kept(self, record: Record, then: Then, answer: f.Answer, fate: Fate) -> None:
        if fate == "committed":
            then(answer)
        else:
            self._give_up(record, fate)

    def _write(self, kept: "Kept", *, release: bool = False) -> None:
        record = kept.record
        state = record.state
        entries = kept.entries
        if entries:
            body = encode_entries(entries)
            kept.append = Append(state.id, entries[0].seq, len(entries), body)
            record.tail += len(body)
        kept.extra = self._extra(state, entries, kept.changed, kept.answer, record.history[0].actor)
        if record.tail > self._smallest_tail and record.tail > record.longest_tail and state.finished is None:
            kept.extra = Batch(session=None) if kept.extra is None else kept.extra
            kept.extra.snapshots.append(snapshots.take(record))
        status = state.status
        if status != record.kept_status or release or kept.start is not None or state.cancel is not None:
            record.kept_status = status
            where = standing(state, entries, record.epoch, release=release)
            if where.release and state.id in self._fresh:  # nobody has looked for its mail: it is due
                del self._fresh[state.id]
                where = msgspec.structs.replace(where, wake_at=state.at)
            kept.standing = where
            record.owned = not where.release
        self._committer.add(kept)

    def _extra(
        self, state: Execution, entries: list[Entry], changed: list[EffectKey], answer: f.Answer, by: str | None
    ) -> Batch | None:
        """What is seldom written: most decisions only append. `by` is who started the execution."""
        mail, self._mail_in_hand = self._mail_in_hand, None
        shown: list[ReviewRow | ReviewClosed] = []
        noted: list[AuditRow] = []
        for entry in entries:
            if type(entry.event) in PROJECTED:
                shown = list(reviews(state, entries))
                noted = audit(state, entries, by)
                break
        told = [] if self._announced is None else self._announced.rows(state, entries)
        if mail is None and not shown and not noted and not told and not state.plan.has_queues:
            return None
        extra = Batch(session=None, audit=noted, outbox=told)
        for row in shown:
            if isinstance(row, ReviewRow):
                extra.reviews.append(row)
            else:
                extra.closed.append(row)
        for task in tasks(state, changed) if state.plan.has_queues else ():
            if isinstance(task, TaskRow):
                extra.tasks.append(task)
            else:
                assert isinstance(task, TaskEnded)
                extra.tasks_ended.append(task)
        if mail is not None:
            extra.mail.append(MailVerdict(state.id, mail, encode_answer(answer)))
        return extra

    def settle(self, kept: "Kept", fate: Fate) -> None:
        record = kept.record
        if fate != "committed":
            self._give_up(record, fate)
            return
        record.unkept -= 1
        self._act(record, kept.entries, kept.changed, kept.rank)
        if kept.then is not None:
            kept.then(kept.answer)
        if record.state.finished is not None or record.state.reviews:
            self._store.ring(NEWS)
            if record.state.concurrency_key is not None and record.state.finished is not None:
                self._hint_at_work()  # whoever waited for its key
            if record.waiters:
                self._tell_waiters(record)
        if self._relay is not None and kept.extra is not None and kept.extra.outbox:
            self._relay.nudge()
        if not record.jobs:
            self._let_go_if_idle(record)

    def _give_up(self, record: Record, fate: Fate) -> None:
        """What was decided is not recorded: that state never came to be, and whoever waits for it is told."""
        if self._records.get(record.state.id) is record:
            del self._records[record.state.id]
        record.wake_at = None
        self._letters.left(record.state.id)
        self._forget_work(record)
        self._fail_waiters(record, _Moved())
        for answered in self._asked.pop(record, ()):
            if not answered.done():
                answered.set_exception(_not_kept(record.state.id, fate))

    def _let_go_if_idle(self, record: Record) -> None:
        """An execution that only waits leaves memory; it is claimed again when it is due or has mail."""
        state = record.state
        if record.unkept or self._records.get(state.id) is not record or state.id in self._fresh:
            return
        if record.parked and not (self._works and self._can_run(record.performer)):
            self._hand_over(record)
            return
        if not record.is_idle:
            return
        if state.finished is not None:
            self._release(record)
            return
        if has_queued(state) and self._lingers(state.id):
            return
        waits_long = record.wake_at is None or record.wake_at - self._now() > EVICT_MS
        if waits_long and not record.parked and not any(isinstance(e, RunAttempt) for e in state.agenda.values()):
            self._release(record)

    def _lingers(self, id: str) -> bool:
        """Whether an execution whose attempts run elsewhere is kept for a while: most answers come soon."""
        now = self._now()
        return now < self._lingering.setdefault(id, now + EVICT_MS)

    def _end_lingering(self) -> None:
        now = self._now()
        for id in [id for id, until in self._lingering.items() if until <= now]:
            if (record := self._records.get(id)) is not None:
                self._let_go_if_idle(record)
            del self._lingering[id]

    def _hand_over(self, record: Record) -> None:
        """This process decided for it, and cannot run what was granted: that is for whoever can."""
        if record.jobs or record.tickets or record.zombies or record.held:
            return
        self._return_work(record, ())
        if not record.unkept:  # else it comes here again, when that is kept
            self._fail_waiters(record, _Moved())
            self._release(record, HandedOver)

    def _release(self, record: Record, kind: "type[Released] | None" = None) -> None:
        state = record.state
        if self._records.get(state.id) is not record:
            return
        del self._records[state.id]
        self._letters.left(state.id)
        record.wake_at = None
        if record.shown and state.finished is None:
            self._beats.leave(state.id)
        if record.owned:
            self._letting_go[state.id] += 1
            kept = (kind or Released)(self, record, [], [], None, f.APPLIED, None, execution=state.id)
            self._write(kept, release=True)

    def has_left(self, execution_id: str) -> None:
        self._letting_go[execution_id] -= 1
        if not self._letting_go[execution_id]:
            del self._letting_go[execution_id]

    def _request_hold(self, record: Record, effect: RequestHold) -> None:
        fact = f.HoldGranted(at=self._now(), amount=effect.amount, admitted=record.state.concurrency_key is None)
        self._soon(record, lambda: void(self.apply(record, fact, RESUME)))

    async def prune(self, keep_ms: int) -> Pruned:
        self._check_open()
        return await prune(self._store.pruning, self._now(), keep_ms)

    @asynccontextmanager
    async def inbox(self, consumer: str, id: str, connection: object) -> AsyncIterator[bool]:
        yield await note_once(caller_of(connection), consumer, id, self._now())

    @property
    def notices(self) -> Notices:
        return self._store

    def vitals(self) -> Vitals:
        vitals = super().vitals()
        if not vitals.is_open or self._polling is None:
            return vitals
        return replace(
            vitals,
            claims=not self._polling.done(),
            may_start=self._session.may_start,
            renewed_ms=self._session.renewed_ms,
            uncommitted=self._committer.waiting,
            committing_ms=self._committer.committing_ms,
        )

    async def check(self) -> None:
        await self._store.check()

    async def backlog(self) -> list[BacklogRow]:
        return await self._store.backlog()

    # -- Definitions ---------------------------------------------------------------------------------------------------

    async def publish(self, program: Program) -> None:
        self.provide(program)
        await self._ensure_stored(program)

    async def _ensure_stored(self, program: Program) -> None:
        at = (program.name, program.version)
        if self._stored.get(at) == program.plan.hash:
            return
        row = definition_row(program, self._now())
        stored = await self._store.save_definition(row)
        if stored.status == "draft":  # what a process provides is published: drafts give way to it
            await self.catalog.replace(row)
            await self.catalog.move(*at, "draft", "published", row.created_at)
            stored = await self._store.save_definition(row)
        self._check_stored(program, stored.hash, stored.document)
        self._stored[at] = stored.hash

    def _check_stored(self, program: Program, hash: str, document: bytes) -> None:
        if hash != program.plan.hash:
            self._forget(program)
            raise changed_plan(program, msgspec.json.decode(document))

    async def program(self, name: str, version: int | None) -> Program:
        if version is None:
            newest = self._newest.get(name)
            if newest is None:
                return (await self._stored_performer(name, None)).program
            version = newest.program.version
            if self._in_catalog.get((name, version), "published") != "published":
                return (await self._stored_performer(name, None)).program
        performer = await self._stored_performer(name, version)
        check_startable(name, version, self._in_catalog.get((name, version), "published"))
        return performer.program

    @property
    def catalog(self) -> Catalog:
        return self._store.catalog

    async def keep_definitions(self) -> None:
        for performer in list(self._performers.values()):
            await self._ensure_stored(performer.program)

    def knows(self, name: str) -> bool:
        return name in self._newest

    def note_definition(self, name: str, version: int, status: DefinitionStatus) -> None:
        self._in_catalog[name, version] = status

    async def _seal_audit(self) -> None:
        if self._now() >= self._seal_audit_at:
            self._seal_audit_at = self._now() + SEAL_MS
            await seal(self.registry)

    async def _read_catalog(self) -> None:
        """Definitions that others published, or deprecated: from now on they are claimed here too, or not started."""
        if self._now() < self._read_catalog_at:
            return
        self._read_catalog_at = self._now() + CATALOG_MS
        self._in_catalog = await self.catalog.statuses()
        for at, status in self._in_catalog.items():
            if status != "draft" and at not in self._performers and at not in self._unreadable:
                try:
                    await self._stored_performer(*at)
                except (DefinitionError, msgspec.ValidationError):  # of another release: somebody else can run it
                    self._unreadable.add(at)

    async def _stored_performer(self, name: str, version: int | None) -> Performer:
        """What is stored, though this process has no code for it: enough to start, read and decide."""
        if version is not None and (known := self._performers.get((name, version))) is not None:
            return known
        row = await self._store.definition(name, version)
        if row is not None and row.status == "draft":
            row = None
        if row is None:
            which = f"{name!r} in version {version}" if version is not None else f"named {name!r}"
            raise NotFound(f"There is no definition {which}.", hint="register or apply it first")
        program = self._compile(from_document(msgspec.json.decode(row.document)))
        performer = self._performers.get((row.name, row.version))
        if performer is None:
            performer = self._know(program)
            self._stored[row.name, row.version] = row.hash
            self._in_catalog[row.name, row.version] = row.status
            self._runnable.clear()
        return performer

    async def definitions(self) -> list[Published]:
        await self.keep_definitions()
        rows = await self._store.definitions()
        return [_published(row) for row in rows]

    # -- Starting ------------------------------------------------------------------------------------------------------

    async def submit(self, submission: Submission) -> Submitted:
        self._check_open()
        if submission.connection is not None:
            return await self._submit_within(caller_of(submission.connection), submission)
        await self._ensure_stored(submission.program)
        program = submission.program
        performer = self._performer(program.name, program.version)
        while True:
            owned = self._works and len(self._records) < IN_HAND and self._can_run(performer)
            owned = owned and performer not in self._held_up
            record = Record(self, performer, submission.idempotency_key)
            id = self.environment.new_id()
            fate = await self._start_record(record, id, submission, owned=owned)
            if fate == "committed":
                return Submitted(id, created=True)
            if fate not in ("fenced", "not_owner"):
                return await self._not_started(submission, fate)
            await self._until_reopened()  # this process was taken for dead, and begins again
            self._check_open()

    async def _start_record(self, record: Record, id: str, submission: Submission, *, owned: bool) -> Fate:
        assert self._loop is not None
        settled: asyncio.Future[Fate] = self._loop.create_future()
        fact = self._start_fact(id, submission, admitted=submission.concurrency_key is None, owned=owned)
        record.epoch = 1 if owned else 0  # what nobody owns is nobody's loss
        start = new_execution(submission, fact, self._session.id if owned else None)
        decision = self._decide(record, fact)
        changed, record.state.changed = record.state.changed, []
        if owned:
            self._records[id] = record
            record.unkept += 1
            self._set_alarm(record)
        kept = Started(
            self, record, decision.entries, changed, None, decision.answer, None, settled, execution=id, start=start
        )
        self._write(kept, release=not owned)
        fate = await settled
        if submission.concurrency_key is not None:
            self._hear(EVERYTHING)
        if not owned:
            self._hint_at_work()
        return fate

    def _hint_at_work(self) -> None:
        """Something is due that nobody owns: here or elsewhere somebody may be free for it."""
        self._nudge(WORK)
        self._store.ring(WORK)

    async def _not_started(self, submission: Submission, fate: Fate) -> Submitted:
        if fate == "duplicate_key":
            assert submission.idempotency_key is not None
            row = await self._store.by_key(submission.tenant, submission.idempotency_key)
            assert row is not None
            return replayed(submission, row.id, row.request_hash)
        if fate in ("parked", "unknown"):
            raise _not_kept("", fate)
        raise refusal_of(submission, fate)

    async def _submit_within(self, caller: Caller, submission: Submission) -> Submitted:
        """In the caller's transaction: nobody owns it, and any worker claims it when that is committed."""
        assert self._loop is not None
        await check_database(caller, self._session.id)
        await self._ensure_stored_within(caller, submission.program)
        id = self.environment.new_id()
        refusal = await start_within(caller, self._unowned_start(id, submission))
        if refusal == "duplicate_key":
            assert submission.idempotency_key is not None
            existing = await find_existing(caller, submission.tenant, submission.idempotency_key)
            assert existing is not None
            return replayed(submission, *existing)
        if refusal is not None:
            raise refusal_of(submission, refusal)
        for seconds in NUDGE_SECONDS:
            self._loop.call_later(seconds, self._hint_at_work)
        return Submitted(id, created=True)

    def _unowned_start(self, id: str, submission: Submission) -> Batch:
        state = Execution(submission.program.plan)
        fact = self._start_fact(id, submission, admitted=submission.concurrency_key is None, owned=False)
        decision = decide(state, fact, fact.at, 0)
        extra = self._extra(state, decision.entries, state.changed, decision.answer, fact.actor)
        batch = extra or Batch(session=None)
        batch.starts = [new_execution(submission, fact, None)]
        batch.standings = {id: standing(state, decision.entries, 0, release=True)}
        batch.appends = [Append(id, decision.entries[0].seq, len(decision.entries), encode_entries(decision.entries))]
        return batch

    async def _ensure_stored_within(self, caller: Caller, program: Program) -> None:
        """SQLite has one writer, and that is the caller now: a definition it has not yet is written by him too."""
        if caller.dialect == "postgres" or self._stored.get((program.name, program.version)) == program.plan.hash:
            await self._ensure_stored(program)
            return
        self._check_stored(program, *await save_definition(caller, definition_row(program, self._now())))

    # -- Facts ---------------------------------------------------------------------------------------------------------

    async def tell(self, tenant: str | None, execution_id: str, fact: f.Fact) -> f.Answer:
        self._check_open()
        if isinstance(fact, f.Retry):
            row = await self._row(tenant, execution_id)
            fact = msgspec.structs.replace(fact, admitted=row.concurrency_key is None)
            if row.status == "failed":
                await self._check_room(row.tenant)
        record = self._records.get(execution_id)
        if record is not None and record.owned and (tenant is None or record.state.tenant == tenant):
            with suppress(_Moved):  # nothing of it was recorded, and somebody else is to hear it
                return await self._apply_and_wait(record, fact)
        await self._row(tenant, execution_id)
        return await self._send(execution_id, fact)

    async def _check_room(self, tenant: str) -> None:
        """For another run. It counts when it is opened, whoever came first: unlike a start it is not created twice."""
        for use in await self._store.limits.tenants(tenant):
            if use.in_flight >= use.max_in_flight:
                raise tenant_is_full(tenant)

    async def _apply_and_wait(self, record: Record, fact: f.Fact) -> f.Answer:
        assert self._loop is not None
        answered: asyncio.Future[f.Answer] = self._loop.create_future()

        def then(answer: f.Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        rank = RESUME if isinstance(fact, f.Resume | f.Decide | f.Retry) else None
        self._asked.setdefault(record, []).append(answered)
        try:
            self.apply(record, fact, rank, then)
            return await answered
        finally:
            self._no_longer_asked(record, answered)

    def _no_longer_asked(self, record: Record, answered: "asyncio.Future[f.Answer]") -> None:
        left = [other for other in self._asked.get(record, ()) if other is not answered]
        if left:
            self._asked[record] = left
        else:
            self._asked.pop(record, None)

    async def _send(self, execution_id: str, fact: f.Fact) -> f.Answer:
        """Through the mailbox: to whoever owns the execution, or, if nobody does, to ourselves."""
        id = self.environment.new_id()
        posted = await self._store.post(id, execution_id, encode_fact(fact))
        if posted is None:
            raise NotFound(f"There is no execution {execution_id!r}.")
        _, owner = posted
        if owner is not None and owner != self._session.id:
            self._store.ring(mail_for(owner))
        else:
            await self._take(execution_id)
            await self._read_mail()
        return await self._verdict(id, execution_id)

    async def _verdict(self, mail_id: str, execution_id: str) -> f.Answer:
        """What the owner says. If there is none any more, this process takes the execution and says it itself."""
        deadline = monotonic() + VERDICT_SECONDS
        wait = 0.005
        while monotonic() < deadline:
            try:
                if (verdict := await self._store.verdict(mail_id)) is not None:
                    return decode_answer(verdict)
                row = await self._store.row(execution_id)
                if row is not None and row.parked:
                    raise _not_kept(execution_id, "parked")
                await self._take(execution_id)
                await self._read_mail()
            except StorageError as error:
                if error.code == "incompatible":
                    raise
            await asyncio.sleep(wait)
            wait = min(wait * 2, self._poll_ms / 1_000)
        raise ResultTimeout("The command was delivered, and its verdict is not known yet; it will be acted upon.")

    async def _take(self, execution_id: str) -> None:
        record = self._records.get(execution_id)
        # One that was given up may still be here for a handler that has not ended: it is ours no more.
        in_hand = record is not None and (record.owned or record.unkept)
        if not in_hand and self._session.may_start:
            with self._claiming():
                claim = await self._store.claim_one(self._session.id, execution_id)
            if claim is not None:
                self._claimed[claim.id] = claim
                await self._adopt_claimed()

    # -- Claims and mail -----------------------------------------------------------------------------------------------

    async def _keep_polling(self) -> None:
        """What is stored is the truth, and is looked at every so often; hints only say when to look sooner."""
        reap_at = 0.0
        while True:
            with suppress(TimeoutError):
                # Not `wait_for`: before Python 3.12 it swallows a cancellation that meets the event.
                async with asyncio.timeout(self._poll_ms / 1_000 * random.uniform(0, 2)):  # noqa: S311  (jitter)
                    await self._nudged.wait()
            self._nudged.clear()
            hints, self._hints = self._hints or EVERYTHING, frozenset()
            if not self._session.alive:
                continue
            with suppress(StorageError):  # it is tried again: what is stored waits
                if (now := monotonic()) >= reap_at:
                    reap_at = now + REAP_SECONDS * random.uniform(0, 2)  # noqa: S311  (jitter)
                    reaped = await self._store.reap()
                    if reaped:
                        self._store.ring(WORK)
                    await self._sweep(at_once=reaped > 0)
                await self._read_catalog()
                await self._seal_audit()
                await self._look(hints)
                self._end_lingering()

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(EVERY_SECONDS * random.uniform(0, 2))  # noqa: S311  (jitter)
            with suppress(StorageError):
                await self._beats.write(self._records)

    async def _look(self, hints: Hints) -> None:
        if hints & {*EVERYTHING, WORK}:
            await self._claim()
        if self._fresh or (self._records and hints & {*EVERYTHING, mail_for(self._session.id)}):
            await self._read_mail()
        rest = await self._watched.look(self._records)
        if rest and self._loop is not None:
            self._loop.call_later(rest, self._nudge, NEWS)

    def _nudge(self, hint: str) -> None:
        self._hear(frozenset({hint}))

    def _hear(self, hints: Hints) -> None:
        self._hints |= hints
        self._nudged.set()
        self._hear_of_tasks(hints)

    async def _claim(self) -> None:
        if self._astray_at and monotonic() >= self._astray_at[0]:
            await self._find_astray()
        await self._adopt_claimed()
        if not self._works or not self._session.may_start or self._closing:
            return
        self._held_up = self._find_held_up()
        plans = [
            f"{name}/{version}"
            for (name, version), performer in self._performers.items()
            if self._can_run(performer) and performer not in self._held_up
        ]
        if not plans:
            return
        room = min(IN_HAND - len(self._records), CLAIM_AT_ONCE)
        is_full = (
            room <= 0 or self._tasks.backlog > self._tasks.size or self._in_threads.backlog > self._in_threads.size
        )
        with self._claiming():
            claims = await (self._claim_in_turn(plans) if is_full else self._store.claim(self._session.id, plans, room))
        self._claimed.update((claim.id, claim) for claim in claims)
        await self._adopt_claimed()
        if len(claims) == room:
            self._nudge(WORK)  # there may be more

    async def _claim_in_turn(self, plans: list[str]) -> list[Claim]:
        """There is more here than can run. Tenants that have less than their share of it come in all the same."""
        slots = self._tasks.size + self._in_threads.size
        room = min(IN_HAND + slots - len(self._records), CLAIM_AT_ONCE)
        if room <= 0 or monotonic() < self._next_turn:
            return []
        tenants = Counter(record.state.tenant for record in self._records.values())
        share = max(1, 2 * slots // (len(tenants) + 1))
        full = [tenant for tenant, number in tenants.items() if number >= share]
        turn = Turn(after=self._turn, full=full, each=share, limit=room)
        claims, self._turn = await self._store.claim_in_turn(self._session.id, plans, turn)
        self._next_turn = monotonic() + (0 if self._turn else self._poll_ms / 1_000)
        return claims

    def _find_held_up(self) -> frozenset[Performer]:
        """Programs of which so much waits for a limit here that more of them would only be in the way of others."""
        waiting: Counter[Performer] = Counter()
        for lane in (self._tasks, self._in_threads):
            for record, number in lane.held_up():
                waiting[record.performer] += number
        return frozenset(performer for performer, number in waiting.items() if number > self._tasks.size)

    @contextmanager
    def _claiming(self) -> Iterator[None]:
        try:
            yield
        except StorageError:
            self._astray_at = [monotonic() + seconds for seconds in ASTRAY_SECONDS]
            raise

    async def _find_astray(self) -> None:
        """A claim may have been granted though its answer was lost: then this session owns what nobody has in hand.

        What it just lets go of is not that. Nor is it over with one look: the claim may be under way still.
        """
        session, looks = self._session, self._astray_at
        known = {*self._records, *self._letting_go}
        for claim in await self._store.owned(session.id):
            held = claim.id in known or claim.id in self._records or claim.id in self._claimed
            if not held and session is self._session:
                self._claimed[claim.id] = claim
        del looks[0]

    async def _adopt_claimed(self) -> None:
        """Takes into hand what was claimed. What cannot be loaded now stays claimed, and is loaded at the next poll."""
        if not self._claimed:
            return
        session = self._session
        progress = await self._beats.give(list(self._claimed))
        for loaded in await self._store.load(list(self._claimed), short=True):
            claim = self._claimed.pop(loaded.row.id, None)
            if claim is not None:
                try:
                    await self._adopt(claim, loaded, session, progress.get(claim.id, []))
                except StorageError:
                    self._claimed[claim.id] = claim
                    raise
                except Exception as error:  # whatever it is: it is this one's affair, and the others go on
                    await self._set_aside(claim, error)

    async def _set_aside(self, claim: Claim, error: Exception) -> None:
        """This release cannot read what is recorded. Another may; it is looked at again after a while."""
        assert self._loop is not None
        message = f"Execution {claim.id} cannot be read by this release; it is set aside."
        self._loop.call_exception_handler({"message": message, "exception": error})
        self._records.pop(claim.id, None)
        self._fresh.pop(claim.id, None)
        await self._store.park(claim.id, "incompatible", SET_ASIDE_MS)

    def _can_run(self, performer: Performer) -> bool:
        """Whether this process has the handlers of all steps that are not a queue's."""
        known = self._runnable.get(performer)
        if known is None:
            missing = performer.program.missing_handlers()
            known = self._runnable[performer] = all(performer.handler(name) is not None for name in missing)
        return known

    def provide(self, program: Program) -> None:
        super().provide(program)
        self._runnable.clear()

    def provide_handler(self, handler: Handler) -> None:
        super().provide_handler(handler)
        self._runnable.clear()

    async def _adopt(self, claim: Claim, loaded: Loaded, session: Session, progress: list[ProgressRow]) -> None:
        performer = await self._stored_performer(claim.definition, claim.version)
        record = Record(self, performer, loaded.row.key)
        await self._restore(record, loaded)
        if session is not self._session or not session.alive:
            return  # it was claimed in the name of one that is over
        self._beats.take(record, progress)
        record.is_active = record.state.finished is None
        record.epoch = claim.epoch
        record.kept_status = record.state.status
        self._records[claim.id] = record
        fact = f.Taken(at=self._now(), epoch=claim.epoch, lease_ms=self._lease_ms)
        self._fresh[claim.id] = None
        self._letters.taken(claim.id)
        taken: list[EffectKey] | None = None  # what is granted on top of this is not recorded with it

        def follow(_: f.Answer) -> None:
            self._follow(record, list(record.state.agenda) if taken is None else taken, RESUME)

        self.apply(record, fact, RESUME, follow)
        taken = list(record.state.agenda)

    async def _restore(self, record: Record, loaded: Loaded) -> None:
        if loaded.snapshot is None or not snapshots.restore(record, loaded):
            await self._restore_whole(record, loaded)
        if self._observers and record.unread:
            await self._read_all(record)
        record.state.changed.clear()

    async def _restore_whole(self, record: Record, loaded: Loaded) -> None:
        """From the beginning: the history is short, or what cuts it short is another release's."""
        if loaded.snapshot is not None:
            (loaded,) = await self._store.load([loaded.row.id])
        entries = [entry for body in loaded.bodies for entry in decode_entries(body)]
        for entry in entries:
            evolve(record.state, entry)
        record.note(entries)
        record.tail = sum(len(body) for body in loaded.bodies)

    def _has_to_read(self, ticket: Ticket) -> bool:
        seqs = snapshots.needed(ticket.record, ticket.ref)
        if seqs:
            fetching = asyncio.ensure_future(self._read_for(ticket, seqs))
            self._fetching[fetching] = None
            fetching.add_done_callback(self._fetching.pop)
        return bool(seqs)

    async def _read_for(self, ticket: Ticket, seqs: list[int]) -> None:
        record, ref, role = ticket
        while record.tickets.get(ref) is ticket:
            try:
                snapshots.fill(record, await self._store.holding(record.state.id, seqs))
                break
            except StorageError:
                await asyncio.sleep(self._poll_ms / 1_000)
        if record.tickets.get(ref) is ticket:
            rank = self._rank(record, ref.phase, RESUME)
            self._lane(role).enter(record.state.tenant, record, rank, role.limits, ticket)

    async def _read_all(self, record: Record) -> None:
        """What a snapshot spared: somebody wants to see the whole history."""
        snapshots.fill(record, await self._store.bodies(record.state.id, 1, record.unread))
        record.unread = 0

    async def _read_mail(self) -> None:
        fresh = list(self._fresh)
        query = self._letters.begin()
        try:
            found = await self._store.mail(self._session.id)
            for mail in found:
                record = self._records.get(mail.execution)
                if record is not None and self._letters.is_new(query, mail.id, mail.execution):
                    self._letters.read(mail.id, mail.execution)
                    self._read(record, mail)
        finally:
            self._letters.end(query)
        if len(found) == MAIL_AT_ONCE:  # there may be more: nothing is let go of before its mail was seen
            assert self._loop is not None
            self._loop.call_later(MORE_MAIL_SECONDS, self._nudge, mail_for(self._session.id))
            return
        for id in fresh:
            self._fresh.pop(id, None)
            if (record := self._records.get(id)) is not None:
                self._let_go_if_idle(record)

    def _read(self, record: Record, mail: Mail) -> None:
        fact = msgspec.structs.replace(decode_fact(mail.body), at=mail.received_at, cause=mail.id)
        rank = RESUME if isinstance(fact, f.Resume | f.Decide | f.Retry) else None
        self._mail_in_hand = mail.id
        recorded = False

        def heard(_: f.Answer) -> None:
            if recorded:
                self._mail_settled(mail.id, "committed")

        answer = self.apply(record, fact, rank, heard)
        recorded = self._mail_in_hand is None
        if not recorded:  # but the verdict is
            extra = self._extra(record.state, [], [], answer, None)
            tell = partial(self._mail_settled, mail.id)
            self._committer.add(Told(execution=record.state.id, extra=extra, tell=tell, record=record))

    def _mail_settled(self, id: str, fate: Fate) -> None:
        self._letters.settle(id, fate)
        if id in self._asking:
            self._knock.set()

    # -- Reading -------------------------------------------------------------------------------------------------------

    async def _row(self, tenant: str | None, execution_id: str) -> ExecutionRow:
        row = await self._store.seen_by(tenant).row(execution_id)
        if row is None or (tenant is not None and row.tenant != tenant):
            raise NotFound(f"There is no execution {execution_id!r}.")
        return row

    async def read(self, tenant: str | None, execution_id: str) -> Reading:
        reading = await self._read_as_decided(tenant, execution_id)
        if execution_id not in self._records and reading.state.finished is None:
            reading.activity = await self._beats.show(execution_id, reading.activity)
        if reading.program.plan.has_queues and has_queued(reading.state):
            reading.activity = await with_queued(self._store.tasks, execution_id, reading.activity)
        return reading

    async def _read_as_decided(self, tenant: str | None, execution_id: str) -> Reading:
        record = self._records.get(execution_id)
        if record is not None and (tenant is None or record.state.tenant == tenant):
            reading = record.reading()
            if record.unread:
                await self._read_all(record)
            if not record.unkept or await self._is_kept(execution_id):
                return reading
        found = await self._store.seen_by(tenant).load([execution_id])
        if not found or (tenant is not None and found[0].row.tenant != tenant) or not found[0].bodies:
            raise NotFound(f"There is no execution {execution_id!r}.")  # or it is being pruned at this moment
        return await self._reading(found[0])

    async def _reading(self, loaded: Loaded) -> Reading:
        performer = await self._stored_performer(loaded.row.definition, loaded.row.version)
        state = Execution(performer.program.plan)
        entries = [entry for body in loaded.bodies for entry in decode_entries(body)]
        for entry in entries:
            evolve(state, entry)
        activity = self._unclaimed(performer, state, loaded.row) if loaded.row.owner is None else NOTHING_UNDER_WAY
        return Reading(performer.program, state, entries, idempotency_key=loaded.row.key, activity=activity)

    def _unclaimed(self, performer: Performer, state: Execution, row: ExecutionRow) -> Activity:
        """Nobody has the execution in hand: what it is to run waits for a worker that has the handlers, or for room."""
        if row.parked:
            return Activity(set_aside=row.parked)
        waiting: dict[Ref, Waiting] = {}
        for effect in state.agenda.values():
            holder = holder_of(state, effect.ref) if isinstance(effect, RunAttempt) else None
            if isinstance(effect, RunAttempt) and holder is not None:
                waiting[effect.ref] = self._why_unclaimed(performer, performer.role(holder.node, effect.ref.phase))
        return Activity(waiting=waiting)

    def _why_unclaimed(self, performer: Performer, role: Role) -> Waiting:
        if not self._works or not self._can_run(performer):
            return Waiting("no_worker", role.handler_name or "")
        spent = self.bounds.spent(role.limits)
        return Waiting("slot") if spent is None else Waiting("limit", spent)

    async def _state(self, execution_id: str) -> Execution:
        """Where an execution stands, for those who do not ask how it came there."""
        if execution_id not in self._records:
            for loaded in await self._store.load([execution_id], short=True):
                performer = await self._stored_performer(loaded.row.definition, loaded.row.version)
                state = snapshots.state_of(performer.program.plan, loaded)
                if state is not None:
                    return state
        return (await self.read(None, execution_id)).state

    async def _is_kept(self, execution_id: str) -> bool:
        """Whether all that was decided so far was kept, once that is known: nobody is shown what may yet be lost."""
        assert self._loop is not None
        kept: asyncio.Future[bool] = self._loop.create_future()

        def settle(fate: Fate) -> None:
            if not kept.done():
                kept.set_result(fate == "committed")

        self._committer.add(Told(execution=execution_id, tell=settle, record=self._records.get(execution_id)))
        return await kept

    async def entries(self, tenant: str | None, execution_id: str, after: int, *, again: bool = False) -> list[Entry]:
        seen = self._store.seen_by(tenant)
        # What was decided together is one row, and somebody who comes back may have stopped in the middle of one.
        bodies = await (seen.tail(execution_id, after) if again else seen.bodies(execution_id, after + 1, LAST_SEQ))
        return [entry for body in bodies for entry in decode_entries(body) if entry.seq > after]

    async def wait(self, tenant: str | None, execution_id: str, until: Until, timeout_ms: int | None) -> Reading:
        loop = asyncio.get_running_loop()
        deadline = None if timeout_ms is None else loop.time() + timeout_ms / 1_000
        while True:
            left = None if deadline is None else max(0, int((deadline - loop.time()) * 1_000))
            record = self._records.get(execution_id)
            if record is not None and (tenant is None or record.state.tenant == tenant):
                with suppress(_Moved):
                    reading = await self._await(record, until, left)
                    if record.unread:
                        await self._read_all(record)
                    return reading
                continue
            reading = await self.read(tenant, execution_id)
            while not has_come(reading.state, until):
                self._check_open()
                left = None if deadline is None else max(0, int((deadline - loop.time()) * 1_000))
                moved = await self._watched.until_moved(execution_id, reading.state.status, left)
                if moved is None:
                    break
                reading = await self._reading(moved)
            else:
                return reading

    async def executions(self, wanted: Filter, cursor: str | None, limit: int) -> Page[Summary]:
        rows = await self._store.seen_by(wanted.tenant).executions(_wanted(wanted), cursor, limit + 1)
        more = rows[limit - 1].id if len(rows) > limit else None
        return Page([_summary(row) for row in rows[:limit]], more)

    async def count(self, wanted: Filter, by: Literal["status", "definition"]) -> dict[str, int]:
        return await self._store.seen_by(wanted.tenant).count(_wanted(wanted), by)

    async def reviews(self, wanted: Filter, cursor: str | None, limit: int) -> Page[ReviewDocument]:
        kinds = PEOPLES if wanted.kind is None else (wanted.kind,)
        found = await self.review_page(_reviews_wanted(wanted, kinds), cursor, limit)
        return Page([review_document(row) for row in found.items], found.next_cursor)

    async def dead_letters(self, wanted: Filter, cursor: str | None, limit: int) -> Page[DeadLetterRow]:
        found = await self.review_page(_reviews_wanted(wanted, ("dead_letter",)), cursor, limit)
        return Page([dead_letter_document(row) for row in found.items], found.next_cursor)

    async def review_page(self, wanted: ReviewsWanted, cursor: str | None, limit: int) -> Page[StoredReview]:
        rows = await self._store.seen_by(wanted.tenant).review_book.page(wanted, cursor, limit + 1)
        return Page(rows[:limit], rows[limit - 1].id if len(rows) > limit else None)

    async def review(self, tenant: str | None, id: str) -> StoredReview:
        row = await self._store.seen_by(tenant).review_book.find(id)
        if row is None or tenant not in (None, row.tenant):
            raise NotFound(f"There is no review {id!r}.")
        return row

    async def workers(self) -> list[WorkerRow]:
        return [_worker(row) for row in await self._store.sessions() if row.queues != "[]"]

    async def limit(self, name: str, *, rate: tuple[int, int] | None, concurrency: int | None) -> None:
        await self._store.limits.set(name, rate, concurrency)
        self._permits.changed()

    async def _exchange(self, ask: Ask) -> Dealt | None:
        session = self._session
        if not session.may_start:
            return None
        dealt = await self._store.limits.exchange(session.id, ask)
        if dealt is None and session is self._session:
            session.lose()
        return None if session is not self._session else dealt

    async def limits(self) -> list[LimitRow]:
        return [_limit_row(use) for use in await self._store.limits.all()]

    async def tenant_limit(self, tenant: str, max_in_flight: int | None) -> None:
        await self._store.limits.set_tenant(tenant, max_in_flight)

    async def tenant_limits(self, tenant: str | None) -> list[TenantLimitRow]:
        return [_tenant_row(use) for use in await self._store.limits.tenants(tenant)]

    async def room(self, tenant: str) -> int | None:
        wait = ROOM_SECONDS
        while True:
            await asyncio.sleep(wait)
            self._check_open()
            uses = await self._store.limits.tenants(tenant)
            if not uses:
                return None
            if uses[0].in_flight < uses[0].max_in_flight:
                return uses[0].max_in_flight - uses[0].in_flight
            wait = min(2 * wait, self._poll_ms / 1_000)

    async def statuses(self, ids: Sequence[str]) -> dict[str, ExecutionStatus]:
        return await self._store.statuses(ids)  # type: ignore[return-value]  # the column holds nothing else


def void(_: object) -> None:
    """For callbacks whose caller wants no answer."""


class _Moved(Exception):
    """The execution is no longer in this process's hands; ask the database."""


def _not_kept(execution_id: str, fate: Fate) -> Exception:
    """What callers are told whose decision was not recorded."""
    if fate == "parked":
        return StorageError(
            f"The database refused what was to be recorded for execution {execution_id}; it is set aside.",
            code="incompatible",
            hint="its status says so; any command tries again",
        )
    if fate == "unknown":
        return StorageError(
            "The engine was closed while the database could not be reached; whether this was recorded is not known.",
            code="outcome_unknown",
            hint="ask again when the database is back; with an idempotency key a start can be repeated",
        )
    return _Moved()


PEOPLES = tuple(kind for kind in get_args(ReviewKind) if kind != "dead_letter")


def _reviews_wanted(wanted: Filter, kinds: tuple[str, ...]) -> ReviewsWanted:
    return ReviewsWanted(
        tenant=wanted.tenant, kinds=kinds, definition=wanted.definition, error_class=wanted.error_class
    )


def _wanted(wanted: Filter) -> Wanted:
    return Wanted(
        tenant=wanted.tenant,
        status=wanted.status,
        definition=wanted.definition,
        correlation_id=wanted.correlation_id,
        target_id=wanted.target_id,
        since=wanted.since_ms,
        before=wanted.before_ms,
        active=wanted.active,
        newest_first=wanted.newest_first,
        kind=wanted.kind,
        error_class=wanted.error_class,
    )


def _summary(row: ExecutionRow) -> Summary:
    return Summary(
        execution_id=row.id,
        tenant=row.tenant,
        definition=row.definition,
        version=row.version,
        status=row.status,  # type: ignore[arg-type]  # the column holds nothing else
        correlation_id=row.correlation_id or row.id,
        target=(row.target_type, row.target_id) if row.target_id else None,
        started_at=row.created_at,
        ended_at=row.ended_at,
        error_class=row.error_class,
    )


def _worker(row: SessionRow) -> WorkerRow:
    return {
        "id": row.id,
        "worker": row.worker,
        "build": row.build,
        "queues": msgspec.json.decode(row.queues, type=list[str]),
        "started_at": rfc3339(row.started_at),
        "expires_at": rfc3339(row.expires_at),
        "executions": row.executions,
    }


def _published(row: DefinitionRow) -> Published:
    definition = from_document(msgspec.json.decode(row.document))
    return Published(definition=definition, status=row.status, plan_hash=row.hash)  # type: ignore[arg-type]  # checked


def _limit_row(use: LimitUse) -> LimitRow:
    rate = None if use.count is None or use.period_ms is None else (use.count, use.period_ms)
    return limit_row(use.name, rate, use.concurrency, use.running, use.waiting)


def _tenant_row(use: TenantUse) -> TenantLimitRow:
    return {"tenant": use.tenant, "max_in_flight": use.max_in_flight, "in_flight": use.in_flight}
