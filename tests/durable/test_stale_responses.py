"""An answer of the database that is old when it comes: what it tells of may be in other hands by then."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tenuto import Engine, Handle, SagaBuilder
from tenuto.errors import StorageError
from tenuto.kernel import facts as f
from tenuto.kernel.codec import encode_fact
from tenuto.runtime.durable import DurableRuntime
from tenuto.runtime.durable.parked_executions import PARKED_MS, Parking
from tenuto.runtime.durable.wakeups import Wakeups
from tenuto.storage.port import NEWS, Claim, Loaded, Mail
from tests.durable.test_unknown_outcomes import Altered
from tests.seams import (
    claimed_not_loaded,
    claimer_of,
    durable_runtime,
    effect_method,
    flood_with_hints,
    held_by,
    lost_claims,
    mail_queries,
    mail_queries_under_way,
    mailbox_of,
    make_sweep_due,
    observe,
    park_all,
    parked_by,
    replace_effect_method,
    restorer_of,
    session_of,
    store_of,
    suspected_claims,
    sweep_claims,
    use_store,
    wakeups_of,
    worker_of,
)


async def _one() -> int:
    return 1


def _listens(last: Callable[[], Any] = _one) -> SagaBuilder:
    return (
        SagaBuilder("listens", output="b")
        .step("a", _one)
        .signal("go", "go", depends_on=["a"])
        .step("b", last, depends_on=["go"], safety="not_safe_to_retry", compensation_policy="manual", compensate=_one)
    )


async def _until(ready: Callable[[], object]) -> None:
    while not ready():
        await asyncio.to_thread(lambda: None)


async def _waiting(engine: Engine) -> Handle[Any]:
    """One that waits for `go`, and has left memory."""
    handle = await engine.start("listens")
    runtime = durable_runtime(engine)
    while (await store_of(runtime).executions.find(handle.id)).owner is not None or held_by(runtime).releasing:  # type: ignore[union-attr]
        await asyncio.to_thread(lambda: None)
    return handle


async def _nothing_due(*given: object) -> list[Claim]:
    """It is claimed by whoever has mail for it, and by nobody else."""
    return []


async def test_what_was_owned_when_it_was_asked_is_not_taken_from_whoever_has_it_now(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    began, go_on = asyncio.Event(), asyncio.Event()

    def last(who: str) -> Callable[[], Any]:
        async def b() -> int:
            ran.append(who)
            began.set()
            await go_on.wait()
            return 2

        return b

    async with Engine(url) as first, Engine(url) as second:
        first.register(_listens(last("first")))
        handle = await _waiting(first)
        runtime, real = durable_runtime(first), store_of(first)
        asked, taken, answered = asyncio.Event(), asyncio.Event(), asyncio.Event()
        old: list[Claim] = []

        async def owned(session: str) -> list[Claim]:
            asked.set()
            await began.wait()  # elsewhere
            answered.set()
            return old

        async def claim_one(session: str, execution: str) -> Claim | None:
            claim = await real.claims.claim_one(session, execution)
            if claim is not None:
                old.extend(await real.claims.owned(session))
                taken.set()
            return claim

        claims = Altered(real.claims, owned=owned, claim_one=claim_one)
        use_store(monkeypatch, claimer_of(runtime), Altered(real, claims=claims))
        parked_by(runtime).lost_claims_at = [0.0]  # as after a claim that failed
        await asked.wait()
        await first.get(handle.id).signal("other", 1)
        await taken.wait()
        await _until(lambda: not held_by(runtime).records and not held_by(runtime).releasing)
        second.register(_listens(last("second")))
        await second.get(handle.id).signal("go", 1)
        await answered.wait()
        await _until(lambda: not claimed_not_loaded(runtime))
        assert handle.id not in held_by(runtime).records
        go_on.set()
        assert (await handle.result()).output == 2
    assert ran == ["second"]


async def test_what_was_loaded_for_one_session_is_not_taken_for_the_claim_of_the_next(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine(url) as engine:
        engine.register(_listens())
        handle = await _waiting(engine)
        runtime, real = durable_runtime(engine), store_of(engine)
        former = session_of(runtime).session
        begun = [asyncio.Event(), asyncio.Event()]
        answer = [asyncio.Event(), asyncio.Event()]

        async def load(ids: list[str], *, short: bool = False) -> list[Loaded]:
            found = await real.executions.load(ids, short=short)
            number = int(session_of(runtime).session is not former)
            if not begun[number].is_set():
                begun[number].set()
                await answer[number].wait()
            elif not answer[number].is_set():
                raise StorageError("whoever looks beside them must not be held up", code="busy")
            return found

        use_store(monkeypatch, claimer_of(runtime), Altered(real, executions=Altered(real.executions, load=load)))
        sending = asyncio.create_task(handle.signal("go", 1))
        await begun[0].wait()
        await real.sessions.end(former.id)
        former.lose()
        await begun[1].wait()  # claimed by the next session
        answer[0].set()
        await asyncio.to_thread(lambda: None)
        answer[1].set()
        await sending
        assert (await handle.result()).output == 1


async def test_what_was_loaded_for_one_claim_is_not_taken_for_the_next_of_the_same_session(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two load what was claimed. By the time the second has its answer, the first has let go, and has claimed again."""
    async with Engine(url) as engine:
        engine.register(_listens())
        handle = await _waiting(engine)
        runtime, real = durable_runtime(engine), store_of(engine)
        late, claimed_again, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
        loads: list[int] = []  # the epochs of what was loaded

        async def load(ids: list[str], *, short: bool = False) -> list[Loaded]:
            found = await real.executions.load(ids, short=short)
            loads.extend(loaded.row.epoch for loaded in found)
            if len(loads) == 1:
                await late.wait()
            elif loads[-1] > loads[0]:
                claimed_again.set()
                await go_on.wait()
            return found

        executions, claims = Altered(real.executions, load=load), Altered(real.claims, claim=_nothing_due)
        use_store(monkeypatch, claimer_of(runtime), Altered(real, executions=executions, claims=claims))
        first = asyncio.create_task(handle.signal("other", 1))
        await _until(lambda: loads)
        while (
            claimed_not_loaded(runtime) or held_by(runtime).records or held_by(runtime).releasing
        ):  # the second has it in hand, and lets go
            await _claim_and_read(runtime)
        second = asyncio.create_task(handle.signal("go", 1))
        await claimed_again.wait()
        late.set()
        await first
        assert await lost_claims(runtime) == []
        go_on.set()
        await second
        assert (await handle.result()).output == 1


