"""How a database stands: what waits in it, whether its schema is ours, and which notifications were sent."""

import pytest

from tenuto.errors import StorageError
from tenuto.storage import Store
from tenuto.storage.port import Notice
from tenuto.views.projections import ReviewRow, TaskRow
from tests.contract.doubles import transaction
from tests.durable.rows import started

LEASE = 60_000


def review(id: str, kind: str) -> ReviewRow:
    return ReviewRow(
        id=id,
        execution="x1",
        tenant="t",
        definition="d",
        kind=kind,
        path="a",
        step="a",
        reason="",
        permission="",
        error_class="",
        error_summary="",
        attempts=1,
        opened_at=5,
        due_at=None,
    )


async def test_what_waits_is_counted(store: Store) -> None:
    await store.sessions.open("s1", "worker", "build", LEASE, ("default",))
    await store.sessions.open("s2", "service", "build", LEASE, None)
    owned = started("x1")
    owned.reviews += [review("r1", "dead_letter"), review("r2", "dead_letter"), review("r3", "approval")]
    await store.commit(owned)
    await store.commit(started("x2", release=True))
    await store.mailbox.post("m1", "x1", b"{}")

    rows = {(row.what, row.label): row for row in await store.operations.backlog()}
    counts = {name: row.count for name, row in rows.items() if row.what != "now"}
    assert counts == {
        ("reviews", "dead_letter"): 2,
        ("reviews", "approval"): 1,
        ("due", ""): 1,
        ("owned", ""): 1,
        ("mail", ""): 1,
        ("outbox", ""): 0,
        ("sessions", ""): 1,
    }
    assert (rows["reviews", "approval"].oldest, rows["due", ""].oldest) == (5, 1)
    now, mail = rows["now", ""].oldest, rows["mail", ""].oldest
    assert now is not None
    assert mail is not None
    assert 0 < mail <= now
    assert rows["outbox", ""].oldest is None


async def test_queues_that_only_tenants_name_are_counted_without_their_names(store: Store) -> None:
    """Unless a worker serves one: then it is the deployment's, whoever uses it."""
    await store.sessions.open("s1", "worker", "build", LEASE, ("default", "gpu"))
    await store.sessions.open("s2", "service", "build", LEASE, None)
    given = [
        ("mail", "d/1"),
        ("mail", "acme/own/1"),
        ("gpu", "acme/own/1"),
        ("secret", "acme/own/1"),
        ("more", "b/own/1"),
    ]
    assert await tasks_in_queues(store, given) == {"mail": (1, 1), "gpu": (1, 3), "": (3, 2)}


SERVED = ('the "slow" one', "Möbel", "a_b", "100%", "back\\slash", "it's", "null")
LIKE_THEM = ("slow", "mobel", "axb", "100", "back", "its", 'the \\"slow\\" one', ", ", "%", "_", '"')


async def test_a_queue_is_served_by_whoever_names_it_exactly(store: Store) -> None:
    await store.sessions.open("s1", "worker", "build", LEASE, SERVED)
    found = await tasks_in_queues(store, [(name, "acme/own/1") for name in (*SERVED, *LIKE_THEM)])
    assert found.pop("") == (len(LIKE_THEM), len(SERVED) + 1)
    assert found == {name: (1, number) for number, name in enumerate(SERVED, start=1)}


async def tasks_in_queues(store: Store, given: list[tuple[str, str]]) -> dict[str, tuple[int, int | None]]:
    """How many wait in each queue, and since when, if these do, by queue and plan."""
    batch = started("x1")
    for number, (queue, plan) in enumerate(given, start=1):
        batch.tasks.append(
            TaskRow(
                execution="x1",
                path="a",
                phase="forward",
                number=number,
                tenant="t",
                plan=plan,
                queue=queue,
                handler="h",
                priority=0,
                created_at=number,
            )
        )
    await store.commit(batch)

    return {row.label: (row.count, row.oldest) for row in await store.operations.backlog() if row.what == "tasks"}


async def test_a_schema_that_is_not_ours_is_told(store: Store, url: str) -> None:
    await store.check()
    async with transaction(url) as connection:
        done = connection.execute("INSERT INTO tenuto_migrations VALUES (9999, 'later', 'x', 0)")
        if not url.startswith("sqlite"):
            await done
    with pytest.raises(StorageError) as refused:
        await store.check()
    assert refused.value.code == "newer_schema"


async def test_a_notification_is_begun_once_and_its_first_receipt_stays(store: Store) -> None:
    notice = Notice(key="k", tenant="t", execution="x", path="work", channel="email")
    begun = await store.notices.begin_notice(notice)
    assert (begun.receipt, begun.sent_at, begun.begun_at > 0) == (None, None, True)
    await store.notices.end_notice("k", b'"one"')
    await store.notices.end_notice("k", b'"two"')
    again = await store.notices.begin_notice(
        Notice(key="k", tenant="t", execution="y", path="other", channel="webhook")
    )
    assert (again.execution, again.receipt, again.begun_at) == ("x", b'"one"', begun.begun_at)
    assert await store.notices.notice("k") == again
    assert await store.notices.notice("other") is None
