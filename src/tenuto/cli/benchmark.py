"""The measurements of `tenuto bench`: throughput of concurrent executions, latency of single ones."""

import tempfile
import time
from pathlib import Path
from statistics import quantiles
from typing import TypedDict

from tenuto.api.engine import Engine
from tenuto.authoring.builder import SagaBuilder

STEPS = 5
ONE_BY_ONE = 200


class Measured(TypedDict):
    workload: str
    system: str
    metric: str
    value: float
    unit: str


async def measure(url: str | None, executions: int) -> list[Measured]:
    with tempfile.TemporaryDirectory(prefix="tenuto-bench-") as folder:
        connection = url or f"sqlite:///{Path(folder) / 'bench.db'}"
        async with Engine(connection) as engine:
            engine.register(_saga("bench-five-steps", STEPS), _saga("bench-one-step", 1))
            await engine.execute("bench-five-steps", 0)  # warm up
            return [*await _throughput(engine, executions), *await _latency(engine)]


def _saga(name: str, steps: int) -> SagaBuilder:
    builder = SagaBuilder(name)
    for number in range(steps):
        builder.step(f"s{number}", _work, depends_on=[f"s{number - 1}"] if number else [])
    return builder


async def _work(n: int) -> int:
    return n


async def _throughput(engine: Engine, executions: int) -> list[Measured]:
    began = time.perf_counter()
    batch = await engine.start_many("bench-five-steps", range(executions))
    async for result in batch.results():
        result.raise_for_status()
    seconds = time.perf_counter() - began
    workload = f"{executions} executions of {STEPS} steps, together"
    return [
        _row(engine, workload, "executions", executions / seconds, "1/s"),
        _row(engine, workload, "steps", executions * STEPS / seconds, "1/s"),
    ]


async def _latency(engine: Engine) -> list[Measured]:
    taken: list[float] = []
    for number in range(ONE_BY_ONE):
        began = time.perf_counter()
        (await engine.execute("bench-one-step", number)).raise_for_status()
        taken.append((time.perf_counter() - began) * 1_000)
    cuts = quantiles(taken, n=100)
    workload = f"{ONE_BY_ONE} executions of 1 step, one by one"
    return [_row(engine, workload, f"p{p}", cuts[p - 1], "ms") for p in (50, 95, 99)]


def _row(engine: Engine, workload: str, metric: str, value: float, unit: str) -> Measured:
    system = f"tenuto on {engine.url.partition(':')[0]}"
    return {"workload": workload, "system": system, "metric": metric, "value": round(value, 2), "unit": unit}
