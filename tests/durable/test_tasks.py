"""Rows of queues, on both databases: who may take, begin, answer and return them, and what a dead session leaves."""

import asyncio

import pytest

from tenuto.kernel.address import Phase, Ref
from tenuto.kernel.codec import decode_fact
from tenuto.kernel.facts import Lost, Returned
from tenuto.storage import Store
from tenuto.storage.port import Batch, MailVerdict
from tenuto.storage.postgres.store import PostgresStore
from tenuto.storage.sqlite.store import SqliteStore
from tenuto.storage.tasks import Answered, Beginning, MailMessage, Serving, Taking, Task, TaskKey, work_names
from tenuto.views.projections import TaskEnded, TaskRow, TaskWithdrawn
from tests.durable.rows import append, standing, start

LEASE = 60_000
HANDLERS = ["d/1/h"]


async def open_sessions(store: Store, *ids: str, lease_ms: int = LEASE) -> None:
    for id in ids:
        await store.sessions.open(id, f"worker of {id}", "build", lease_ms, ("gpu",))


def key(execution: str = "x1", path: str = "a", phase: Phase = "forward", number: int = 1) -> TaskKey:
    return TaskKey(execution, path, phase, number)


def first(of: TaskKey) -> Taking:
    """The first time that it was taken."""
    return Taking(of, 1)


def row(of: TaskKey, *, tenant: str = "t", queue: str = "gpu", priority: int = 0, created_at: int = 1) -> TaskRow:
    return TaskRow(
        execution=of.execution,
        path=of.path,
        phase=of.phase,
        number=of.number,
        tenant=tenant,
        plan="d/1",
        queue=queue,
        handler="h",
        priority=priority,
        created_at=created_at,
    )


async def grant(store: Store, *rows: TaskRow) -> None:
    """Executions of session s1, with these tasks."""
    ids = list(dict.fromkeys(task.execution for task in rows))
    await store.commit(
        Batch(
            session="s1",
            starts=[start(id, owner="s1") for id in ids],
            standings={id: standing(id) for id in ids},
            appends=[append(id) for id in ids],
            tasks=list(rows),
        )
    )


async def take(store: Store, session: str = "s2", limit: int = 10, queue: str = "gpu") -> list[TaskKey]:
    return [task.key for task in await store.tasks.take(session, queue, HANDLERS, limit)]


async def messages(store: Store, session: str = "s1") -> list[str]:
    return [mail.id for mail in await store.mailbox.unread(session)]


async def test_a_task_is_taken_once(store: Store) -> None:
    await open_sessions(store, "s1", "s2", "s3")
    await grant(store, row(key()))
    assert await store.tasks.take("s2", "gpu", HANDLERS, 10) == [Task(Taking(key(), 1), "d/1", "gpu", "h")]
    assert await take(store, "s2") == await take(store, "s3") == []
    assert [held.taking.key for held in await store.tasks.held("s2")] == [key()]


async def test_workers_that_take_at_once_share_what_there_is(store: Store) -> None:
    sessions = [f"s{n}" for n in range(1, 6)]
    await open_sessions(store, *sessions)
    tasks = [key("x1", f"a#{n}") for n in range(50)]
    await grant(store, *(row(task) for task in tasks))
    taken = await asyncio.gather(*(take(store, session) for session in sessions))
    assert sorted(task for each in taken for task in each) == sorted(tasks)


async def test_only_what_can_be_run_is_taken(store: Store) -> None:
    await open_sessions(store, "s1", "s2")
    await grant(store, row(key()))
    assert await take(store, queue="cpu") == []
    assert await store.tasks.take("s2", "gpu", ["d/2/h", "d/1/other"], 10) == []
    assert await store.tasks.take("s2", "gpu", [], 10) == []
    by_name_alone = work_names("d/1", "h")[1]
    assert len(await store.tasks.take("s2", "gpu", [by_name_alone], 10)) == 1


