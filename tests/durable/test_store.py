"""What the durable runtime relies on, of both databases."""

import asyncio
import secrets
from typing import TypeVar

import asyncpg
import msgspec
import pytest
from msgspec import Struct

from tenuto.errors import StorageError
from tenuto.storage import Store, make_reader, make_store
from tenuto.storage.migrations import Migration, migrations, missing
from tenuto.storage.port import Batch, MailVerdict, SnapshotRow
from tenuto.storage.reviews import ReviewsWanted
from tenuto.storage.shared.records import TaskRecord, select
from tenuto.views.projections import AuditRow, ReviewClosed, ReviewRow, TaskEnded, TaskRow
from tests.durable.rows import append, standing, started
from tests.servers import sqlite

LEASE = 60_000
T = TypeVar("T", bound=Struct)


async def _session(store: Store, id: str = "s1", lease_ms: int = LEASE) -> None:
    await store.sessions.open(id, "worker", "build", lease_ms, ("default",))


async def _rows(url: str, kind: type[T]) -> list[T]:
    reader = make_reader(url)
    await reader.open()
    async with reader.page():
        found = [row async for row in reader.rows(kind, select(kind))]
    await reader.close()
    return found


async def test_what_is_committed_is_there(store: Store) -> None:
    await _session(store)
    committed = await store.commit(started())
    (loaded,) = await store.executions.load(["x1"])
    assert not committed.fenced
    assert not committed.refused
    assert (loaded.row.owner, loaded.row.status, loaded.row.epoch) == ("s1", "running", 1)
    assert loaded.bodies == [b"[]"]


async def test_rows_that_are_alike_are_all_written(store: Store) -> None:
    """What a batch's rows have in common may be sent once; that is no reason to take two of them for one."""
    await _session(store)
    both = [started("x1"), started("x2")]
    told = AuditRow(tenant="acme", at=7, actor="ann", action="signal", object_type="execution", object_id="x1")
    batch = Batch(
        session="s1",
        starts=[start for each in both for start in each.starts],
        standings={id: standing for each in both for id, standing in each.standings.items()},
        appends=[append(id, seq) for id in ("x1", "x2") for seq in (1, 2)],
        audit=[told, told],
    )
    assert not (await store.commit(batch)).refused
    assert [(row.row.status, row.bodies) for row in await store.executions.load(["x1", "x2"])] == [
        ("running", [b"[]"] * 2)
    ] * 2
    assert len(await store.registry.unchained("acme", 10)) == 2


async def test_what_the_database_cannot_take_is_told_from_a_database_that_is_not_there(store: Store) -> None:
    """A batch that is refused for its data is halved; one that met a failing database would be sent for ever."""
    await _session(store)
    with pytest.raises(StorageError) as refused:
        await store.commit(started(key="\ud800"))
    assert refused.value.code == "bad_data"
    assert not (await store.commit(started())).refused


async def test_a_text_that_is_too_long_for_an_index_is_bad_data(postgres_url: str) -> None:
    store = make_store(postgres_url)
    await store.open(migrate=True)
    await _session(store)
    with pytest.raises(StorageError) as refused:
        await store.commit(started(key=secrets.token_hex(6_000)))
    assert refused.value.code == "bad_data"
    await store.close()


@pytest.mark.requirement("G2")
async def test_a_session_that_was_ended_writes_nothing(store: Store) -> None:
    await _session(store)
    await store.commit(started())
    await store.sessions.end("s1")
    committed = await store.commit(Batch(session="s1", appends=[append(seq=2)]))
    assert committed.fenced
    assert not await store.executions.bodies("x1", 2, 2)


async def test_a_session_that_is_over_is_ended_by_whoever_looks(store: Store) -> None:
    await _session(store, lease_ms=-1)
    await store.commit(started())
    await _session(store, "s2")
    assert await store.claims.claim("s2", ["d/1"], 10) == []
    assert await store.sessions.reap() == 1
    assert await store.sessions.reap() == 0
    claims = await store.claims.claim("s2", ["d/1"], 10)
    assert [(claim.id, claim.epoch) for claim in claims] == [("x1", 2)]


