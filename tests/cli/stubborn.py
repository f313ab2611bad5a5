"""An app whose handler does not end when it is told to."""

import asyncio
from contextlib import suppress

from tenuto import SagaBuilder


async def stay() -> None:
    print("began", flush=True)  # noqa: T201  (whoever started the process waits for it)
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


ALL = [SagaBuilder("stubborn").step("stay", stay).build()]