async def test_the_most_urgent_first_then_tenants_and_executions_in_turn(store: Store) -> None:
    await open_sessions(store, "s1", "s2")
    crowd = [row(key("x1", f"a#{n}"), created_at=n) for n in range(5)]
    others = [
        row(key("x2"), created_at=100),
        row(key("x3"), tenant="u", created_at=200),
        row(key("x4"), created_at=300, priority=1),
        row(key("x5", phase="compensate"), created_at=400, priority=2),
    ]
    await grant(store, *crowd, *others)
    order = [(await take(store, limit=1))[0].execution for _ in range(len(crowd) + len(others))]
    assert order == ["x5", "x4", "x3", "x1", "x2", "x1", "x1", "x1", "x1"]


async def test_a_tenant_that_came_first_with_much_does_not_hold_up_the_others(store: Store) -> None:
    await open_sessions(store, "s1", "s2")
    await grant(store, *(row(key(f"x{n}"), created_at=n) for n in range(3_000)), row(key("y"), tenant="u"))
    assert {of.execution for of in await take(store, limit=2)} == {"x0", "y"}


@pytest.mark.parametrize("how", ["ended", "reaped"])
async def test_a_session_that_is_over_takes_and_begins_nothing(store: Store, how: str) -> None:
    await open_sessions(store, "s1")
    await open_sessions(store, "s2", lease_ms=LEASE if how == "ended" else -1)
    await grant(store, row(key("x1")), row(key("x2")))
    assert await take(store, limit=1) == [key("x1")]
    if how == "ended":
        await store.sessions.end("s2")
    else:
        assert await store.sessions.reap() == 1
    assert await take(store) == []
    assert await store.tasks.begin("s2", [Beginning(first(key("x1")), marks=True, message=message("b"))]) == (
        set(),
        set(),
    )
    assert await messages(store) == []


def message(id: str, execution: str = "x1") -> MailMessage:
    return MailMessage(id, execution, b"{}")


async def test_what_begins_is_checked_and_told_in_one_transaction(store: Store) -> None:
    await open_sessions(store, "s1", "s2", "s3")
    await grant(store, row(key("x1")), row(key("x2")), row(key("x3")))
    mine = [first(each) for each in await take(store, limit=2)]
    others = first((await take(store, "s3"))[0])
    wanted = [Beginning(each, marks=True) for each in (mine[0], others)]
    wanted.append(Beginning(mine[1], marks=True, message=message("begun", mine[1].key.execution)))
    assert await store.tasks.begin("s2", wanted) == (set(mine), {"s1"})
    assert await store.tasks.begin("s2", wanted) == (set(mine), {"s1"})  # asked twice after a broken connection
    assert await messages(store) == ["begun"]
    assert {held.taking: held.begun for held in await store.tasks.held("s2")} == dict.fromkeys(mine, True)


async def test_an_answer_ends_the_task_and_wakes_the_execution(store: Store) -> None:
    await open_sessions(store, "s1", "s2")
    await grant(store, row(key()))
    await take(store)
    answer = [Answered(first(key()), message("r1"))]
    assert await store.tasks.answer("s2", answer) == {"s1"}
    assert await store.tasks.answer("s2", answer) == {"s1"}
    assert await messages(store) == ["r1"]
    assert await store.tasks.held("s2") == []
    found = await store.executions.find("x1")
    assert found is not None
    assert found.wake_at is not None


async def test_an_answer_of_another_session_ends_nothing(store: Store) -> None:
    """It is posted all the same: what was timed out or lost may still have the best word on it."""
    await open_sessions(store, "s1", "s2", "s3")
    await grant(store, row(key()))
    await take(store)
    await store.tasks.answer("s3", [Answered(first(key()), message("r1"))])
    assert [held.taking.key for held in await store.tasks.held("s2")] == [key()]
    assert await messages(store) == ["r1"]


