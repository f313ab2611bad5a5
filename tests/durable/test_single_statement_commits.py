"""The usual batch is one statement on SQLite; whatever is out of the ordinary is found, and only that refused."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tenuto.storage.port import Batch, Refusal
from tenuto.storage.sqlite.plain_batch import plain
from tenuto.storage.sqlite.store import SqliteStore
from tenuto.views.projections import Standing
from tests.durable.rows import append, standing, started

LEASE = 60_000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(str(tmp_path / "x.db"))
    await opened.open(migrate=True)
    await opened.sessions.open("s1", "worker", "build", LEASE, None)
    await opened.sessions.open("s2", "worker", "build", LEASE, None)
    yield opened
    await opened.close()


async def _statements(store: SqliteStore, batch: Batch) -> list[str]:
    """What the connection was asked for, trigger included as the one statement that set it off."""
    asked: list[str] = []

    def note(_cursor: object, sql: str, _bindings: object) -> bool:
        asked.append(sql)
        return True

    store.database.write_connection.exec_trace = note
    try:
        assert not (await store.commit(batch)).refused
    finally:
        store.database.write_connection.exec_trace = None
    return asked


def _moved(*standings: Standing) -> Batch:
    appends = [append(standing.id, seq=2, body=b'["\xc3\xa9"]') for standing in standings]
    return Batch(session="s1", standings={standing.id: standing for standing in standings}, appends=appends)


async def test_a_batch_is_one_statement(store: SqliteStore) -> None:
    assert len(await _statements(store, started("x1"))) == 1
    assert len(await _statements(store, _moved(standing("x1", "succeeded", release=True, ended=True)))) == 1
    (loaded,) = await store.executions.load(["x1"])
    assert (loaded.row.status, loaded.row.owner, loaded.row.ended_at) == ("succeeded", None, 1)
    assert loaded.bodies == [b"[]", b'["\xc3\xa9"]']


async def test_starts_and_moves_and_appends_go_together(store: SqliteStore) -> None:
    await store.commit(started("x1"))
    both = started("x2", key="k")
    both.standings["x1"] = standing("x1", "paused", release=True, wake_at=7)
    both.appends.append(append("x1", seq=2))
    assert len(await _statements(store, both)) == 1
    first, second = sorted(await store.executions.load(["x1", "x2"]), key=lambda loaded: loaded.row.id)
    assert (first.row.status, first.row.wake_at, len(first.bodies)) == ("paused", 7, 2)
    assert (second.row.key, second.row.owner, len(second.bodies)) == ("k", "s1", 1)


def _foreign(batch: Batch) -> None:
    batch.standings["x2"] = standing("x2", epoch=7)
    batch.appends.append(append("x2", seq=2))


def _doubled(batch: Batch) -> None:
    other = started("x3", key="k")
    batch.starts += other.starts
    batch.standings |= other.standings
    batch.appends += other.appends


@pytest.mark.parametrize(("spoil", "refused"), [(_foreign, {"x2": "not_owner"}), (_doubled, {"x3": "duplicate_key"})])
async def test_only_what_is_out_of_the_ordinary_is_refused(
    store: SqliteStore, spoil: Callable[[Batch], None], refused: dict[str, Refusal]
) -> None:
    await store.commit(started("x1"))
    await store.commit(started("x2", key="k"))
    batch = _moved(standing("x1", "paused"))
    spoil(batch)
    assert plain(batch) is not None
    assert (await store.commit(batch)).refused == refused
    (loaded,) = await store.executions.load(["x1"])
    assert (loaded.row.status, len(loaded.bodies)) == ("paused", 2)
    assert [len(found.bodies) for found in await store.executions.load(list(refused))] == (
        [1] if "x2" in refused else []
    )


async def test_a_session_that_has_ended_writes_nothing(store: SqliteStore) -> None:
    await store.commit(started("x1"))
    await store.sessions.end("s1")
    assert (await store.commit(_moved(standing("x1", "paused")))).fenced
    (loaded,) = await store.executions.load(["x1"])
    assert (loaded.row.status, len(loaded.bodies)) == ("running", 1)


async def test_where_tenants_have_limits_no_batch_is_plain(store: SqliteStore) -> None:
    await store.limits.set_tenant("t", 10)
    await store.commit(started("x1"))
    asked = await _statements(store, started("x2"))
    assert len(asked) > 1
    assert not [sql for sql in asked if "plain" in sql]
    await store.limits.set_tenant("t", None)
    await store.commit(started("x3"))
    assert len(await _statements(store, started("x4"))) == 1


async def test_many_are_committed_while_the_loop_has_other_work(store: SqliteStore) -> None:
    many = Batch(session="s1")
    for number in range(300):
        one = started(f"x{number}")
        many.starts += one.starts
        many.standings |= one.standings
        many.appends += one.appends
    assert len(await _statements(store, many)) == 1
    assert await store.executions.statuses(list(many.standings)) == dict.fromkeys(many.standings, "running")
