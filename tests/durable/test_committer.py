"""A commit whose outcome is unknown: nothing is lost, nothing is written twice, and everybody is told."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest
from msgspec import structs

from tenuto.errors import StorageError
from tenuto.runtime.durable import backoff as pausing
from tenuto.runtime.durable import blocked_writes as apart
from tenuto.runtime.durable import committer
from tenuto.runtime.durable.committer import CallbackWrite, Committer, Fate
from tenuto.storage import Store
from tenuto.storage.port import Append, Basis, Batch, Committed, MailVerdict
from tests.durable.faults import Fault, FaultyStore
from tests.durable.rows import append, standing, start, started
from tests.seams import committed_not_reported


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pausing, "SECONDS", (0.0,))
    monkeypatch.setattr(apart, "PAUSES_SECONDS", (0.0,))


# Text that no database takes.
UNWRITABLE = {id: structs.replace(standing(id), parked="\ud800") for id in ("x1", "x3")}


class Fates:
    """What the writes of a test were told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Fate]] = []

    def of(self, execution: str) -> Callable[[Fate], None]:
        return lambda fate: self.told.append((execution, fate))


async def _commit(store: Store, fates: Fates, *writes: CallbackWrite, faults: tuple[Fault, ...] = ()) -> None:
    to = Committer(cast(Store, FaultyStore(store, *faults)), "s1", lambda now: None)
    to.start()
    for write in writes:
        to.add(write)
    await to.stop()


def _start(id: str, fates: Fates) -> CallbackWrite:
    return CallbackWrite(execution=id, append=append(id), start=start(id), standing=standing(id), call=fates.of(id))


def _next(id: str, fates: Fates, seq: int = 2) -> CallbackWrite:
    return _following(id, seq - 1, fates.of(id))


def _following(id: str, seq: int, call: Callable[[Fate], None]) -> CallbackWrite:
    return CallbackWrite(execution=id, after=Basis(1, seq), append=append(id, seq + 1, b'["next"]'), call=call)


@pytest.fixture
async def live(store: Store) -> Store:
    """With a session, and an execution of it."""
    await store.sessions.open("s1", "worker", "build", 60_000, ("default",))
    await store.commit(started())
    return store


@pytest.mark.parametrize("faults", [("lost",), ("applied",), ("late",), ("lost", "late"), ("late", "applied")])
async def test_what_was_decided_is_written_once(live: Store, faults: tuple[Fault, ...]) -> None:
    fates = Fates()
    await _commit(live, fates, _next("x1", fates), _start("x2", fates), faults=faults)
    assert sorted(fates.told) == [("x1", "committed"), ("x2", "committed")]
    assert await live.executions.bodies("x1", 2, 2) == [b'["next"]']
    assert [row.row.id for row in await live.executions.load(["x2"])] == ["x2"]


@pytest.mark.parametrize("faults", [("lost",), ("applied",), ("late",)])
async def test_a_start_that_ends_at_once_is_told_so_after_all(live: Store, faults: tuple[Fault, ...]) -> None:
    """Its row has no owner any more when it is sent again: that alone would look like somebody else's."""
    fates = Fates()
    ended = standing("x1", "succeeded", release=True, ended=True)
    after = Basis(1, 1)
    write = CallbackWrite(execution="x1", after=after, append=append("x1", 2), standing=ended, call=fates.of("x1"))
    await _commit(live, fates, write, faults=faults)
    assert fates.told == [("x1", "committed")]


@pytest.mark.parametrize("fault", ["lost", "applied"])
async def test_what_writes_no_event_is_sent_again(live: Store, fault: Fault) -> None:
    await live.mailbox.post("m1", "x1", b"{}")
    fates = Fates()
    mail = CallbackWrite(
        execution="x1", extra=Batch(session=None, mail=[MailVerdict("x1", "m1", b'"applied"')]), call=fates.of("x1")
    )
    release = CallbackWrite(execution="x1", standing=standing(release=True, wake_at=5), call=fates.of("x1"))
    await _commit(live, fates, mail, release, faults=(fault,))
    assert await live.mailbox.verdicts(["m1"]) == {"m1": b'"applied"'}
    assert len(fates.told) == 2
    row = await live.executions.find("x1")
    assert row is not None
    assert row.owner is None


