"""Temporal, driven: `python -m benchmarks.peers.temporal_program client|worker ADDRESS [--local-activities]`."""

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from benchmarks.runner import STEPS, Runner, Unable, serve, slow_step

TASK_QUEUE = "bench"
POLLERS = 8
ACTIVITY_SLOTS = 1_000
CACHED = 5_000
TIMEOUT = timedelta(seconds=10)  # a killed worker's activities are given up after this


@dataclass
class SlowStep:
    log: str
    key: str
    number: int = 0


@activity.defn
async def no_op(number: int) -> int:
    return number


@activity.defn
async def slow_one(step: SlowStep) -> None:
    await slow_step(step.log, step.key, step.number)


@workflow.defn
class Chain:
    @workflow.run
    async def run(self, local: bool) -> None:
        run = workflow.execute_local_activity if local else workflow.execute_activity
        for number in range(STEPS):
            await run(no_op, number, start_to_close_timeout=TIMEOUT)


@workflow.defn
class FanOut:
    @workflow.run
    async def run(self, width: int) -> int:
        each = (workflow.execute_activity(no_op, n, start_to_close_timeout=TIMEOUT) for n in range(width))
        return len(await asyncio.gather(*each))


@workflow.defn
class Slow:
    @workflow.run
    async def run(self, given: SlowStep) -> None:
        for number in range(STEPS):
            step = SlowStep(given.log, given.key, number)
            await workflow.execute_activity(slow_one, step, start_to_close_timeout=TIMEOUT)


class Temporal:
    def __init__(self, client: Client, local: bool) -> None:
        self._client = client
        self._local = local

    async def chain(self, key: str) -> None:
        await self._client.execute_workflow(Chain.run, self._local, id=key, task_queue=TASK_QUEUE)

    async def fan_out(self, key: str, width: int) -> None:
        assert await self._client.execute_workflow(FanOut.run, width, id=key, task_queue=TASK_QUEUE) == width

    async def submit_slow(self, key: str, log: str) -> None:
        await self._client.start_workflow(Slow.run, SlowStep(log, key), id=key, task_queue=TASK_QUEUE)

    async def finish_slow(self, key: str, log: str) -> None:
        await self._client.get_workflow_handle(key).result()


@asynccontextmanager
async def opening(options: argparse.Namespace) -> AsyncIterator[Runner]:
    client = await Client.connect(options.address)
    if options.role == "client":
        yield Temporal(client, options.local_activities)
        return
    async with Worker(
        client,
        task_queue=TASK_QUEUE,
        workflows=[Chain, FanOut, Slow],
        activities=[no_op, slow_one],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_workflow_task_polls=POLLERS,
        max_concurrent_activity_task_polls=POLLERS,
        max_concurrent_activities=ACTIVITY_SLOTS,
        max_cached_workflows=CACHED,
    ):
        yield Unable()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["client", "worker"])
    parser.add_argument("address")
    parser.add_argument("--local-activities", action="store_true")
    serve(opening(parser.parse_args()))
