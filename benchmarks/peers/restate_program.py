# Runs in an environment of its own, which type checks do without.
# mypy: disable-error-code="import-not-found"
"""Restate, driven through its ingress: `python -m benchmarks.peers.restate_program URL`."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from benchmarks.runner import STEPS, Runner, serve


class Restate:
    def __init__(self, session: Any, url: str) -> None:
        self._session = session
        self._url = url

    async def chain(self, key: str) -> None:
        assert await self._post(f"/Chain/{key}/run", STEPS) == STEPS

    async def fan_out(self, key: str, width: int) -> None:
        assert await self._post(f"/FanOut/{key}/run", width) == width

    async def submit_slow(self, key: str, log: str) -> None:
        await self._post(f"/Slow/{key}/run/send", {"key": key, "log": log})

    async def finish_slow(self, key: str, log: str) -> None:
        async with self._session.get(f"{self._url}/restate/workflow/Slow/{key}/attach") as response:
            response.raise_for_status()

    async def _post(self, path: str, given: object) -> object:
        async with self._session.post(f"{self._url}{path}", json=given) as response:
            response.raise_for_status()
            answer: object = await response.json()
            return answer


@asynccontextmanager
async def opening(url: str) -> AsyncIterator[Runner]:
    timeout = aiohttp.ClientTimeout(total=None)  # the measuring process has the bounds
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        yield Restate(session, url)


if __name__ == "__main__":
    serve(opening(sys.argv[1]))