@pytest.mark.requirement("G2")
async def test_an_answer_that_was_lost_with_the_session_is_found(live: Store) -> None:
    """The commit arrived, its answer did not, and meanwhile the session was ended: it is on record all the same."""
    faulty = FaultyStore(live, "late", "lost")
    fates = Fates()
    await live.commit(started("x9"))
    to = Committer(cast(Store, faulty), "s1", lambda now: None)
    to.start()
    to.add(_next("x1", fates))
    to.add(_next("x9", fates))
    await to.drain()
    await live.sessions.end("s1")
    to.add(_next("x1", fates, seq=3))
    await to.stop()
    assert fates.told == [("x1", "committed"), ("x9", "committed"), ("x1", "fenced")]


@pytest.mark.requirement("G2")
async def test_rows_of_another_owner_are_not_taken_for_our_own(live: Store) -> None:
    fates = Fates()
    await live.sessions.end("s1")
    await live.sessions.open("s2", "worker", "build", 60_000, ("default",))
    (claim,) = await live.claims.claim("s2", ["d/1"], 1)
    theirs = Batch(session="s2", bases={"x1": Basis(claim.epoch, 1)}, appends=[append("x1", 2, b'["theirs"]')])
    assert not (await live.commit(theirs)).refused
    await _commit(live, fates, _next("x1", fates), faults=("lost",))
    assert fates.told == [("x1", "fenced")]
    assert await live.executions.bodies("x1", 2, 2) == [b'["theirs"]']


async def test_what_nobody_wants_any_more_is_not_written_unless_that_is_under_way(live: Store) -> None:
    class Held(FaultyStore):
        def __init__(self, store: Store) -> None:
            super().__init__(store)
            self.reached, self.open = asyncio.Event(), asyncio.Event()

        async def commit(self, batch: Batch) -> Committed:
            self.reached.set()
            await self.open.wait()
            return await super().commit(batch)

    fates, held, record = Fates(), Held(live), object()
    to = Committer(cast(Store, held), "s1", lambda now: None)
    to.start()
    first, second, other = _start("x2", fates), _start("x3", fates), _start("x4", fates)
    second.record = record
    resting = _next("x3", fates)
    resting.record = record
    to.add(first)
    await held.reached.wait()
    for write in (second, resting, other):
        to.add(write)
    to.withdraw(first)
    to.withdraw(second)
    to.withdraw(second)
    assert fates.told == [("x3", "unknown")] * 2
    held.open.set()
    await to.stop()
    assert fates.told[2:] == [("x2", "committed"), ("x4", "committed")]
    assert [loaded.row.id for loaded in await live.executions.load(["x2", "x3", "x4"])] == ["x2", "x4"]


async def test_data_that_the_database_refuses_sets_one_execution_aside(live: Store) -> None:
    fates = Fates()
    for id in ("x2", "x3", "x4"):
        await live.commit(started(id))
    writes = [_next(id, fates) for id in ("x1", "x2", "x3", "x4")]
    writes[2].standing = UNWRITABLE["x3"]
    await _commit(live, fates, *writes)
    assert dict(fates.told) == {"x1": "committed", "x2": "committed", "x3": "parked", "x4": "committed"}
    row = await live.executions.find("x3")
    assert row is not None
    assert (row.parked, row.owner, row.wake_at) == ("incompatible", None, None)


@pytest.mark.parametrize("faults", [(), ("lost",), ("late",)])
async def test_what_follows_an_entry_that_the_database_lost_is_not_written(
    live: Store, faults: tuple[Fault, ...]
) -> None:
    """As after a failover: neither the entry, nor a verdict, nor a release. Another execution goes on."""
    fates = Fates()
    for id in ("x2", "x3", "x4"):
        await live.commit(started(id))
    await live.mailbox.post("m3", "x3", b"{}")
    verdict = Batch(session=None, mail=[MailVerdict("x3", "m3", b'"applied"')])
    release = standing("x4", release=True, wake_at=5)
    await _commit(
        live,
        fates,
        _next("x1", fates, seq=3),
        _next("x1", fates, seq=4),
        _next("x2", fates),
        CallbackWrite(execution="x3", after=Basis(1, 2), extra=verdict, call=fates.of("x3")),
        CallbackWrite(execution="x4", after=Basis(1, 2), standing=release, call=fates.of("x4")),
        faults=faults,
    )
    told = {("x1", "stale"), ("x2", "committed"), ("x3", "stale"), ("x4", "stale")}
    assert set(fates.told) == told
    assert await live.executions.bodies("x1", 2, 9) == []
    assert await live.mailbox.verdicts(["m3"]) == {}
    assert {claim.id for claim in await live.claims.owned("s1")} == {"x1", "x2", "x3", "x4"}