async def test_what_is_given_back_can_be_taken_again(store: Store) -> None:
    await open_sessions(store, "s1", "s2", "s3")
    await grant(store, row(key()))
    await take(store)
    await store.tasks.begin("s2", [Beginning(first(key()), marks=True)])
    await store.tasks.give_back("s3", [first(key())])  # not its own
    assert await take(store, "s3") == []
    await store.tasks.give_back("s2", [first(key())])
    assert await take(store, "s3") == [key()]
    assert [held.begun for held in await store.tasks.held("s3")] == [False]


async def test_what_is_said_about_an_earlier_taking_changes_nothing(store: Store) -> None:
    """A server may carry out a word late: it was sent again and confirmed, and the same worker has the task anew."""
    await open_sessions(store, "s1", "s2")
    await grant(store, row(key()))
    (task,) = await store.tasks.take("s2", "gpu", HANDLERS, 1)
    await store.tasks.give_back("s2", [task.taking])
    (again,) = await store.tasks.take("s2", "gpu", HANDLERS, 1)
    assert (task.taking, again.taking) == (first(key()), Taking(key(), 2))
    for late in (message("begun"), None):
        assert await store.tasks.begin("s2", [Beginning(task.taking, marks=True, message=late)]) == (set(), set())
    await store.tasks.give_back("s2", [task.taking], "cannot read it")
    (held,) = await store.tasks.held("s2")
    assert (held.taking, held.begun) == (again.taking, False)
    assert await messages(store) == []
    assert await store.tasks.begin("s2", [Beginning(again.taking, marks=True)]) == ({again.taking}, set())
    await store.tasks.give_back("s2", [task.taking])
    await store.tasks.answer("s2", [Answered(task.taking, message("r1"))])
    assert [(held.taking, held.begun) for held in await store.tasks.held("s2")] == [(again.taking, True)]
    assert [state.parked for state in await store.tasks.of("x1")] == [""]


async def test_who_could_not_run_it_does_not_take_it_again_until_it_knows_more(store: Store) -> None:
    await open_sessions(store, "s1", "s2", "s3")
    await grant(store, row(key()))
    for number, session in enumerate(("s2", "s3"), 1):
        assert await take(store, session) == [key()]
        await store.tasks.give_back(session, [Taking(key(), number)], f"{session} cannot read it")
    assert await take(store, "s2") == await take(store, "s3") == []
    assert [state.parked for state in await store.tasks.of("x1")] == ["s3 cannot read it"]
    await store.tasks.try_again("s2")
    assert await take(store, "s3") == []
    assert await take(store, "s2") == [key()]


@pytest.mark.requirement("G2")
async def test_what_a_dead_session_had_is_swept_once(store: Store) -> None:
    await open_sessions(store, "s1")
    await open_sessions(store, "s2", lease_ms=-1)
    await open_sessions(store, "s3")
    await grant(store, row(key("x1")), row(key("x2")))
    assert await take(store) == [key("x1"), key("x2")]
    await store.tasks.begin("s2", [Beginning(first(key("x2")), marks=True)])
    assert await store.tasks.sweep(LEASE) == 0  # nobody has ended the session yet
    await store.sessions.reap()
    assert sum(await asyncio.gather(*(store.tasks.sweep(LEASE) for _ in range(3)))) >= 2
    assert await store.tasks.sweep(LEASE) == 0
    (lost,) = await store.mailbox.unread("s1")
    fact = decode_fact(lost.body)
    assert isinstance(fact, Lost)
    assert (lost.execution, fact.refs, fact.lease_ms) == ("x2", (Ref("a", "forward", 1),), LEASE)
    assert await take(store, "s3") == [key("x1")]


async def test_what_a_session_had_that_nobody_remembers_is_swept(store: Store) -> None:
    await open_sessions(store, "s1", "s2", "s3")
    await grant(store, row(key("x1")))
    assert await take(store) == [key("x1")]
    await _forget_session(store, "s2")
    assert await store.tasks.sweep(LEASE) == 1
    assert await take(store, "s3") == [key("x1")]


async def _forget_session(store: Store, id: str) -> None:
    if isinstance(store, SqliteStore):
        await store.database.in_writer(
            lambda: store.database.write_connection.execute("DELETE FROM sessions WHERE id = ?", (id,)).get
        )
    else:
        assert isinstance(store, PostgresStore)
        await store.database.pool.execute("DELETE FROM sessions WHERE id = $1", id)


