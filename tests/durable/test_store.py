"""What the durable runtime relies on, of both databases."""

import asyncio

import asyncpg
import pytest

from tenuto.errors import StorageError
from tenuto.storage import Store, make_store
from tenuto.storage.migrations import Migration, migrations, missing
from tenuto.storage.store import Batch
from tests.durable.rows import append, standing, started

LEASE = 60_000


async def _session(store: Store, id: str = "s1", lease_ms: int = LEASE) -> None:
    await store.open_session(id, "worker", "build", lease_ms, ("default",))


async def test_what_is_committed_is_there(store: Store) -> None:
    await _session(store)
    committed = await store.commit(started())
    (loaded,) = await store.load(["x1"])
    assert not committed.fenced
    assert not committed.refused
    assert (loaded.row.owner, loaded.row.status, loaded.row.epoch) == ("s1", "running", 1)
    assert loaded.bodies == [b"[]"]


async def test_g2_a_session_that_was_ended_writes_nothing(store: Store) -> None:
    await _session(store)
    await store.commit(started())
    await store.end_session("s1")
    committed = await store.commit(Batch(session="s1", appends=[append(seq=2)]))
    assert committed.fenced
    assert not await store.bodies("x1", 2, 2)


async def test_a_session_that_is_over_is_ended_by_whoever_looks(store: Store) -> None:
    await _session(store, lease_ms=-1)
    await store.commit(started())
    await _session(store, "s2")
    assert await store.claim("s2", ["d/1"], 10) == []
    assert await store.reap() == 1
    assert await store.reap() == 0
    claims = await store.claim("s2", ["d/1"], 10)
    assert [(claim.id, claim.epoch) for claim in claims] == [("x1", 2)]


async def test_only_what_is_due_and_can_be_run_is_claimed(store: Store) -> None:
    await _session(store)
    await store.commit(started("due", session="s1", release=True))
    waiting = started("waits", session="s1", release=True)
    waiting.standings["waits"] = standing("waits", release=True, wake_at=None)
    await store.commit(waiting)
    assert await store.claim("s1", ["other/1"], 10) == []
    assert [claim.id for claim in await store.claim("s1", ["d/1"], 10)] == ["due"]
    assert await store.claim("s1", ["d/1"], 10) == []


async def test_b4_one_execution_for_one_key(store: Store) -> None:
    await _session(store)
    await store.commit(started("x1", key="k"))
    committed = await store.commit(started("x2", key="k"))
    found = await store.by_key("t", "k")
    assert committed.refused == {"x2": "duplicate_key"}
    assert found is not None
    assert found.id == "x1"
    assert not await store.bodies("x2", 1, 1)


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
    assert await store.bodies("x3", 1, 1)


async def test_mail_to_an_execution_that_nobody_owns_makes_it_due(store: Store) -> None:
    await _session(store)
    batch = started(release=True)
    batch.standings["x1"] = standing(release=True, wake_at=None)
    await store.commit(batch)
    assert await store.claim("s1", ["d/1"], 10) == []
    posted = await store.post("m1", "x1", b"{}")
    assert posted is not None
    assert posted[1] is None
    assert [claim.id for claim in await store.claim("s1", ["d/1"], 10)] == ["x1"]
    assert [mail.id for mail in await store.mail("s1")] == ["m1"]


async def test_mail_that_meets_a_release_is_not_lost(store: Store) -> None:
    await _session(store)
    await store.commit(started())
    await store.post("m1", "x1", b"{}")
    await store.commit(Batch(session="s1", standings={"x1": standing(release=True, wake_at=None)}))
    assert [claim.id for claim in await store.claim("s1", ["d/1"], 10)] == ["x1"]


async def test_mail_is_kept_once_per_id_and_none_for_nobody(store: Store) -> None:
    await _session(store)
    await store.commit(started())
    await store.post("m1", "x1", b"{}")
    await store.post("m1", "x1", b'{"again": true}')
    assert [mail.body for mail in await store.mail("s1")] == [b"{}"]
    assert await store.post("m2", "nobody", b"{}") is None


async def test_events_are_append_only_in_the_database_itself(store: Store, url: str) -> None:
    await _session(store)
    await store.commit(started())
    for statement in ("UPDATE events SET count = 9", "DELETE FROM events"):
        with pytest.raises(Exception, match="append-only"):
            await _run(url, statement)
    assert await store.bodies("x1", 1, 1)


async def _run(url: str, statement: str) -> None:
    if url.startswith("sqlite"):
        import apsw

        apsw.Connection(url.removeprefix("sqlite:///")).execute(statement)
    else:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


# Migrations -----------------------------------------------------------------------------------------------------------


async def test_a_database_is_migrated_once(url: str) -> None:
    for _ in range(2):
        store = make_store(url)
        await store.open(migrate=True)
        await store.close()


async def test_a_database_without_schema_is_refused_where_nobody_may_migrate(url: str) -> None:
    store = make_store(url)
    with pytest.raises(StorageError) as caught:
        await store.open(migrate=False)
    assert caught.value.code == "no_schema"


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


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_migrations_are_numbered_without_gaps(dialect: str) -> None:
    assert [migration.number for migration in migrations(dialect)] == [*range(1, len(migrations(dialect)) + 1)]


# The race that a mere comparison of epochs loses ----------------------------------------------------------------------


async def test_g2_an_old_owner_cannot_commit_after_the_claim(postgres_url: str) -> None:
    """The old owner's batch begins before the takeover and ends after it. The fence is a lock: one waits for the other.

    Whoever is first wins: either the reaper waits for the commit, or the commit finds the session ended.
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
    reaping = asyncio.create_task(store.reap())
    await _until_waiting(postgres_url)
    assert not reaping.done()
    await transaction.commit()
    assert await reaping == 1
    await _session(store, "s2")
    claims = await store.claim("s2", ["d/1"], 1)
    (loaded,) = await store.load([claims[0].id])
    late = await store.commit(Batch(session="s1", appends=[append(seq=3)]))
    assert len(loaded.bodies) == 2  # what the old owner committed in time is seen by the new one
    assert late.fenced
    assert not await store.bodies("x1", 3, 3)
    await holder.close()
    await store.close()


async def _until_waiting(url: str) -> None:
    """Until some statement of this database waits for a lock."""
    connection = await asyncpg.connect(url)
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    while not await connection.fetchval(query):
        pass
    await connection.close()