async def test_what_follows_a_claim_that_the_database_lost_is_not_written(live: Store) -> None:
    """Somebody else claimed the execution since, and wrote entries with the same numbers."""
    fates = Fates()
    await live.commit(Batch(session="s1", standings={"x1": standing(release=True, wake_at=1)}))
    await live.sessions.open("s2", "worker", "build", 60_000, ("default",))
    (claim,) = await live.claims.claim("s2", ["d/1"], 1)
    theirs = Batch(session="s2", bases={"x1": Basis(claim.epoch, 1)}, appends=[append("x1", 2, b'["theirs"]')])
    await live.commit(theirs)
    ours = CallbackWrite(execution="x1", after=Basis(claim.epoch, 2), append=append("x1", 3), call=fates.of("x1"))
    await _commit(live, fates, ours)
    assert fates.told == [("x1", "not_owner")]
    assert await live.executions.bodies("x1", 2, 9) == [b'["theirs"]']


async def test_an_entry_that_an_earlier_batch_wrote_after_its_error_is_no_loss(live: Store) -> None:
    """Its caller has been told that it failed, and sent it again as part of another batch."""
    fates = Fates()
    again = _next("x1", fates)
    assert again.append is not None
    await live.commit(Batch(session="s1", bases={"x1": Basis(1, 1)}, appends=[again.append]))
    await _commit(live, fates, again)
    assert fates.told == [("x1", "committed")]


async def test_what_rests_on_something_that_is_refused_is_not_written(live: Store) -> None:
    """Decided while the first was under way: a history would have a gap, and a letter a verdict that never was."""
    fates = Fates()
    await live.mailbox.post("m1", "x1", b"{}")
    record, other = object(), object()
    verdict = Batch(session=None, mail=[MailVerdict("x1", "m1", b'"applied"')])

    class HeldClaims:
        async def park(
            self, session: str | None, execution: str, why: str, again_ms: int | None, epoch: int | None = None
        ) -> None:
            after = Basis(1, 2)
            to.add(
                CallbackWrite(execution="x1", after=after, append=append("x1", 3), call=fates.of("next"), record=record)
            )
            to.add(CallbackWrite(execution="x1", after=after, extra=verdict, call=fates.of("letter"), record=record))
            started = _start("x2", fates)
            started.record = other
            to.add(started)
            await live.claims.park(session, execution, why, again_ms, epoch)

    class Held(FaultyStore):
        claims = HeldClaims()

    to = Committer(cast(Store, Held(live)), "s1", lambda now: None)
    to.start()
    first = _next("x1", fates)
    first.record, first.standing = record, UNWRITABLE["x1"]
    to.add(first)
    await to.stop()
    assert fates.told == [("x1", "parked"), ("next", "parked"), ("letter", "parked"), ("x2", "committed")]
    assert await live.executions.bodies("x1", 3, 3) == []
    assert await live.mailbox.verdicts(["m1"]) == {}


async def test_what_is_not_known_when_the_engine_closes_is_said(live: Store) -> None:
    fates = Fates()
    for_ever: list[Fault] = ["lost"] * 100_000
    to = Committer(cast(Store, FaultyStore(live, *for_ever)), "s1", lambda now: None)
    to.start()
    to.add(_next("x1", fates))
    await to.stop(patience_s=0.05)
    assert fates.told == [("x1", "unknown")]