async def test_the_owner_takes_a_task_from_its_worker(store: Store) -> None:
    await open_sessions(store, "s1", "s2")
    await grant(store, row(key()))
    await take(store)
    await store.commit(Batch(session="s1", appends=[append(seq=2)], tasks_ended=[TaskEnded(*key())]))
    assert await store.tasks.held("s2") == []
    assert await store.tasks.begin("s2", [Beginning(first(key()), marks=True)]) == (set(), set())


async def test_how_tasks_stand(store: Store) -> None:
    await open_sessions(store, "s1", "s2")
    await grant(store, row(key(path="a")), row(key(path="b"), created_at=2))
    await take(store, limit=1)
    await store.tasks.begin("s2", [Beginning(first(key(path="a")), marks=True)])
    await store.tasks.beat("s2", {first(key(path="a")): b"7"})
    a, b = await store.tasks.of("x1")
    assert (a.key, a.worker, a.begun, a.progress) == (key(path="a"), "worker of s2", True, b"7")
    assert (b.key, b.worker, b.begun, b.progress) == (key(path="b"), None, False, None)


@pytest.mark.parametrize(("is_last", "left"), [(False, b"9"), (True, None)])
async def test_progress_is_kept_for_the_next_attempt(store: Store, is_last: bool, left: bytes | None) -> None:
    await open_sessions(store, "s1", "s2")
    await grant(store, row(key()))
    await take(store)
    await store.tasks.beat("s2", {first(key()): b"8"})
    await store.tasks.answer("s2", [Answered(first(key()), message("r1"), b"9", is_last)])
    await store.commit(Batch(session="s1", appends=[append(seq=2)], tasks=[row(key(number=2))]))
    (again,) = await store.tasks.take("s2", "gpu", HANDLERS, 1)
    assert (again.key.number, again.progress) == (2, left)


async def test_how_far_a_step_is_is_told_by_whoever_has_it(store: Store) -> None:
    """Words of an earlier attempt that are heard late, again, change nothing."""
    await open_sessions(store, "s1", "s2")
    await grant(store, row(key()))
    await take(store)
    old = Answered(first(key()), message("r1"), b"5")
    await store.tasks.answer("s2", [old])
    await store.commit(Batch(session="s1", appends=[append(seq=2)], tasks=[row(key(number=2))]))
    (task,) = await store.tasks.take("s2", "gpu", HANDLERS, 1)
    await store.tasks.beat("s2", {task.taking: b"6"})
    await store.tasks.beat("s2", {first(key()): b"4"})
    await store.tasks.answer("s2", [old])
    (found,) = await store.tasks.of("x1")
    assert found.progress == b"6"


async def test_what_live_sessions_serve(store: Store) -> None:
    await open_sessions(store, "s1", "s2")
    await open_sessions(store, "s3", lease_ms=-1)
    await store.tasks.serve("s1", HANDLERS)
    await store.sessions.end("s2")
    assert await store.tasks.serving() == [Serving(["gpu"], HANDLERS)]


async def test_messages_that_were_read(store: Store) -> None:
    await open_sessions(store, "s1", "s2")
    await grant(store, row(key()))
    for id in ("m1", "m2", "m3"):
        await store.mailbox.post(id, "x1", b"{}")
    await store.commit(Batch(session="s1", mail=[MailVerdict("x1", "m2", b"yes"), MailVerdict("x1", "m3", b"no")]))
    assert await store.mailbox.verdicts(["m1", "m2"]) == {"m2": b"yes"}


async def test_what_follows_an_entry(store: Store) -> None:
    await open_sessions(store, "s1")
    await grant(store, row(key()))
    await store.commit(Batch(session="s1", appends=[append(seq=2, body=b"[2]"), append(seq=3, body=b"[3]")]))
    assert await store.executions.tails({"x1": 1, "unknown": 0}) == {"x1": [b"[2]", b"[3]"]}
    assert await store.executions.tails({"x1": 3}) == await store.executions.tails({}) == {}


