# The library is in the dependency group `bench`, which type checks do without.
# mypy: disable-error-code="import-not-found,import-untyped"
"""The PyPI library `sagaz`: sagas in memory, built and run for each execution."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sagaz import Saga

from benchmarks.runner import STEPS, Runner, Unable, serve


async def no_op(context: dict[str, Any]) -> None:
    pass


class Sagaz(Unable):
    async def chain(self, key: str) -> None:
        saga = Saga(name="chain")
        for number in range(STEPS):
            saga.add_step(f"step{number}", no_op, depends_on=[f"step{number - 1}"] if number else None)
        await saga.run({})

    async def fan_out(self, key: str, width: int) -> None:
        saga = Saga(name="fan-out")
        for number in range(width):
            saga.add_step(f"work{number}", no_op)
        await saga.run({})


@asynccontextmanager
async def opening() -> AsyncIterator[Runner]:
    logging.disable(logging.CRITICAL)
    yield Sagaz()


if __name__ == "__main__":
    serve(opening())
