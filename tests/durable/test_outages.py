"""The database goes away while executions are under way, and comes back. Nobody restarts anything."""

import asyncio
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tenuto import Engine, SagaBuilder, SagaContext
from tenuto.api.handle import Handle
from tenuto.errors import StorageError
from tenuto.storage import make_store
from tenuto.storage.port import Claim
from tenuto.views.results import SagaResult
from tests.contract.doubles import until_blocked
from tests.durable.faults import Wire
from tests.seams import committing, session_of, store_of
from tests.servers import postgres, sqlite

EXECUTIONS = 60
LEASE = "60s"  # no outage here is that long: what was in hand stays there


class Effects:
    """Which handlers ran, how often."""

    def __init__(self) -> None:
        self.made: Counter[tuple[str, str]] = Counter()

    def saga(self) -> SagaBuilder:
        async def make(ctx: SagaContext) -> str:
            self.made[ctx.execution_id, ctx.step_id] += 1
            return ctx.step_id

        builder = SagaBuilder("chain", output="c").step("a", make).step("b", make, depends_on=["a"])
        return builder.step("c", make, depends_on=["b"], safety="not_safe_to_retry", compensation_policy="manual")


async def _insist(handle: Handle[str]) -> SagaResult[str]:
    """Reading needs the database: while it is away, that is said, and asked again."""
    while True:
        try:
            return await handle.result()
        except StorageError as error:
            if error.code != "unreachable":
                raise
            await asyncio.to_thread(lambda: None)


async def _check(effects: Effects, handles: list[Handle[str]]) -> None:
    """Everything was made once, in one attempt: nothing was lost, and nothing taken for lost."""
    results = [await _insist(handle) for handle in handles]
    assert {result.output for result in results} == {"c"}
    assert set(effects.made.values()) == {1}
    assert len(effects.made) == 3 * len(handles)
    assert {step.attempts for result in results for step in result.steps.values()} == {1}


async def test_a_connection_that_is_cut_before_the_answer_loses_nothing(
    postgres: postgres.Server, postgres_url: str
) -> None:
    """Again and again, at another reply each time: in the middle of a commit, too."""
    wire = Wire(postgres.port)
    url = postgres_url.replace(f":{postgres.port}/", f":{await wire.open()}/")
    effects = Effects()
    async with Engine(url, lease=LEASE) as engine:
        engine.register(effects.saga())
        handles: list[Handle[str]] = [await engine.start("chain")]
        for number in range(EXECUTIONS):
            wire.replies_until_cut = number % 7
            handles.append(await engine.start("chain"))
        wire.replies_until_cut = None
        await _check(effects, handles)
    await wire.close()


@pytest.fixture
def own_server() -> Iterator[postgres.Server]:
    """One that may be killed."""
    directory = Path(tempfile.mkdtemp(prefix="tenuto-pg-"))
    postgres.initialise(directory)
    server = postgres.start(directory, durable=True)
    yield server
    server.stop()
    shutil.rmtree(directory, ignore_errors=True)


async def test_a_server_that_is_killed_and_comes_back_loses_nothing(own_server: postgres.Server) -> None:
    effects = Effects()
    async with Engine(own_server.dsn(), lease=LEASE) as engine:
        engine.register(effects.saga())
        handles: list[Handle[str]] = [await engine.start("chain")]
        for _ in range(3):
            starting = [asyncio.ensure_future(engine.start("chain")) for _ in range(EXECUTIONS)]
            await asyncio.wait(starting, return_when=asyncio.FIRST_COMPLETED)
            own_server.kill()
            own_server.process = await asyncio.to_thread(_restart, own_server)
            handles += await asyncio.gather(*starting)
        await _check(effects, handles)


def _restart(server: postgres.Server) -> "subprocess.Popen[bytes]":
    """What is left of the old one has to notice that it is dead: until then there is no new one."""
    while True:
        try:
            return postgres.start(server.directory, durable=True, port=server.port).process
        except RuntimeError:
            continue