async def test_only_what_is_due_and_can_be_run_is_claimed(store: Store) -> None:
    await _session(store)
    await store.commit(started("due", session="s1", release=True))
    waiting = started("waits", session="s1", release=True)
    waiting.standings["waits"] = standing("waits", release=True, wake_at=None)
    await store.commit(waiting)
    assert await store.claims.claim("s1", ["other/1"], 10) == []
    assert [claim.id for claim in await store.claims.claim("s1", ["d/1"], 10)] == ["due"]
    assert await store.claims.claim("s1", ["d/1"], 10) == []


async def test_what_is_urgent_is_claimed_first_and_then_what_was_due_first_whatever_its_plan(store: Store) -> None:
    await _session(store)
    due = {"b": ("d", 0, 4), "a": ("tenant/d", 0, 3), "c": ("d", 1, 9), "not": ("d2", 1, 1), "later": ("d", 1, 2**53)}
    for id, (definition, priority, wake_at) in due.items():
        batch = started(id, release=True)
        batch.starts = [msgspec.structs.replace(batch.starts[0], definition=definition, priority=priority)]
        batch.standings[id] = standing(id, release=True, wake_at=wake_at)
        await store.commit(batch)
    plans = ["d/1", "d/2", "tenant/d/1", "none/1"]
    claimed = [[claim.id for claim in await store.claims.claim("s1", plans, 1)] for _ in range(4)]
    assert claimed == [["c"], ["a"], ["b"], []]


@pytest.mark.requirement("B4")
async def test_one_execution_for_one_key(store: Store) -> None:
    await _session(store)
    await store.commit(started("x1", key="k"))
    committed = await store.commit(started("x2", key="k"))
    found = await store.executions.find("x1")
    assert found is not None
    assert committed.refused == {"x2": "duplicate_key"}
    assert found.key == "k"
    asked = [("t", "k"), ("t", "other"), ("other", "k")]
    assert await store.executions.find_by_keys(asked) == {("t", "k"): (found.id, found.request_hash)}
    assert not await store.executions.bodies("x2", 1, 1)


async def test_one_refusal_leaves_the_rest_of_the_batch_alone(store: Store) -> None:
    await _session(store)
    await store.commit(started("x1", key="k"))
    both = started("x2", key="k")
    other = started("x3", key="k3")
    both.starts += other.starts
    both.standings |= other.standings
    both.appends += other.appends
    committed = await store.commit(both)
    assert committed.refused == {"x2": "duplicate_key"}
    assert await store.executions.bodies("x3", 1, 1)


async def test_mail_to_an_execution_that_nobody_owns_makes_it_due(store: Store) -> None:
    await _session(store)
    batch = started(release=True)
    batch.standings["x1"] = standing(release=True, wake_at=None)
    await store.commit(batch)
    assert await store.claims.claim("s1", ["d/1"], 10) == []
    posted = await store.mailbox.post("m1", "x1", b"{}")
    assert posted is not None
    assert posted[1] is None
    assert [claim.id for claim in await store.claims.claim("s1", ["d/1"], 10)] == ["x1"]
    assert [mail.id for mail in await store.mailbox.unread("s1")] == ["m1"]


async def test_mail_that_meets_a_release_is_not_lost(store: Store) -> None:
    await _session(store)
    await store.commit(started())
    await store.mailbox.post("m1", "x1", b"{}")
    await store.commit(Batch(session="s1", standings={"x1": standing(release=True, wake_at=None)}))
    assert [claim.id for claim in await store.claims.claim("s1", ["d/1"], 10)] == ["x1"]


async def test_mail_that_meets_the_end_is_not_lost(store: Store) -> None:
    """Somebody has to say to its sender that it came too late."""
    await _session(store)
    await store.commit(started())
    await store.mailbox.post("m1", "x1", b"{}")
    await store.commit(Batch(session="s1", standings={"x1": standing(status="succeeded", release=True, ended=True)}))
    assert [claim.id for claim in await store.claims.claim("s1", ["d/1"], 10)] == ["x1"]
    assert [mail.id for mail in await store.mailbox.unread("s1")] == ["m1"]


async def test_what_a_session_owns_can_be_asked_for(store: Store) -> None:
    await _session(store)
    await _session(store, "s2")
    await store.commit(started("mine"))
    await store.commit(started("free", release=True))
    await store.commit(started("other", session="s2"))
    assert [(claim.id, claim.epoch) for claim in await store.claims.owned("s1")] == [("mine", 1)]