# -- Taken out of their queues -----------------------------------------------------------------------------------------


def unwanted(of: TaskKey, *, sends: bool = False) -> TaskWithdrawn:
    return TaskWithdrawn(*of, sends)


async def withdraw(store: Store, *tasks: TaskWithdrawn, session: str = "s1") -> None:
    """With the commit that says why, as their owner makes it."""
    ids = dict.fromkeys(task.execution for task in tasks)
    standings = {id: standing(id) for id in ids}
    await store.commit(Batch(session=session, standings=standings, withdrawn=list(tasks)))


async def withdrawn(store: Store) -> list[tuple[str, tuple[Ref, ...]]]:
    found = [mail for mail in await store.mailbox.unread("s1") if mail.id.startswith("withdrawn:")]
    facts = [(mail.execution, decode_fact(mail.body)) for mail in found]
    return sorted((id, fact.refs) for id, fact in facts if isinstance(fact, Returned))


@pytest.mark.requirement("B14")
async def test_what_nobody_began_is_withdrawn_and_mail_says_so(store: Store) -> None:
    """It waits, or was taken and not begun. A directive may have been sent by whoever took it: that is not noted."""
    waits, taken, begun, told = key("x1", "a#0"), key("x1", "a#1"), key("x1", "a#2"), key("x1", "a#3")
    other, sent, unsent = key("x2", "a"), key("x2", "b"), key("x2", "c")
    await open_sessions(store, "s1", "s2", "s3")
    await grant(store, *(row(of) for of in (taken, begun, told, sent)))
    assert sorted(await take(store)) == sorted((taken, begun, told, sent))
    await store.tasks.begin("s2", [Beginning(first(begun), marks=True), Beginning(first(sent), marks=False)])
    await store.tasks.begin("s2", [Beginning(first(told), True, MailMessage("begun", "x1", b"{}"))])
    await store.commit(Batch(session="s1", tasks=[row(waits), row(other), row(unsent)]))
    every = [unwanted(of) for of in (waits, taken, begun, told, other)]
    directives = [unwanted(of, sends=True) for of in (sent, unsent)]
    await withdraw(store, *every, *directives)
    assert await withdrawn(store) == [("x1", (waits.ref, taken.ref)), ("x2", (other.ref, unsent.ref))]
    assert sorted(held.taking.key for held in await store.tasks.held("s2")) == sorted((begun, told, sent))
    assert await take(store, "s3") == []
    assert await store.tasks.begin("s2", [Beginning(first(taken), marks=True)]) == (set(), set())
    await withdraw(store, *every, *directives)
    assert len(await withdrawn(store)) == 2, "once"


@pytest.mark.requirement("B14")
async def test_whoever_owns_it_no_more_withdraws_nothing(store: Store) -> None:
    await open_sessions(store, "s1", "s2")
    await grant(store, row(key()))
    await store.sessions.end("s1")
    await withdraw(store, unwanted(key()))
    await withdraw(store, unwanted(key()), session="s2")
    assert await take(store) == [key()]


@pytest.mark.requirement("B14")
async def test_a_task_begins_or_is_withdrawn_and_never_both(store: Store) -> None:
    tasks = [key("x1", f"a#{n:02}") for n in range(40)]
    await open_sessions(store, "s1", "s2")
    await grant(store, *(row(of) for of in tasks))
    taken = await take(store, limit=40)
    halves = [taken[:20], taken[20:]]
    beginnings = [store.tasks.begin("s2", [Beginning(first(of), marks=True) for of in half]) for half in halves]
    found = await asyncio.gather(beginnings[0], withdraw(store, *map(unwanted, tasks)), beginnings[1])
    begun = {taking.key.ref for takings, _ in (found[0], found[2]) for taking in takings}
    gone = {ref for _, refs in await withdrawn(store) for ref in refs}
    assert not begun & gone
    assert begun | gone == {of.ref for of in tasks}