async def test_an_engine_can_be_closed_while_its_server_is_away(own_server: postgres.Server) -> None:
    effects = Effects()
    engine = Engine(own_server.dsn(), lease=LEASE)
    async with engine:
        engine.register(effects.saga())
        await engine.execute("chain")
        own_server.kill()
        starting = asyncio.ensure_future(engine.start("chain"))
        while not committing(session_of(engine).committer):
            await asyncio.to_thread(lambda: None)
    with pytest.raises(StorageError) as caught:
        await starting
    assert caught.value.code == "outcome_unknown"
    own_server.process = await asyncio.to_thread(_restart, own_server)
    async with Engine(own_server.dsn(), lease=LEASE) as other:
        assert await other.count() in ({"succeeded": 1}, {"succeeded": 1, "running": 1})


# A process that was taken for dead ------------------------------------------------------------------------------------


@pytest.mark.requirement("G2")
async def test_a_process_that_lost_its_session_opens_another_and_answers_everybody(url: str) -> None:
    """Somebody ended its session while it had an execution in hand. A command then is not lost, nor is a start."""
    go = asyncio.Event()
    runs: list[int] = []

    async def hold(ctx: SagaContext) -> None:
        runs.append(ctx.attempt)
        await go.wait()

    async with Engine(url) as engine:
        engine.register(SagaBuilder("held").step("hold", hold))
        handle = await engine.start("held")
        while not runs:
            await asyncio.to_thread(lambda: None)
        before = session_of(engine).session.id
        await _end_session(url, before)
        await handle.pause(reason="a commit of the old session is refused, and the new one hears of it")
        assert (await handle.status())["status"] == "paused"
        second = await engine.start("held")
        go.set()
        await handle.resume()
        assert {(await each.result()).status for each in (handle, second)} == {"succeeded"}
        assert session_of(engine).session.id != before


async def _end_session(url: str, id: str) -> None:
    store = make_store(url)
    await store.open(migrate=False)
    await store.sessions.end(id)
    await store.close()


async def test_a_claim_whose_answer_was_lost_is_found_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session owns the execution, and does not know it: nobody else would ever take it."""
    effects = Effects()
    worker = Engine(url)
    store = store_of(worker)
    claim = store.claims.claim
    lost: list[str] = []

    async def claim_and_lose(session: str, plans: list[str], limit: int) -> list[Claim]:
        claims = await claim(session, plans, limit)
        if claims and not lost:
            lost.extend(each.id for each in claims)
            raise StorageError("the connection was lost", code="unreachable")
        return claims

    monkeypatch.setattr(store.claims, "claim", claim_and_lose)
    async with worker, Engine(url, worker=False) as client:
        worker.register(effects.saga())
        client.register(effects.saga())
        handle = await client.start("chain")
        assert (await handle.result()).output == "c"
        assert lost == [handle.id]


@pytest.mark.unchecked("a row that no engine wrote is planted")
async def test_an_execution_whose_record_the_database_refuses_is_set_aside_and_says_so(url: str) -> None:
    async with Engine(url) as engine:
        engine.register(SagaBuilder("waits").signal("paid", "paid"))
        handle = await engine.start("waits")
        (loaded,) = await store_of(engine).executions.load([handle.id])
        await _plant(url, handle.id, loaded.row.seq + 1)
        with pytest.raises(StorageError) as caught:
            await handle.signal("paid")
        assert caught.value.code == "incompatible"
        await until_blocked(handle, "incompatible")  # another look at the mail may be under way


async def _plant(url: str, execution: str, seq: int) -> None:
    """A row that says nothing, under the number that the next one will have."""
    row = (execution, seq, 1, b"[]")
    statement = "INSERT INTO events (execution, seq, count, body) VALUES ({})"
    if url.startswith("sqlite"):
        connection = sqlite.connect(url)
        connection.execute(statement.format("?, ?, ?, ?"), row)
        connection.close()
        return
    server = await asyncpg.connect(url)
    await server.execute(statement.format("$1, $2, $3, $4"), *row)
    await server.close()
