"""What somebody does to the rows of a real database is found: in each table, on both dialects."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenuto import Engine
from tenuto.checker import check_database, find_stuck_in
from tenuto.checker.stuck import QUESTIONS, unserved
from tests.servers import sqlite
from tests.servers.postgres import Server
from tests.upgrade.states import CENTURY_MS

from .databases import copied, migrated, run


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest) -> Server | None:
    found: Server | None = None
    if request.param == "postgres":
        found = request.getfixturevalue("postgres_server")
    return found


@pytest.fixture(scope="module")
def filled(server: Server | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with migrated(tmp_path_factory.mktemp("kept"), server) as url:
        yield url


@pytest.fixture
def url(filled: str, server: Server | None, tmp_path: Path) -> Iterator[str]:
    with copied(filled, tmp_path, server) as place:
        yield place


async def _found(url: str) -> set[str]:
    """Nothing is late: the executions have waited for years, and nobody was there."""
    return {found.invariant for found in await check_database(url, slack_ms=CENTURY_MS)}


async def test_what_was_kept_is_sound(url: str) -> None:
    assert await _found(url) == set()


ROWS = {
    "executions.correlation_id": ("UPDATE executions SET correlation_id = 'other'", "G4"),
    "executions.target_id": ("UPDATE executions SET target_id = 'other' WHERE target_id <> ''", "G4"),
    "executions.created_at": ("UPDATE executions SET created_at = 1", "G4"),
    "executions.ended_at": ("UPDATE executions SET ended_at = ended_at + 1 WHERE ended_at IS NOT NULL", "G4"),
    "executions.error_class": ("UPDATE executions SET error_class = 'TRANSIENT' WHERE status = 'succeeded'", "G4"),
    "executions.priority": ("UPDATE executions SET priority = 1", "G4"),
    "executions.tenant": ("UPDATE executions SET tenant = 'other' WHERE definition = 'timer'", "I1"),
    "reviews.permission": ("UPDATE reviews SET permission = 'other'", "G4"),
    "reviews.due_at": ("UPDATE reviews SET due_at = 1", "G4"),
    "reviews.resolved_by": ("UPDATE reviews SET resolved_by = 'user:eve'", "G4"),
    "reviews.definition": ("UPDATE reviews SET definition = 'other'", "G4"),
    "reviews.tenant": ("UPDATE reviews SET tenant = 'other'", "I1"),
    "reviews": ("DELETE FROM reviews WHERE resolution IS NULL", "M1"),
    "tasks.tenant": ("UPDATE tasks SET tenant = 'other'", "I1"),
    "tasks.queue": ("UPDATE tasks SET queue = 'other'", "G4"),
    "tasks.session": ("UPDATE tasks SET session = 'nobody'", "L8"),
    "tasks": ("DELETE FROM tasks", "V2"),
    "admissions": ("DELETE FROM admissions", "K8"),
    "tenant_limits": ("UPDATE tenant_limits SET in_flight = in_flight + 1", "I3"),
    "limit_holders": ("INSERT INTO limit_holders VALUES ('bank', 'nobody', 1, 0, 1, 1)", "L8"),
    "outbox.kind": ("UPDATE outbox SET kind = 'execution.resumed'", "B5"),
    "outbox.body": ("UPDATE outbox SET body = {seven}", "B5"),
    "outbox.seq": ("UPDATE outbox SET seq = 9999 WHERE seq = 1", "B5"),
    "outbox.published_at": ("UPDATE outbox SET published_at = 1 WHERE seq > 1", "B4"),
    "outbox.tenant": ("UPDATE outbox SET tenant = 'other'", "I1"),
    "progress": ("INSERT INTO progress (execution, path, body) VALUES ('nobody', 'a', {seven})", "G6"),
    "sent_notifications": ("UPDATE sent_notifications SET execution = 'nobody'", "G6"),
    "sent_notifications.tenant": ("UPDATE sent_notifications SET tenant = 'other'", "I1"),
    "mailbox": ("UPDATE mailbox SET execution = 'nobody'", "G6"),
    "audit_head": ("UPDATE audit_head SET n = n - 1", "A1"),
}


@pytest.mark.parametrize("what", ROWS)
async def test_a_row_that_somebody_changed_is_found(url: str, what: str) -> None:
    statement, invariant = ROWS[what]
    run(url, statement)
    assert invariant in await _found(url)


WITHOUT_PROTECTION = {
    "sqlite": ["DROP TRIGGER audit_is_numbered_once", "DROP TRIGGER audit_is_kept"],
    "postgresql": ["ALTER TABLE audit DISABLE TRIGGER ALL"],
}
AUDIT = {
    "an actor": ("UPDATE audit SET actor = 'user:eve' WHERE actor = 'user:ben'", {"A1", "H4"}),
    "one of the middle": ("DELETE FROM audit WHERE action = 'execution.cancel_requested'", {"A1", "H4"}),
    "the last": ("DELETE FROM audit WHERE n = (SELECT max(n) FROM audit)", {"A1", "H4"}),
    "all of it": ("DELETE FROM audit", {"A1", "H4"}),
    "numbers": ("UPDATE audit SET n = NULL, hash = NULL", {"A1"}),
}


@pytest.mark.parametrize("what", AUDIT)
async def test_an_audit_that_somebody_changed_is_found(url: str, what: str) -> None:
    statement, invariants = AUDIT[what]
    run(url, *WITHOUT_PROTECTION[url.partition(":")[0]], statement)
    assert await _found(url) == invariants


async def test_what_is_just_being_removed_is_nobodys_fault(url: str) -> None:
    """A long history goes in pieces: its execution first, and a note that says so."""
    run(url, "INSERT INTO leftovers (execution) SELECT id FROM executions WHERE definition = 'long'")
    run(url, "DELETE FROM executions WHERE definition = 'long'")
    assert await _found(url) <= {"I3"}  # the limit's count is another matter


# -- What is stuck -----------------------------------------------------------------------------------------------------

STUCK = {
    "set aside for good": (
        "UPDATE executions SET parked = 'incompatible', wake_at = NULL WHERE definition = 'timer'",
        "H1",
    ),
    "a task of a worker that is gone": ("UPDATE tasks SET session = 'nobody'", "L8"),
    "a queue that nobody serves": ("UPDATE tasks SET session = NULL", "V5"),
    "a message": ("UPDATE outbox SET published_at = NULL", "B2"),
}


@pytest.mark.parametrize("what", STUCK)
async def test_what_somebody_should_have_done_is_told(url: str, what: str) -> None:
    statement, invariant = STUCK[what]
    quiet = ["DELETE FROM mailbox", "UPDATE executions SET wake_at = NULL, owner = NULL"]
    if what != "a message":
        quiet.append("UPDATE outbox SET published_at = 1")
    if "task" not in what and "queue" not in what:
        quiet.append("DELETE FROM tasks")
    run(url, *quiet, statement)
    assert {found.invariant async for found in find_stuck_in(url)} == {invariant}


@pytest.mark.parametrize(
    ("queue", "served", "invariants"),
    [
        ("elsewhere", ["default", "elsewhere"], set()),
        ("a_b", ["a_b"], set()),
        ("a_b", ["axb"], {"V5"}),
        ("%", ["default"], {"V5"}),
        ("mail", ["MAIL", "mail2"], {"V5"}),
        ("Möbel", ["Möbel"], set()),
        ('the "slow" one', ['the "slow" one'], set()),
    ],
)
async def test_a_queue_is_served_by_whoever_names_it_exactly(
    url: str, queue: str, served: list[str], invariants: set[str]
) -> None:
    run(
        url,
        "DELETE FROM mailbox",
        "UPDATE executions SET wake_at = NULL, owner = NULL",
        "UPDATE outbox SET published_at = 1",
        f"UPDATE tasks SET session = NULL, queue = '{queue}'",  # noqa: S608  (the values are ours)
        f"UPDATE sessions SET queues = '{json.dumps(served)}' WHERE id = 'holder'",  # noqa: S608  (the values are ours)
    )
    assert {found.invariant async for found in find_stuck_in(url)} == invariants


async def test_the_audit_is_chained_by_somebody(url: str) -> None:
    run(url, *WITHOUT_PROTECTION[url.partition(":")[0]], "UPDATE audit SET at = 1, n = NULL, hash = NULL")
    assert "A1" in {found.invariant async for found in find_stuck_in(url)}


def test_the_questions_are_asked_of_indexes(tmp_path: Path) -> None:
    """A table that grows for ever is not read from its beginning every minute; except for what was set aside."""
    url = f"sqlite:///{tmp_path}/x.db"
    asyncio.run(_create(url))
    connection = sqlite.connect(url)
    for question in (*QUESTIONS, unserved(["a", "b"])):
        query = f"EXPLAIN QUERY PLAN {question.query.replace('$', '?')}"
        plan = [row[3] for row in connection.execute(query, (1, *question.values))]
        scans = [line for line in plan if line == "SCAN t" or "mailbox_read" in line]
        assert bool(scans) == ("parked <>" in question.where), (question, plan)
    connection.close()


async def _create(url: str) -> None:
    async with Engine(url):
        pass
