"""The bugs that are planted in the durable runtime, its store and its relay: each is a list of changes."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import apsw
import msgspec

from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref
from tenuto.kernel.decide.attempts import reports
from tenuto.kernel.effects import DispatchAttempt, Effect
from tenuto.runtime.durable import committer, parked_executions, session, snapshots
from tenuto.runtime.durable import unread_mail as letters
from tenuto.runtime.durable.claimer import Claimer
from tenuto.runtime.durable.committer import Committer, Fate, Write
from tenuto.runtime.durable.decision_writer import DecisionWrite, DecisionWriter
from tenuto.runtime.durable.held_executions import HeldExecutions
from tenuto.runtime.durable.mailbox import Mailbox
from tenuto.runtime.durable.permits import Permits
from tenuto.runtime.durable.releaser import Releaser
from tenuto.runtime.executor.held_execution import Record, Ticket
from tenuto.runtime.executor.worker import Worker
from tenuto.runtime.shared.outbox_relay import Relay
from tenuto.storage.permits import LimitRow
from tenuto.storage.port import MAIL_AT_ONCE, Batch, Claim, Committed, Mail
from tenuto.storage.shared import rows
from tenuto.storage.sqlite import admissions as sqlite_admissions
from tenuto.storage.sqlite import commits as sqlite
from tenuto.storage.sqlite import plain_batch as sqlite_plain
from tenuto.storage.sqlite import tasks as sqlite_tasks
from tenuto.storage.sqlite.claims import SqliteClaims
from tenuto.storage.sqlite.commits import SqliteCommits
from tenuto.storage.sqlite.mailbox import SqliteMailbox
from tenuto.storage.sqlite.sessions import SqliteSessions
from tenuto.storage.sqlite.statements import is_live
from tenuto.storage.sqlite.tasks import SqliteTasks
from tenuto.storage.tasks import Answered
from tenuto.views import projections as projection

from .patching import everywhere
from .world import CROWDED, LATEST, NEWER, WIDE

Change = tuple[Any, Any, Any]  # where, the name of an attribute, what is there instead
Changes = Callable[[], list[Change]]


@dataclass(frozen=True)
class Mutant:
    """`since`: the first seed of the worlds that can find it."""

    name: str
    changes: Changes
    since: int


MUTANTS: list[Mutant] = []


def mutant(name: str, *, since: int = NEWER) -> Callable[[Changes], Changes]:
    def register(changes: Changes) -> Changes:
        MUTANTS.append(Mutant(name, changes, since))
        return changes

    return register


# -- What takes effect before it is kept -------------------------------------------------------------------------------


@mutant("effects are let out before the commit")
def _() -> list[Change]:
    write = DecisionWriter.write

    def hasty(self: DecisionWriter, decided: DecisionWrite, *given: Any, **named: Any) -> None:
        held: Any = decided.settler
        held.follow_agenda(decided.record, decided.changed, decided.rank)
        write(self, decided, *given, **named)

    return [(DecisionWriter, "write", hasty)]


@mutant("after a takeover the newest agenda is followed, kept or not")
def _() -> list[Change]:
    adopt = Claimer._adopt

    async def hasty(self: Claimer, claim: Claim, *given: Any) -> None:
        await adopt(self, claim, *given)
        if (record := self._held.records.get(claim.id)) is not None:
            self._held.follow_agenda(record, list(record.state.agenda), None)

    return [(Claimer, "_adopt", hasty)]


@mutant("an unsafe attempt begins before that is on record")
def _() -> list[Change]:
    def hasty(self: Worker, ticket: Ticket) -> bool:
        record, ref, role = ticket
        if record.tickets.get(ref) is not ticket or self.closing or ref.path in record.zombies:
            return start(self, ticket)
        if role.begins:
            del record.tickets[ref]
            record.controller.report(record, ref, f.Begun(at=self.now(), ref=ref, worker="w", build=""))
            self._run(record, ref, role)
            return True
        return start(self, ticket)

    start = Worker._start
    return [(Worker, "_start", hasty)]


@mutant("callers are told before it is kept")
def _() -> list[Change]:
    def hasty(self: HeldExecutions, record: Record, fact: f.Fact, rank: int | None = None) -> asyncio.Future[f.Answer]:
        if isinstance(fact, f.Reported):
            return ask(self, record, fact, rank)
        answered = asyncio.get_running_loop().create_future()
        answered.set_result(self.apply(record, fact, rank))
        return answered

    async def sent(self: Mailbox, execution_id: str, fact: f.Fact) -> f.Answer:
        asyncio.get_running_loop().create_task(send(self, execution_id, fact)).add_done_callback(_whatever_came)
        return f.APPLIED

    ask, send = HeldExecutions.ask, Mailbox._send
    return [(HeldExecutions, "ask", hasty), (Mailbox, "_send", sent)]


def _whatever_came(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()


# -- Commits whose outcome is unknown ----------------------------------------------------------------------------------


def _assumed(fate: Fate) -> list[Change]:
    async def assuming(self: Committer, writes: list[Write]) -> list[Write]:
        for write in writes:
            self._settle(write, fate)
        return []

    return [(Committer, "_not_written", assuming)]


@mutant("a commit with an unknown outcome is taken for applied")
def _() -> list[Change]:
    return _assumed("committed")


@mutant("a commit with an unknown outcome is taken for failed, and forgotten")
def _() -> list[Change]:
    return _assumed("unknown")


@mutant("a commit with an unknown outcome is sent again without a look")
def _() -> list[Change]:
    async def blind(self: Committer, writes: list[Write]) -> list[Write]:
        return writes

    async def trusting(self: Committer, batch: Batch, committed: Committed, *, again: bool) -> Committed:
        return committed

    # A second line of defence refuses what is there already, for its basis: here that one is gone, too.
    unstated: list[Change] = [
        (module, name, lambda batch: []) for module, name in everywhere("basis_values", rows.basis_values)
    ]
    return [(Committer, "_not_written", blind), (Committer, "_read_back", trusting), *unstated]


@mutant("what is read back is not compared with what was sent")
def _() -> list[Change]:
    async def there(self: SqliteCommits, appends: Sequence[Any]) -> list[bool]:
        query = "SELECT 1 FROM events WHERE execution = ?"
        return [bool(await self._database.fetch(query, (a.execution,))) for a in appends]

    return [(SqliteCommits, "written", there)]


@mutant("a claim with an unknown outcome is taken for failed")
def _() -> list[Change]:
    return [(parked_executions, "LOST_CLAIM_SECONDS", ())]


@mutant("messages taken with an unknown outcome are taken for free")
def _() -> list[Change]:
    return [(Relay, "_doubt", lambda self: None)]


@mutant("a start is repeated under a new id without its key")
def _() -> list[Change]:
    def refused(db: apsw.Connection, starts: Sequence[Any], *, limited: bool) -> dict[str, Any]:
        return {}

    def keyless(start: Any, standing: Any) -> tuple[Any, ...]:
        return values(msgspec.structs.replace(start, key=None), standing)

    values = rows.execution_values
    known = everywhere("execution_values", values)
    return [(sqlite, "refused_starts", refused), *((module, name, keyless) for module, name in known)]


# Not: what the store refuses as another's is written all the same. An epoch has one owner, whose session is over when
# another has it; and what a batch that comes late would add has been added, under the same numbers, by its repetition.


def _moves(*edits: tuple[str, str]) -> list[Change]:
    """How executions move on, in both places where that is written: alone, and in the usual batch."""
    alone, usual = sqlite._MOVES, sqlite_plain._TRIGGER
    for old, new in edits:
        alone, usual = alone.replace(old, new), usual.replace(old, new)
    assert alone != sqlite._MOVES
    assert usual != sqlite_plain._TRIGGER
    return [(sqlite, "_MOVES", alone), (sqlite_plain, "_TRIGGER", usual)]


# -- Sessions, fences and claims ---------------------------------------------------------------------------------------


@mutant("a commit is not fenced")
def _() -> list[Change]:
    return [(module, name, lambda connection, session: True) for module, name in everywhere("is_live", is_live)]


@mutant("what an owner said before it let go counts when it has it again", since=CROWDED)
def _() -> list[Change]:
    moves = _moves(
        (" AND epoch = m.value ->> 10", ""),
        (" AND e.epoch = m.value ->> 10", ""),
        (" AND e.epoch = b.value ->> 1", ""),
    )
    return [*moves, (sqlite, "_REFUSED", sqlite._REFUSED.replace(" AND e.epoch = b.value ->> 1", ""))]


@mutant("a fenced worker goes on with what it has in memory")
def _() -> list[Change]:
    def unmoved(self: Committer, writes: list[Write], committed: Committed) -> None:
        settle_all(self, writes, msgspec.structs.replace(committed, fenced=False, refused={}))

    settle_all = Committer._settle_all
    return [(Committer, "_settle_all", unmoved)]


@mutant("sessions that are over are never ended")
def _() -> list[Change]:
    async def never(self: SqliteSessions, *given: str) -> int:
        return 0

    return [(SqliteSessions, "reap", never)]


@mutant("what a dead worker had is claimed before its session is ended")
def _() -> list[Change]:
    def greedy(self: SqliteClaims, now: int, plans: Sequence[str], limit: int, execution: str | None) -> list[str]:
        query = (
            "SELECT id FROM executions WHERE ended_at IS NULL "
            "AND owner IN (SELECT id FROM sessions WHERE expires_at < ?)"
        )
        found = list[str]()
        if execution is None:
            found = [id for (id,) in self._database.write_connection.execute(query, (now + 2_000,))]
        return [*found, *candidates(self, now, plans, limit, execution)]

    candidates = SqliteClaims._candidates
    return [(SqliteClaims, "_candidates", greedy)]


@mutant("what an ended session owned is not made due")
def _() -> list[Change]:
    def careless(self: SqliteSessions, ids: list[str]) -> None:
        database = self._database
        for id in ids:
            database.write_connection.execute("UPDATE sessions SET ended_at = ? WHERE id = ?", (database.now(), id))
            database.write_connection.execute("UPDATE executions SET owner = NULL WHERE owner = ?", (id,))

    return [(SqliteSessions, "_end_sessions", careless)]


@mutant("what was dealt of a limit is never given back")
def _() -> list[Change]:
    return [(Permits, "leave", lambda self, names: None)]


@mutant("a limit deals more than there is", since=LATEST)
def _() -> list[Change]:
    def generous(name: str, count: Any, period: Any, concurrency: int | None, spent: str) -> LimitRow:
        return row(name, count, period, None if concurrency is None else 3 * concurrency, spent)

    row = LimitRow.of
    return [(LimitRow, "of", staticmethod(generous))]


@mutant("a takeover is not reported to the kernel")
def _() -> list[Change]:
    apply = HeldExecutions.apply

    def silent(
        self: HeldExecutions, record: Record, fact: f.Fact, rank: int | None = None, then: Any = None, *given: Any
    ) -> f.Answer:
        if isinstance(fact, f.Taken) and record.state.epoch:
            then(f.APPLIED)
            return f.APPLIED
        return apply(self, record, fact, rank, then, *given)

    return [(HeldExecutions, "apply", silent)]


@mutant("a claim does not raise the epoch")
def _() -> list[Change]:
    claim = SqliteClaims._claim

    def same(self: SqliteClaims, *given: Any) -> list[Claim]:
        claims = claim(self, *given)
        for one in claims:
            self._database.write_connection.execute("UPDATE executions SET epoch = 1 WHERE id = ?", (one.id,))
        return [msgspec.structs.replace(one, epoch=1) for one in claims]

    return [(SqliteClaims, "_claim", same)]


@mutant("an isolated worker goes on starting attempts after its lease, and its session never ends")
def _() -> list[Change]:
    return [
        (session.Session, "may_start", property(lambda self: True)),
        (session.Session, "lose", lambda self: None),
    ]


# -- Letting go --------------------------------------------------------------------------------------------------------


@mutant("the time to wake is lost when an execution is let go of")
def _() -> list[Change]:
    standing = projection.standing

    def sleepy(*given: Any, release: bool) -> Any:
        return msgspec.structs.replace(standing(*given, release=release), wake_at=None)

    return [(module, name, sleepy) for module, name in everywhere("standing", standing)]


@mutant("an execution is let go of before its mail was looked for")
def _() -> list[Change]:
    adopt = Claimer._adopt

    async def forgetful(self: Claimer, claim: Claim, *given: Any) -> None:
        await adopt(self, claim, *given)
        self._held.unread_mail.unchecked.pop(claim.id, None)

    return [(Claimer, "_adopt", forgetful)]


@mutant("mail that meets a release does not make the execution due")
def _() -> list[Change]:
    return _moves(
        ("WHEN NOT m.value ->> 5 OR m.value ->> 4 IS NULL THEN wake_at", "WHEN m.value ->> 5 THEN m.value ->> 4")
    )


@mutant("a worker that leaves takes its executions with it")
def _() -> list[Change]:
    async def gone(self: session.Session) -> None:
        self.stop()

    return [(session.Session, "close", gone)]


@mutant("a worker that leaves says that what it stopped had not begun")
def _() -> list[Change]:
    give_back = Releaser.return_work

    def sloppy(self: Releaser, record: Record, unknown: Any) -> None:
        record.jobs.clear()
        give_back(self, record, ())

    return [(Releaser, "return_work", sloppy)]


# -- Mail --------------------------------------------------------------------------------------------------------------


@mutant("a letter's verdict is not written")
def _() -> list[Change]:
    merge = committer._merge

    def mute(batch: Batch, extra: Batch) -> None:
        merge(batch, msgspec.structs.replace(extra, mail=[]))

    return [(committer, "_merge", mute)]


@mutant("a letter is answered before what it caused is kept")
def _() -> list[Change]:
    read = Mailbox._decide

    def hasty(self: Mailbox, record: Record, mail: Mail, refused: Any) -> None:
        store: Any = self._store
        store.inner.database.write_connection.execute(
            "UPDATE mailbox SET verdict = ? WHERE id = ?", (b'{"type":"Applied"}', mail.id)
        )
        read(self, record, mail, refused)

    return [(Mailbox, "_decide", hasty)]


@mutant("a letter that was read is read again")
def _() -> list[Change]:
    return [(letters.UnreadMail, "is_new", lambda self, query, letter, execution: True)]


@mutant("when mail is read only the first page is looked at")
def _() -> list[Change]:
    known = everywhere("MAIL_AT_ONCE", MAIL_AT_ONCE)
    return [(module, name, -1) for module, name in known if module.__name__.startswith("tenuto.runtime")]


@mutant("mail does not wake an execution")
def _() -> list[Change]:
    async def unheard(self: SqliteMailbox, id: str, execution: str, body: bytes) -> tuple[int, str | None] | None:
        def work(db: apsw.Connection) -> tuple[int, str | None] | None:
            row = db.execute("SELECT owner FROM executions WHERE id = ?", (execution,)).fetchone()
            if row is None:
                return None
            query = "INSERT OR IGNORE INTO mailbox (id, execution, body, received_at) VALUES (?, ?, ?, ?)"
            db.execute(query, (id, execution, body, self._database.now()))
            return self._database.now(), row[0]

        return await self._database.in_transaction(work)

    return [(SqliteMailbox, "post", unheard)]


# -- Directives, and tenants that are full -----------------------------------------------------------------------------


@mutant("an answer counts whoever gives it", since=WIDE)
def _() -> list[Change]:
    why_stale = reports._why_stale

    def trusting(state: Any, holder: Any, fact: f.Reported) -> f.Ignored | None:
        return why_stale(state, holder, msgspec.structs.replace(fact, lease=None))

    return [(reports, "_why_stale", trusting)]


@mutant("a directive that its first owner did not send is not sent by the next", since=WIDE)
def _() -> list[Change]:
    take_up = Worker._take_up

    def trusting(self: Worker, record: Record, ref: Ref, effect: Effect, rank: int | None) -> None:
        is_first = isinstance(effect, DispatchAttempt) and (ref.path, ref.number) == ("ask", 1)
        if not (is_first and record.epoch > 2):  # whoever starts it and does not work is the first of these
            take_up(self, record, ref, effect, rank)

    return [(Worker, "_take_up", trusting)]


@mutant("what waits for its directive to be sent is due for nobody", since=WIDE)
def _() -> list[Change]:
    return [(projection, "_is_unsent", lambda state, ref: False)]


@mutant("a start counts twice in its tenant's limit", since=WIDE)
def _() -> list[Change]:
    count = sqlite_admissions.count_in_flight

    def twice(db: apsw.Connection, starts: Sequence[Any], *given: Any) -> None:
        count(db, [*starts, *starts], *given)

    return [(sqlite, "count_in_flight", twice)]


@mutant("a start with a key is let in however many there are", since=WIDE)
def _() -> list[Change]:
    room_left = sqlite_admissions.room_left

    def roomy(db: apsw.Connection, starts: Sequence[Any]) -> dict[str, int]:
        return room_left(db, [start for start in starts if start.key is None])

    return [(sqlite_admissions, "room_left", roomy)]


# -- Keys, queues, messages, snapshots ---------------------------------------------------------------------------------


@mutant("whoever waits for a key is not told when it is free")
def _() -> list[Change]:
    def selfish(db: apsw.Connection, standing: Any, now: int) -> None:
        if standing.admission == "request":
            admit(db, standing, now)
        else:
            db.execute("DELETE FROM admissions WHERE execution = ?", (standing.id,))

    admit = sqlite_admissions.admit
    return [(sqlite, "admit", selfish)]


@mutant("everybody is admitted at once", since=CROWDED)
def _() -> list[Change]:
    first = sqlite_admissions._FIRST.replace("ORDER BY a.position LIMIT 1", "")
    return [(sqlite_admissions, "_FIRST", first)]


@mutant("tasks of a dead worker are never swept")
def _() -> list[Change]:
    async def never(self: SqliteTasks, lease_ms: int) -> int:
        return 0

    return [(SqliteTasks, "sweep", never)]


@mutant("a task that somebody has is given to the next who asks")
def _() -> list[Change]:
    free = "session IS NULL AND queue"
    waiting, take = (text.replace(free, "queue") for text in (sqlite_tasks._WAITING, sqlite_tasks._TAKE))
    assert free not in waiting + take
    return [(sqlite_tasks, "_WAITING", waiting), (sqlite_tasks, "_TAKE", take)]


@mutant("a task is given back by a late word about an earlier taking", since=LATEST)
def _() -> list[Change]:
    assert "takings = ?" in sqlite_tasks._GIVE_BACK
    return [(sqlite_tasks, "_GIVE_BACK", sqlite_tasks._GIVE_BACK.replace("takings = ?", "? > 0"))]


@mutant("a late answer of an earlier attempt says how far the step is", since=LATEST)
def _() -> list[Change]:
    answer = SqliteTasks.answer

    async def touching(self: SqliteTasks, session: str, answers: Sequence[Answered]) -> set[str | None]:
        def work(db: apsw.Connection) -> None:
            for (key, _), progress in ((each.taking, each.progress) for each in answers):
                if progress is not None:
                    db.execute(sqlite_tasks._PROGRESS, (*key[:2], progress))

        owners = await answer(self, session, answers)
        await self._write(work)
        return owners

    return [(SqliteTasks, "answer", touching)]


@mutant("how far an attempt is, is told by whoever no longer has it", since=LATEST)
def _() -> list[Change]:
    query = "INSERT OR REPLACE INTO progress (body, execution, path) SELECT ?, ?, ? WHERE length(? || ? || ? || ?)"
    return [(sqlite_tasks, "_MY_PROGRESS", query)]


@mutant("messages are marked as published before they are")
def _() -> list[Change]:
    async def early(self: Relay, session: str, line: Sequence[Any]) -> int:
        await self._store.published(session, self._now(), [(message.execution, message.seq) for message in line])
        return await line_of(self, session, line)

    line_of = Relay._line
    return [(Relay, "_line", early)]


@mutant("messages of one execution are published in any order")
def _() -> list[Change]:
    async def reversed_line(self: Relay, session: str, line: Sequence[Any]) -> int:
        return await line_of(self, session, line[::-1])

    line_of = Relay._line
    return [(Relay, "_line", reversed_line)]


@mutant("messages are not written with what they tell of")
def _() -> list[Change]:
    rest = SqliteCommits._rest

    def dropped(self: SqliteCommits, batch: Batch, refused: Any) -> None:
        rest(self, msgspec.structs.replace(batch, outbox=batch.outbox[:-1] if len(batch.outbox) > 1 else []), refused)

    return [(SqliteCommits, "_rest", dropped)]


@mutant("a snapshot is one entry ahead of its number")
def _() -> list[Change]:
    take = snapshots.take

    def ahead(record: Record) -> Any:
        row = take(record)
        return msgspec.structs.replace(row, seq=max(1, row.seq - 1))

    return [(snapshots, "take", ahead)]


@mutant("a failed batch is parked as a whole")
def _() -> list[Change]:
    async def parked(self: Committer, writes: list[Write]) -> list[Write]:
        for execution in dict.fromkeys(write.execution for write in writes):
            await self._park(execution)
        for write in writes:
            self._settle(write, "parked")
        return []

    return [(Committer, "_not_written", parked)]
