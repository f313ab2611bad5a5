"""What was done though its answer was lost, or only after that: it is found again, and nothing is passed over."""

import asyncio
from typing import Any

import pytest

from tenuto import Engine, Message, SagaBuilder
from tenuto.errors import StorageError
from tenuto.kernel import facts as f
from tenuto.kernel.codec import encode_fact
from tenuto.kernel.events import NULL
from tenuto.runtime.durable import mailbox as mailing
from tenuto.runtime.durable import parked_executions
from tenuto.storage.outbox import Waiting
from tenuto.storage.port import MAIL_AT_ONCE, Claim, Store
from tenuto.storage.shared import mailbox as reading
from tests.seams import claimer_of, outbox_of, relay_of, store_of, use_store


class Altered:
    """A real store, or a part of one, some of whose methods are others."""

    def __init__(self, real: Any, **methods: Any) -> None:
        self._real = real
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _lost() -> StorageError:
    return StorageError("the connection was lost", code="unreachable")


async def _one() -> int:
    return 1


async def test_a_claim_that_is_made_after_its_error_was_told_is_found_too(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database was slow: when the worker asked what it owns, the claim was under way still."""
    monkeypatch.setattr(parked_executions, "LOST_CLAIM_SECONDS", (0.0, 0.01, 0.02))
    worker = Engine(url)
    real = store_of(worker)
    under_way: list[str] = []
    made: list[Claim] = []

    async def claim(session: str, plans: list[str], limit: int) -> list[Claim]:
        if not made:
            under_way[:] = plans
            raise _lost()
        return await real.claims.claim(session, plans, limit)

    async def owned(session: str) -> list[Claim]:
        found = await real.claims.owned(session)
        if under_way and not made:
            made.extend(await real.claims.claim(session, under_way, 10))
        return found

    claims = Altered(real.claims, claim=claim, owned=owned)
    use_store(monkeypatch, claimer_of(worker), Altered(real, claims=claims))
    async with worker, Engine(url, worker=False) as client:
        for engine in (worker, client):
            engine.register(SagaBuilder("s", output="a").step("a", _one))
        handle = await client.start("s")
        assert (await handle.result()).output == 1
        assert [one.id for one in made] == [handle.id]


async def test_a_command_is_answered_though_the_claim_after_its_delivery_failed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(url)
    real = store_of(engine)
    failed: list[str] = []

    async def none_due(*given: object) -> list[Claim]:
        return []

    async def claim_one(session: str, execution: str) -> Claim | None:
        if not failed:
            failed.append(execution)
            raise _lost()
        return await real.claims.claim_one(session, execution)

    claims = Altered(real.claims, claim=none_due, claim_one=claim_one)
    use_store(monkeypatch, claimer_of(engine), Altered(real, claims=claims))
    async with engine:
        engine.register(SagaBuilder("listens", output="paid").signal("paid", "paid"))
        handle = await engine.start("listens")
        await _until_released(engine, handle.id)
        await handle.signal("paid", 1)
        assert failed == [handle.id]
        assert (await handle.result()).output == 1


async def _until_released(engine: Engine, execution: str) -> None:
    while (found := await store_of(engine).executions.find(execution)) is None or found.owner is not None:
        await asyncio.to_thread(lambda: None)


async def test_messages_that_were_taken_though_the_answer_was_lost_are_published(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[str] = []
    over = asyncio.Event()

    async def publish(message: Message) -> None:
        published.append(message.kind)
        if message.kind == "execution.finished":
            over.set()

    engine = Engine(url, messages=["*"], publish=publish)
    relay = relay_of(engine)
    outbox = outbox_of(relay)
    lost: list[Waiting] = []

    async def take(session: str, now: int, executions: int) -> list[Waiting]:
        taken = await outbox.take(session, now, executions)
        if not lost and taken:
            lost.extend(taken)
            raise _lost()
        return taken

    use_store(monkeypatch, relay, Altered(outbox, take=take))
    async with engine:
        engine.register(SagaBuilder("s").step("a", _one))
        await (await engine.start("s")).result()
        await over.wait()
    assert lost
    assert published[0] == "execution.started"


async def test_more_letters_than_are_read_at_once_are_all_answered(url: str) -> None:
    async with Engine(url) as engine:
        engine.register(SagaBuilder("listens").signal("paid", "paid"))
        handle = await engine.start("listens")
        store = store_of(engine)
        ids = [f"letter-{number:05}" for number in range(MAIL_AT_ONCE + 200)]
        await _post(store, handle.id, ids)
        while len(await store.mailbox.verdicts(ids)) < len(ids):
            await asyncio.to_thread(lambda: None)


async def test_an_execution_that_ends_before_all_its_mail_is_read_is_due_for_the_rest(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (mailing, reading):
        monkeypatch.setattr(module, "MAIL_AT_ONCE", 1)
    async with Engine(url) as engine:
        engine.register(SagaBuilder("listens").signal("paid", "paid"))
        handle = await engine.start("listens")
        store = store_of(engine)
        await store.mailbox.post("m1", handle.id, encode_fact(f.Cancel(at=0, mode="terminate", reason="")))
        await store.mailbox.post("m2", handle.id, encode_fact(f.Pause(at=0, reason="")))
        while len(await store.mailbox.verdicts(["m1", "m2"])) < 2:
            await asyncio.to_thread(lambda: None)


async def _post(store: Store, execution: str, ids: list[str]) -> None:
    for id in ids:
        fact = f.Signal(at=0, name="other", id=id, payload=NULL)
        await store.mailbox.post(id, execution, encode_fact(fact))