class _Held(FaultyStore):
    """Somebody's transaction holds what one execution needs. `says`: and the database can tell which."""

    def __init__(self, store: Store, execution: str, *, says: bool) -> None:
        super().__init__(store)
        self.held: set[str] = {execution}
        self._says = says

    async def commit(self, batch: Batch) -> Committed:
        if any(append.execution in self.held for append in batch.appends):
            raise StorageError("somebody's", code="locked")
        return await super().commit(batch)

    async def blocked(self, batch: Batch) -> set[str]:
        return self.held & {append.execution for append in batch.appends} if self._says else set()


@pytest.mark.parametrize("says", [True, False])
async def test_what_waits_for_somebody_elses_transaction_waits_apart_and_in_order(live: Store, says: bool) -> None:
    fates = Fates()
    for id in ("x2", "x3", "x4"):
        await live.commit(started(id))
    store = _Held(live, "x3", says=says)
    to = Committer(cast(Store, store), "s1", lambda now: None)
    to.start()
    rounds = 3
    for seq in range(2, 2 + rounds):
        for id in ("x1", "x2", "x3", "x4"):
            to.add(_next(id, fates, seq))
        async with asyncio.timeout(60):
            while len(fates.told) < 3 * (seq - 1):
                await live.executions.find("x1")
    assert {id for id, _ in fates.told} == {"x1", "x2", "x4"}
    store.held.clear()
    await to.stop(patience_s=60)
    assert [told for told in fates.told if told[0] == "x3"] == [("x3", "committed")] * rounds
    assert len(await live.executions.bodies("x3", 2, 1 + rounds)) == rounds
    row = await live.executions.find("x3")
    assert row is not None
    assert row.parked == ""


class _Confused(FaultyStore):
    """The first question after a commit fails in a way that nobody foresaw."""

    is_confused = True

    async def written(self, appends: list[Append]) -> list[bool]:
        if self.is_confused:
            self.is_confused = False
            raise RuntimeError("not a word of the database's")
        return await super().written(appends)


async def test_an_error_that_nobody_foresaw_ends_no_commits(live: Store) -> None:
    fates = Fates()
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
    to = Committer(cast(Store, _Confused(live, "lost")), "s1", lambda now: None)
    to.start()
    to.add(_next("x1", fates))
    await to.stop(patience_s=30)
    assert fates.told == [("x1", "committed")]
    assert reported == ["The database could not be asked, and is asked again."]


async def test_one_execution_that_cannot_go_on_stops_no_other(live: Store) -> None:
    """What follows a commit is the affair of its execution."""
    fates = Fates()
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))

    def fail(fate: Fate) -> None:
        raise RuntimeError("a contradiction")

    await _commit(live, fates, _following("x1", 1, fail), _start("x2", fates))
    assert fates.told == [("x2", "committed")]
    assert reported == ["Execution x1 could not go on."]


@pytest.mark.parametrize("faults", [(), ("lost", "applied"), ("late",)])
async def test_a_batch_goes_to_the_disk_while_others_are_told(
    live: Store, faults: tuple[Fault, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "TELL_AT_ONCE", 2)
    monkeypatch.setattr(committer, "ENOUGH", 3)
    fates = Fates()
    untold: list[int] = []  # how many were known and not told, each time that a commit began

    class Watched(FaultyStore):
        async def commit(self, batch: Batch) -> Committed:
            untold.append(len(committed_not_reported(to)))
            if len(untold) == 3:
                self.faults = list(faults)
            return await super().commit(batch)

    def go_on(id: str, seq: int, fate: Fate) -> None:
        fates.told.append((f"{id}/{seq}", fate))
        if seq < 4:
            to.add(_following(id, seq, partial(go_on, id, seq + 1)))

    to = Committer(cast(Store, Watched(live)), "s1", lambda now: None)
    to.start()
    ids = [f"y{number}" for number in range(12)]
    for id in ids:
        to.add(
            CallbackWrite(
                execution=id, append=append(id), start=start(id), standing=standing(id), call=partial(go_on, id, 1)
            )
        )
    await to.stop()
    assert any(untold)
    assert [[row for row, _ in fates.told if row.startswith(f"{id}/")] for id in ids] == [
        [f"{id}/{seq}" for seq in range(1, 5)] for id in ids
    ]
    assert {fate for _, fate in fates.told} == {"committed"}
