"""The database is away, or does not answer: every request ends in time, and says what is known of it."""

import asyncio
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from tenuto import Engine, SagaBuilder
from tenuto.service.app import create_app
from tenuto.settings import Settings
from tests.hostile.proxy import Proxy
from tests.servers import postgres
from tests.servers.http import serving

BOUND_S = 3.0
ENOUGH_S = BOUND_S + 10  # on a busy machine; without a bound it would be minutes
LEASE = "60s"


async def double(number: int) -> int:
    return 2 * number


DOUBLE = SagaBuilder("double", output="double").step("double", double)
START = {"definition": "double", "input": 21}


@pytest.fixture(scope="module")
def own_server() -> Iterator[postgres.Server]:
    """One that may be stopped and killed."""
    directory = Path(tempfile.mkdtemp(prefix="tenuto-pg-"))
    postgres.initialise(directory)
    server = postgres.start(directory, durable=True)
    yield server
    server.stop()
    shutil.rmtree(directory, ignore_errors=True)


class Outage(NamedTuple):
    begin: Callable[[], Awaitable[None]]
    end: Callable[[], Awaitable[None]]


def _restart(server: postgres.Server) -> "subprocess.Popen[bytes]":
    """What is left of the old one has to notice that it is dead: until then there is no new one."""
    while True:
        try:
            return postgres.start(server.directory, durable=True, port=server.port).process
        except RuntimeError:
            continue


@asynccontextmanager
async def away(how: str, server: postgres.Server) -> AsyncIterator[tuple[str, Outage]]:
    """The URL to use, and what makes the database go away and come back."""

    async def stop() -> None:
        server.freeze()

    async def go_on() -> None:
        server.thaw()

    async def kill() -> None:
        server.kill()

    async def restart() -> None:
        server.process = await asyncio.to_thread(_restart, server)

    if how == "stopped":
        try:
            yield server.dsn(), Outage(stop, go_on)
        finally:
            await go_on()
    elif how == "killed":
        yield server.dsn(), Outage(kill, restart)
    else:
        async with Proxy(server.port, lambda: None) as proxy:
            line = proxy.hears if how == "not heard" else proxy.speaks

            async def silence() -> None:
                line.clear()

            async def speak() -> None:
                line.set()

            yield server.dsn().replace(f":{server.port}/", f":{proxy.port}/"), Outage(silence, speak)


class Timed(NamedTuple):
    answer: httpx2.Response
    seconds: float


async def timed(request: Awaitable[httpx2.Response]) -> Timed:
    began = time.monotonic()
    answer = await request
    return Timed(answer, time.monotonic() - began)


async def insist(ask: Callable[[], Awaitable[httpx2.Response]], wanted: Callable[[httpx2.Response], bool]) -> Any:
    while not wanted(answer := await ask()):
        await asyncio.to_thread(lambda: None)
    return answer


def check_problem(answer: httpx2.Response, *codes: str) -> None:
    problem = answer.json()
    assert answer.status_code == 503, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) >= 1
    assert problem["code"] in codes
    assert problem["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("works", [True, False], ids=["dev", "serve"])
@pytest.mark.parametrize("how", ["stopped", "killed", "not heard", "not answered"])
async def test_every_request_ends_in_time_and_a_key_makes_repeating_safe(
    own_server: postgres.Server, how: str, works: bool
) -> None:
    settings = Settings(answer_seconds=BOUND_S, verdict_seconds=0.5, rate_per_second=0)
    async with away(how, own_server) as (url, outage), Engine(url, worker=works, lease=LEASE) as engine:
        engine.register(DOUBLE)
        key = await engine.keys.create(tenant="acme", roles=["admin"])
        async with (
            serving(create_app(engine, settings)) as address,
            httpx2.AsyncClient(base_url=address, timeout=120) as http,
        ):
            http.headers["Authorization"] = f"Bearer {key.token}"
            before = (await http.post("/v1/executions", json=START)).json()["execution_id"]
            assert (await http.get("/readyz")).status_code == 200
            await outage.begin()

            named = {"Idempotency-Key": f"k-{how}-{works}"}
            asked = [
                *(http.post("/v1/executions", json=START, headers=named if n == 0 else {}) for n in range(20)),
                http.post(f"/v1/executions/{before}:pause"),
                http.post("/v1/definitions", json={"name": "d", "version": 1, "steps": []}, headers=named),
                http.get(f"/v1/executions/{before}"),
                http.get(f"/v1/executions/{before}", params={"wait": "terminal", "seconds": 1}),
                http.get("/v1/executions"),
                http.get("/v1/audit"),
            ]
            requests = asyncio.gather(*map(timed, asked))
            health, ready = await timed(http.get("/healthz")), await timed(http.get("/readyz"))
            assert (health.answer.status_code, ready.answer.status_code) == (200, 503)
            assert "database" in ready.answer.json()["checks"]
            assert health.seconds < 2
            assert ready.seconds < 5
            for number, (answer, seconds) in enumerate(await requests):
                if answer.status_code == 200 and works:  # of what this process has in hand it needs nobody to tell
                    assert number in (22, 23)
                    continue
                check_problem(
                    answer, *(("outcome_unknown", "unreachable") if number < 22 else ("too_slow", "unreachable"))
                )
                assert seconds < ENOUGH_S + (60 if number == 23 else 0)

            await outage.end()
            await insist(lambda: http.get("/readyz"), lambda answer: answer.status_code == 200)
            again = await insist(
                lambda: http.post("/v1/executions", json=START, headers=named), lambda answer: answer.status_code < 300
            )
            once_more = await http.post("/v1/executions", json=START, headers=named)
            assert once_more.status_code == 200
            assert once_more.json()["execution_id"] == again.json()["execution_id"]