async def test_nothing_is_left_of_a_start_that_was_refused(store: Store, url: str) -> None:
    await _session(store)
    await store.commit(started("x1", key="k"))
    again = started("x2", key="k")
    again.snapshots.append(SnapshotRow("x2", 1, b"[]"))
    assert (await store.commit(again)).refused == {"x2": "duplicate_key"}
    assert await _rows(url, SnapshotRow) == []


async def test_what_an_owner_said_before_it_let_go_counts_no_more_when_it_has_it_again(store: Store) -> None:
    """A commit whose client gave it up may be applied late: here after the same session has claimed again."""
    await _session(store)
    await store.commit(started())
    release = Batch(session="s1", standings={"x1": standing(release=True, wake_at=1)})
    await store.commit(release)
    assert [claim.epoch for claim in await store.claims.claim("s1", ["d/1"], 10)] == [2]
    assert (await store.commit(release)).refused == {"x1": "not_owner"}
    assert [(claim.id, claim.epoch) for claim in await store.claims.owned("s1")] == [("x1", 2)]


_REVIEW = ReviewRow(
    id="r1",
    execution="x1",
    tenant="t",
    definition="d",
    kind="approval",
    path="a",
    step="a",
    reason="",
    permission="",
    error_class="",
    error_summary="",
    attempts=0,
    opened_at=1,
    due_at=None,
)
_TASK = TaskRow(
    execution="x1",
    path="a",
    phase="forward",
    number=1,
    tenant="t",
    plan="d/1",
    queue="gpu",
    handler="h",
    priority=0,
    created_at=1,
)


async def test_nothing_is_written_for_an_execution_that_is_not_ours_any_more(store: Store, url: str) -> None:
    """Its letter stays unread, its review open, its task and its snapshot as they were: who has it now decides."""
    await _session(store)
    await _session(store, "s2")
    first = started()
    first.reviews, first.tasks = [_REVIEW], [_TASK]
    await store.commit(first)
    await store.mailbox.post("m1", "x1", b"{}")
    await store.commit(Batch(session="s1", standings={"x1": standing(release=True)}))
    await store.claims.claim_one("s2", "x1")
    late = Batch(session="s1", standings={"x1": standing(status="failed")}, appends=[append(seq=2)])
    late.mail = [MailVerdict("x1", "m1", b"yes")]
    late.closed = [ReviewClosed("x1", "r1", "approve", "somebody", 5)]
    late.tasks_ended = [TaskEnded("x1", "a", "forward", 1)]
    late.snapshots = [SnapshotRow("x1", 2, b"[]")]
    assert (await store.commit(late)).refused == {"x1": "not_owner"}
    assert [mail.id for mail in await store.mailbox.unread("s2")] == ["m1"]
    (review,) = await store.reviews.page(ReviewsWanted(kinds=(_REVIEW.kind,)), None, 10)
    assert (review.id, review.resolution) == ("r1", None)
    assert [row.path for row in await _rows(url, TaskRecord)] == ["a"]
    assert await _rows(url, SnapshotRow) == []


async def test_mail_is_kept_once_per_id_and_none_for_nobody(store: Store) -> None:
    await _session(store)
    await store.commit(started())
    await store.mailbox.post("m1", "x1", b"{}")
    await store.mailbox.post("m1", "x1", b'{"again": true}')
    assert [mail.body for mail in await store.mailbox.unread("s1")] == [b"{}"]
    assert await store.mailbox.post("m2", "nobody", b"{}") is None


async def test_events_are_append_only_in_the_database_itself(store: Store, url: str) -> None:
    await _session(store)
    await store.commit(started())
    for statement in ("UPDATE events SET count = 9", "DELETE FROM events"):
        with pytest.raises(Exception, match="append-only"):
            await _run(url, statement)
    assert await store.executions.bodies("x1", 1, 1)


async def _run(url: str, statement: str) -> None:
    if url.startswith("sqlite"):
        sqlite.connect(url).execute(statement)
    else:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


# Migrations -----------------------------------------------------------------------------------------------------------


@pytest.mark.empty_database
async def test_a_database_is_migrated_once(url: str) -> None:
    for _ in range(2):
        store = make_store(url)
        await store.open(migrate=True)
        await store.close()


