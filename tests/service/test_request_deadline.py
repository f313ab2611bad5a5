"""A request is answered in time, whatever it waits for; what is being answered is not cut off."""

import asyncio
import gc
import logging
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tenuto import Engine, SagaBuilder
from tenuto.errors import StorageError
from tenuto.service.app import create_app
from tenuto.service.http.request_deadline import RequestDeadline
from tenuto.settings import Settings
from tests.seams import durable_runtime, runtime_of, store_of
from tests.servers.http import serving
from tests.service.conftest import MakeSite, until

BOUND_S = 0.2
LONG_S = 120.0


@asynccontextmanager
async def asking(app: ASGIApp) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        serving(RequestDeadline(app, BOUND_S, LONG_S)) as address,
        httpx2.AsyncClient(base_url=address, timeout=LONG_S) as client,
    ):
        yield client


class Stuck:
    """Waits for what never comes; and when it is told to end, until it is let."""

    def __init__(self, ends: str = "cancelled") -> None:
        self.may_end, self.has_ended = asyncio.Event(), asyncio.Event()
        self._ends = ends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await self.may_end.wait()
            if self._ends == "raises":
                raise StorageError(code="unreachable") from None
            if self._ends == "answers":
                await PlainTextResponse("too late")(scope, receive, send)
                return
            raise
        finally:
            self.has_ended.set()


@pytest.mark.parametrize("ends", ["cancelled", "raises", "answers"])
async def test_it_is_answered_though_what_it_waits_for_does_not_end(
    ends: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = Stuck(ends)
    async with asking(app) as client:
        answer = await client.post("/x")
        assert not app.has_ended.is_set()
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (503, "outcome_unknown")
        assert "whether this was done is not known" in problem["detail"]
        assert "Idempotency-Key" in problem["hint"]
        assert answer.headers["retry-after"] == "5"
        assert (await client.get("/x")).json()["code"] == "too_slow"  # on the same connection, or on another
        app.may_end.set()
        await app.has_ended.wait()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_each_is_answered_in_its_time_though_others_end_before() -> None:
    stuck, may_answer = Stuck(), asyncio.Event()
    stuck.may_end.set()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") == "/stuck":
            await stuck(scope, receive, send)
        else:
            await may_answer.wait()
            await PlainTextResponse("well")(scope, receive, send)

    async with asking(app) as client:
        first = asyncio.create_task(client.get("/first"))
        others = [asyncio.create_task(client.get("/stuck")) for _ in range(3)]
        may_answer.set()
        assert (await first).text == "well"
        assert [(await other).status_code for other in others] == [503, 503, 503]
        assert (await client.get("/stuck")).status_code == 503  # when nobody was waited for in between, too


async def test_an_answer_that_has_begun_is_not_cut_off() -> None:
    stuck = Stuck()
    stuck.may_end.set()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"first"
        assert (await client.get("/stuck")).status_code == 503  # so long ago it began, at least
        yield b", and last"

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        inner = stuck if scope.get("path") == "/stuck" else StreamingResponse(slowly())
        await inner(scope, receive, send)

    async with asking(app) as client:
        assert (await client.get("/slow")).text == "first, and last"


async def test_how_long_a_body_is_on_its_way_does_not_count(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(number: int) -> int:
        return number

    site = await make_site(SagaBuilder("s").step("a", work), settings=Settings(answer_seconds=2, rate_per_second=0))
    key = await site.engine.keys.create(tenant="acme", roles=["admin"])

    async def never(*given: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(runtime_of(site.engine).audit, "page", never)

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"definition": "s", '
        stuck = await client.get("/v1/audit")
        assert (stuck.status_code, stuck.json()["code"]) == (503, "too_slow")
        yield b'"input": 1}'

    async with serving(site.app) as address, httpx2.AsyncClient(base_url=address, timeout=LONG_S) as client:
        client.headers["Authorization"] = f"Bearer {key.token}"
        headers = {"Content-Type": "application/json"}
        answer = await client.post("/v1/executions", content=slowly(), headers=headers)
    assert answer.status_code == 201, answer.text


async def test_a_start_that_nobody_waits_for_is_not_made_when_the_database_is_back(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was on its way to the database may be; what had to wait for that is not."""
    settings = Settings(answer_seconds=2, rate_per_second=0)
    gate, reached = asyncio.Event(), asyncio.Event()
    async with Engine(url, worker=False) as engine:
        engine.register(SagaBuilder("s").signal("wait", "go"))
        key = await engine.keys.create(tenant="acme", roles=["admin"])
        runtime = durable_runtime(engine)
        commit = store_of(runtime).commit

        async def held(batch: object) -> object:
            reached.set()
            await gate.wait()
            return await commit(batch)  # type: ignore[arg-type]  # passed on as it is

        async with (
            serving(create_app(engine, settings)) as address,
            httpx2.AsyncClient(base_url=address, timeout=LONG_S) as client,
        ):
            client.headers["Authorization"] = f"Bearer {key.token}"
            await client.post("/v1/executions", json={"definition": "s"})
            monkeypatch.setattr(store_of(runtime), "commit", held)
            starts = [asyncio.create_task(client.post("/v1/executions", json={"definition": "s"}))]
            await reached.wait()
            starts += [asyncio.create_task(client.post("/v1/executions", json={"definition": "s"})) for _ in range(5)]
            assert [answer.status_code for answer in await asyncio.gather(*starts)] == [503] * 6
            gate.set()

            async def count() -> int:
                return sum((await engine.count(group_by="status")).values())

            assert await until(count, lambda number: number >= 2) == 2
            await client.post("/v1/executions", json={"definition": "s"})
            assert await count() == 3


async def test_nothing_is_left_of_a_request_that_was_answered() -> None:
    """What holds itself waits for the collector: that stopped the service for a third of a second at a time."""
    left: list[weakref.ref[object]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        left.append(weakref.ref(scope["tenuto.bound"]))
        await PlainTextResponse("done")(scope, receive, send)

    gc.disable()
    try:
        async with asking(app) as client:
            for _ in range(3):
                assert (await client.post("/x")).text == "done"
        assert [ref() for ref in left] == [None, None, None]
    finally:
        gc.enable()
