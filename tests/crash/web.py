"""A caller over HTTP, and the service he calls, in the process that is killed.

What he was answered is noted outside. He asks again from his beginning after a crash, as callers do who had no answer,
and what he hears then must go with what he heard before.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2

from tenuto import Engine
from tenuto.service.app import create_app  # here, so that it is loaded before processes are forked
from tenuto.settings import Settings
from tests.servers.http import serving

from .client import Client

LEASE = "1s"
TENANT = "default"
PATIENCE_SECONDS = 120.0
UNHEARD = 202  # the verdict was not known yet
IN_FLIGHT = "request_in_flight"

Answer = httpx2.Response


@asynccontextmanager
async def served(client: Client, *, apart: bool) -> AsyncIterator["Web"]:
    """`apart`: by an engine that runs nothing, as `tenuto serve` has it. Else by the one that works."""
    async with AsyncExitStack() as stack:
        engine = client.engine
        if apart:
            engine = await stack.enter_async_context(Engine(engine.url, worker=False, lease=LEASE))
        key = await engine.keys.create(tenant=TENANT, roles=("admin",), name="caller")
        address = await stack.enter_async_context(serving(create_app(engine, Settings(rate_per_second=0))))
        headers = {"Authorization": f"Bearer {key.token}"}
        caller = httpx2.AsyncClient(base_url=address, headers=headers, timeout=PATIENCE_SECONDS)
        yield Web(client, await stack.enter_async_context(caller))


class Web:
    def __init__(self, client: Client, http: httpx2.AsyncClient) -> None:
        self.client = client
        self.world = client.world
        self.http = http

    def wrong(self, why: str) -> None:
        self.world.note("wrong", why=why)

    def earlier(self, what: str) -> list[Any]:
        """What this was answered so far, by whoever was asked."""
        return [line for line in self.world.lines("answered") if line["asked"] == what]

    async def get(self, path: str, **query: Any) -> Any:
        found = await self.http.get(path, params=query)
        assert found.status_code in (200, 404), found.text
        return found.json() if found.status_code == 200 else None

    async def ask(self, what: str, path: str, body: Any = None, *, key: str | None = None, put: bool = False) -> Answer:
        """Until there is an answer. Of one that is under way, with a dead process perhaps, it is asked again."""
        headers = {} if key is None else {"Idempotency-Key": key}
        while True:
            answer = await self.http.request("PUT" if put else "POST", path, json=body, headers=headers)
            if answer.status_code != UNHEARD and code_of(answer) != IN_FLIGHT:
                break
            await self.client.pause()
        self.world.note("answered", asked=what, status=answer.status_code)
        return answer

    async def expect(self, what: str, path: str, body: Any = None, *, key: str | None = None, words: Any) -> Answer:
        """One of these answers: a status, or a status and the code of what was refused."""
        answer = await self.ask(what, path, body, key=key)
        said = (answer.status_code, code_of(answer)) if answer.is_error else answer.status_code
        if said not in words:
            self.wrong(f"{what} was answered with {said}: {answer.text}")
        return answer

    async def start(self, key: str, body: Any) -> str:
        """201 is said once, and only where nothing was there; the same again is 200, and says that it is."""
        earlier = self.earlier(f"start {key}")
        answer = await self.ask(f"start {key}", "/v1/executions", body, key=key)
        is_replayed = answer.headers.get("Idempotency-Replayed") == "true"
        if (answer.status_code, is_replayed) not in ((201, False), (200, True)):
            self.wrong(f"a start was answered with {answer.status_code}: {answer.text}")
        if answer.status_code == 201 and earlier:
            self.wrong(f"what was started with {key} is started again")
        id: str = answer.json()["execution_id"]
        self.world.note("acknowledged", x=id, key=key)
        return id


def code_of(answer: Answer) -> str:
    return str(answer.json()["code"]) if answer.is_error else ""