@pytest.mark.empty_database
@pytest.mark.unchecked("there is no schema")
async def test_a_database_without_schema_is_refused_where_nobody_may_migrate(url: str) -> None:
    store = make_store(url)
    with pytest.raises(StorageError) as caught:
        await store.open(migrate=False)
    assert caught.value.code == "no_schema"


@pytest.mark.unchecked("its schema is none of ours")
async def test_a_newer_schema_is_refused(url: str) -> None:
    store = make_store(url)
    await store.open(migrate=True)
    await store.close()
    await _run(url, "INSERT INTO tenuto_migrations VALUES (999, 'later', 'x', 0)")
    with pytest.raises(StorageError) as caught:
        await make_store(url).open(migrate=True)
    assert caught.value.code == "newer_schema"
    assert "999" in str(caught.value)


def test_a_migration_that_was_applied_may_not_change() -> None:
    known = [Migration(1, "first", "sql", "checksum")]
    assert missing(known, {1: "checksum"}) == []
    assert missing(known, {}) == known
    with pytest.raises(StorageError) as caught:
        missing(known, {1: "another"})
    assert caught.value.code == "changed_migration"


async def test_nobody_ends_his_own_session(store: Store) -> None:
    """A machine that slept finds its lease over, and nobody else: it renews it, and loses nothing."""
    await _session(store, lease_ms=-1)
    await _session(store, "s2", lease_ms=-1)
    assert await store.sessions.reap("s1") == 1
    committed = await store.commit(started())
    assert not committed.fenced


async def test_what_another_has_by_now_is_not_set_aside(store: Store) -> None:
    await _session(store)
    await _session(store, "s2")
    await store.commit(started())
    await store.claims.park("s2", "x1", "incompatible", None)
    row = await store.executions.find("x1")
    assert row is not None
    assert (row.owner, row.parked) == ("s1", "")


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_migrations_are_numbered_without_gaps(dialect: str) -> None:
    assert [migration.number for migration in migrations(dialect)] == [*range(1, len(migrations(dialect)) + 1)]


# The race that a mere comparison of epochs loses ----------------------------------------------------------------------


@pytest.mark.requirement("G2")
async def test_a_session_is_not_ended_while_it_commits(postgres_url: str) -> None:
    store = make_store(postgres_url)
    await store.open(migrate=True)
    await _session(store, lease_ms=-1)
    await store.commit(started())
    other = await asyncpg.connect(postgres_url)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("INSERT INTO events (execution, seq, count, body) VALUES ('x1', 2, 1, '[]')")
    committing = asyncio.create_task(store.commit(Batch(session="s1", appends=[append(seq=2, body=b'["mine"]')])))
    await _until_waiting(postgres_url)
    assert await store.sessions.reap() == 0, "nobody waits for it"
    await transaction.rollback()
    assert not (await committing).fenced
    assert await store.sessions.reap() == 1
    assert await store.executions.bodies("x1", 2, 2) == [b'["mine"]']
    await other.close()
    await store.close()


@pytest.mark.requirement("G2")
async def test_an_old_owner_cannot_commit_after_the_claim(postgres_url: str) -> None:
    """The old owner's batch begins before the takeover and ends after it. The fence is a lock.

    Whoever is first wins: either the reaper leaves the session for later, or the commit finds it ended.
    """
    store = make_store(postgres_url)
    await store.open(migrate=True)
    await _session(store, lease_ms=-1)
    await store.commit(started())
    holder = await asyncpg.connect(postgres_url)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("SELECT id FROM sessions WHERE id = 's1' AND ended_at IS NULL FOR SHARE")
    await holder.execute("INSERT INTO events (execution, seq, count, body) VALUES ('x1', 2, 1, '[]')")
    assert await store.sessions.reap() == 0
    await transaction.commit()
    assert await store.sessions.reap() == 1
    await _session(store, "s2")
    claims = await store.claims.claim("s2", ["d/1"], 1)
    (loaded,) = await store.executions.load([claims[0].id])
    late = await store.commit(Batch(session="s1", appends=[append(seq=3)]))
    assert len(loaded.bodies) == 2  # what the old owner committed in time is seen by the new one
    assert late.fenced
    assert not await store.executions.bodies("x1", 3, 3)
    await holder.close()
    await store.close()


async def _until_waiting(url: str) -> None:
    """Until a statement of this database waits for a lock."""
    connection = await asyncpg.connect(url)
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    while not await connection.fetchval(query):
        pass
    await connection.close()