async def test_an_old_answer_about_mail_does_not_let_go_of_what_has_come_back_for_more(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine(url) as engine:
        engine.register(_listens())
        handle = await _waiting(engine)
        runtime, real = durable_runtime(engine), store_of(engine)
        held_back: list[int] = []  # the number of the query
        late, came_back, look = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def mail(session: str) -> list[Mail]:
            is_fresh = handle.id in held_by(runtime).unread_mail.unchecked
            query = mail_queries(runtime)
            found = await real.mailbox.unread(session)
            if is_fresh and not held_back:
                held_back.append(query)
                await late.wait()
            elif is_fresh and second and not look.is_set():
                came_back.set()
                await look.wait()
            return found

        second: list[str] = []
        use_store(monkeypatch, mailbox_of(runtime), Altered(real, mailbox=Altered(real.mailbox, unread=mail)))
        sending = asyncio.create_task(handle.signal("other", 1))
        await _until(lambda: held_back)
        while held_by(runtime).records or held_by(runtime).releasing:  # another reading answers, and lets go
            await mailbox_of(runtime).read()
        second.append("go")
        letter = f.Signal(at=worker_of(runtime).now(), name="go", id="go", payload=msgspec.Raw(b"1"))
        await real.mailbox.post("letter", handle.id, encode_fact(letter))  # and nobody asks for its verdict
        reading = asyncio.create_task(_claim_and_read(runtime))
        await came_back.wait()
        late.set()
        await _until(lambda: held_back[0] not in mail_queries_under_way(runtime))
        look.set()
        await reading
        await sending  # which may be the one that waited to look
        assert (await handle.result()).output == 1


async def _claim_and_read(runtime: DurableRuntime) -> None:
    await claimer_of(runtime).claim()
    await mailbox_of(runtime).read()


async def test_what_is_in_nobodys_hand_goes_on(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """However that came about: here its claim, and that it is due, are written over its owner's head."""
    async with Engine(url) as engine:
        engine.register(_listens())
        owned, deaf = await _waiting(engine), await _waiting(engine)
        runtime = durable_runtime(engine)
        store = store_of(runtime)
        letter = encode_fact(f.Signal(at=worker_of(runtime).now(), name="go", id="go", payload=msgspec.Raw(b"1")))
        async with asyncio.timeout(None):
            await store.claims.claim_one(session_of(runtime).session.id, owned.id)
            for handle in (owned, deaf):
                await store.mailbox.post(f"letter of {handle.id}", handle.id, letter)
            query = "UPDATE executions SET wake_at = NULL WHERE id = $1 AND owner IS NULL RETURNING id"
            await store.database.run(query, (deaf.id,))  # type: ignore[attr-defined]  # a store of SQL has it
        make_sweep_due(runtime)
        await _until(lambda: suspected_claims(runtime))
        make_sweep_due(runtime)
        for handle in (owned, deaf):
            assert (await handle.result()).output == 1
    assert "were owned by this session but not held" in caplog.text


async def test_what_is_being_taken_into_hand_is_in_somebodys(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[Claim]] = []
    async with Engine(url) as engine:
        engine.register(_listens())
        handle = await _waiting(engine)
        runtime = durable_runtime(engine)
        real = restorer_of(runtime).restore

        async def restore(record: Any, loaded: Loaded) -> None:
            found.append(await lost_claims(runtime))
            await real(record, loaded)

        monkeypatch.setattr(restorer_of(runtime), "restore", restore)
        await handle.signal("go", 1)
        assert (await handle.result()).output == 1
    assert found
    assert not any(found)


async def test_what_is_claimed_and_not_told_yet_is_not_in_nobodys_hand(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The net under claims looks twice while the answer to one is on its way; and so may who looks for lost ones."""
    looked: list[set[str]] = []
    async with Engine(url) as engine:
        engine.register(_listens())
        handle = await _waiting(engine)
        runtime = durable_runtime(engine)
        real = store_of(runtime)

        async def claim_one(session: str, execution: str) -> Claim | None:
            claim = await real.claims.claim_one(session, execution)
            for _ in range(2):
                await sweep_claims(runtime)
                looked.append({*suspected_claims(runtime), *(found.id for found in await lost_claims(runtime))})
            return claim

        claims = Altered(real.claims, claim=_nothing_due, claim_one=claim_one)
        use_store(monkeypatch, claimer_of(runtime), Altered(real, claims=claims))
        await handle.signal("go", 1)
        assert (await handle.result()).output == 1
    assert looked
    assert not any(looked)
    assert "were owned by this session but not held" not in caplog.text


async def test_what_breaks_again_before_the_answer_that_it_is_set_aside_is_set_aside_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine(url) as engine:
        engine.register(_listens())
        handle = await _waiting(engine)
        runtime, real = durable_runtime(engine), store_of(engine)
        epochs: list[int] = []
        parked: list[str] = []

        async def break_it() -> None:
            claim = await real.claims.claim_one(session_of(runtime).session.id, handle.id)
            assert claim is not None
            epochs.append(claim.epoch)
            parked_by(runtime).to_park[handle.id] = Parking(
                session_of(runtime).session, claim.epoch, "incompatible", PARKED_MS
            )

        async def park(session: str, id: str, *given: Any) -> None:
            parked.append(id)
            is_first = len(parked) == 1
            await real.claims.park(session, id, *given)
            if is_first:
                await break_it()  # somebody had it in hand before this is answered

        claims = Altered(real.claims, park=park, claim=_nothing_due)
        use_store(monkeypatch, claimer_of(runtime), Altered(real, claims=claims))
        await break_it()
        while parked_by(runtime).to_park or len(epochs) < 2:
            await park_all(runtime)
            await asyncio.to_thread(lambda: None)
        row = await real.executions.find(handle.id)
        assert row is not None
        assert (row.epoch, row.owner, row.parked) == (epochs[1], None, "incompatible")


async def test_what_was_set_aside_is_left_aside_though_it_has_mail(url: str) -> None:
    async with Engine(url, worker=False) as engine:
        engine.register(_listens())
        handle = await engine.start("listens")
        store = store_of(engine)
        await store.mailbox.post("letter", handle.id, b"cannot be read")
        await store.claims.park(None, handle.id, "incompatible", None)
        assert await store.mailbox.wake_unread() == 0
        row = await store.executions.find(handle.id)
        assert row is not None
        assert (row.parked, row.wake_at) == ("incompatible", None)


async def test_an_observer_that_fails_keeps_nothing_from_going_on(url: str) -> None:
    said: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["message"]))

    class Bad:
        hears_starts = True

        def decided(self, reading: object, entries: object) -> None:
            raise ValueError("decided")

        def started(self, reading: object, ref: object) -> None:
            raise ValueError("started")

    async with Engine(url) as engine:
        engine.register(SagaBuilder("s", output="b").step("a", _one).step("b", _one, depends_on=["a"]))
        runtime = durable_runtime(engine)
        observe(runtime, Bad())
        assert (await (await engine.start("s")).result()).output == 1
    assert set(said) == {"An observer failed; the execution continues."}


async def test_what_cannot_be_followed_is_set_aside_and_followed_later(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit is there: whoever reads it again starts what it granted."""
    monkeypatch.setattr("tenuto.runtime.durable.held_executions.PARKED_MS", 10)
    monkeypatch.setattr("tenuto.runtime.durable.claimer.PARKED_MS", 10)
    said: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["message"]))
    async with Engine(url) as engine:
        engine.register(SagaBuilder("s", output="b").step("a", _one).step("b", _one, depends_on=["a"]))
        runtime = durable_runtime(engine)
        take_up = effect_method(runtime)

        def once(*given: Any) -> None:
            replace_effect_method(monkeypatch, runtime, take_up)
            raise ValueError("nobody thought of this")

        replace_effect_method(monkeypatch, runtime, once)
        assert (await (await engine.start("s")).result()).output == 1
    assert [message for message in said if "could not go on; it is set aside" in message]


async def test_hints_without_end_do_not_keep_a_worker_from_looking_by_itself(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wakeups, "notify_all", lambda *_: None)  # nobody is told of work
    async with Engine(url) as worker, Engine(url, worker=False) as client:
        for engine in (worker, client):
            engine.register(SagaBuilder("s", output="a").step("a", _one))
        runtime = durable_runtime(worker)
        over = False

        def flood() -> None:
            """In every turn of the loop."""
            flood_with_hints(runtime, frozenset({NEWS}))
            wakeups_of(runtime).polling.set()
            if not over:
                asyncio.get_running_loop().call_soon(flood)

        flood()
        assert (await (await client.start("s")).result()).output == 1
        over = True
