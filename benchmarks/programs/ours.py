"""Tenuto, driven through its public API: `python -m benchmarks.programs.ours --help`."""

import argparse
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from benchmarks.runner import STEPS, NotBuilt, Refused, Runner, serve, slow_step
from tenuto import Engine, ExpandEach, FromStep, SagaBuilder, StepInputs
from tenuto.errors import NotSupported, TenantLimit

SLOTS = 200  # the engine's default


@dataclass
class Slow:
    key: str
    log: str


async def no_op() -> None:
    pass


async def work(item: int) -> int:
    return item


async def join(items: Annotated[list[int], FromStep("work")]) -> int:
    return len(items)


def slow(number: int) -> Callable[[Slow], Awaitable[None]]:
    async def handler(given: Slow) -> None:
        await slow_step(given.log, given.key, number)

    return handler


def sequence(name: str, handlers: list[Callable[..., object]], timeout: str | None) -> SagaBuilder:
    builder = SagaBuilder(name)
    for number, handler in enumerate(handlers):
        builder.step(f"step{number}", handler, depends_on=[f"step{number - 1}"] if number else [], timeout=timeout)
    return builder


def fan(timeout: str | None, *, joined: bool) -> SagaBuilder:
    builder = SagaBuilder("fan-out").step("work", work, timeout=timeout)
    return builder.step("join", join) if joined else builder


class Ours:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def chain(self, key: str) -> None:
        try:
            result = await self._engine.execute("chain")
        except TenantLimit as full:
            raise Refused from full
        result.raise_for_status()

    async def fan_out(self, key: str, width: int) -> None:
        each = StepInputs({"work": ExpandEach(range(width))})
        (await self._engine.execute("fan-out", each)).raise_for_status()

    async def submit_slow(self, key: str, log: str) -> None:
        await self._engine.start("slow", Slow(key, log), idempotency_key=key)

    async def finish_slow(self, key: str, log: str) -> None:
        """Starting it again, with the same key, gives the execution that is there."""
        handle = await self._engine.start("slow", Slow(key, log), idempotency_key=key)
        (await handle.result()).raise_for_status()


@asynccontextmanager
async def opening(options: argparse.Namespace) -> AsyncIterator[Runner]:
    timeout = "10s" if options.timeouts else None
    try:
        engine = Engine(options.url, worker=not options.no_worker, slots=options.slots)
    except NotSupported as error:
        raise NotBuilt from error
    async with engine:
        engine.register(
            sequence("chain", [no_op] * STEPS, timeout).build(),
            sequence("slow", [slow(number) for number in range(STEPS)], None).build(),
            fan(timeout, joined=options.join).build(),
        )
        if options.at_most is not None:
            await engine.tenant_limit("default", max_in_flight=options.at_most)
        yield Ours(engine)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--no-worker", action="store_true", help="submit only: another process does the work")
    parser.add_argument("--slots", type=int, default=SLOTS, help="so many steps run at once")
    parser.add_argument("--at-most", type=int, help="executions in flight; more are refused")
    parser.add_argument("--timeouts", action="store_true", help="every step has one")
    parser.add_argument("--join", action="store_true", help="the fan-out ends with a step that takes all its results")
    serve(opening(parser.parse_args()))
