"""A caller that is killed while it places an order with its execution.

    python -m tests.durable.transaction_caller DRIVER URL WHEN

It says where it is, before its commit or after it, and waits there.
"""

import asyncio
import sys

from tenuto import Engine, SagaBuilder
from tests.durable.callers import transaction


async def double(number: int) -> int:
    return 2 * number


async def main(driver: str, url: str, when: str) -> None:
    async with Engine(url, worker=False) as engine:
        engine.register(SagaBuilder("double", output="double").step("double", double))
        async with transaction(driver, url) as own:
            await own.run("INSERT INTO orders VALUES (21)")
            await engine.start(
                "double", 21, idempotency_key="order-21", correlation_id="placing", connection=own.connection
            )
            if when == "before":
                await wait("before")
        await wait("after")


async def wait(where: str) -> None:
    sys.stdout.write(f"{where}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
