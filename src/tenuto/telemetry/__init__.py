"""Telemetry: what an engine does, for Prometheus, for logs and for OpenTelemetry.

    telemetry = Telemetry(traces=Tracing.otlp())
    async with Engine(url, telemetry=telemetry) as engine:
        app.mount("/metrics", telemetry.metrics_app())

It is an `Observer`: told of entries when they are recorded. An engine without it does not do any of this, and pays
nothing. One `Telemetry` is for one engine.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Self

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from tenuto.errors import StorageError
from tenuto.runtime.executor.worker import Interposed
from tenuto.runtime.observer import Observer
from tenuto.runtime.port import Runtime
from tenuto.runtime.vitals import Vitals
from tenuto.settings import Settings
from tenuto.storage.operations import BacklogRow
from tenuto.storage.port import Store

from .collector import Figures
from .counting import Counting
from .exposition import MetricsApp
from .logs import Logging
from .logs import configure as configure_logs
from .metered import Meter
from .served import Served

if TYPE_CHECKING:
    from .traces import Tracing

__all__ = ["CONTENT_TYPE_LATEST", "Telemetry", "configure_logs"]

FRESH_S: Final = 10.0  # for so long the database is not asked again
PATIENCE_S: Final = 3.0


class Telemetry:
    """`logs=False` writes no lines; `traces` are made if given. Metrics are always counted, and shown if asked for."""

    def __init__(self, *, logs: bool = True, traces: "Tracing | None" = None) -> None:
        counting = Counting()
        self.traces = traces
        self.registry = CollectorRegistry()
        self.observers: tuple[Observer, ...] = (
            counting,
            *((Logging(),) if logs else ()),
            *((traces,) if traces else ()),
        )
        self._meter = Meter(counting.counts)
        self.served = Served(counting.counts)
        self._runtime: Runtime | None = None
        self._asked_at = -FRESH_S
        self._asking = asyncio.Lock()
        self.backlog: Sequence[BacklogRow] | None = None
        self.registry.register(Figures(counting, self._meter, self.served, self))

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """As a process is told to: with logs, and with spans if they are wanted."""
        if settings.traces == "none":
            return cls()
        from .traces import Tracing

        return cls(traces=Tracing.otlp(sample=settings.traces_sample))

    # For the engine

    def metered(self, store: Store) -> Store:
        return self._meter.store(store)

    def watch(self, runtime: Runtime) -> None:
        assert self._runtime is None, "one Telemetry is for one engine"
        self._runtime = runtime
        if self.traces is not None and isinstance(runtime, Interposed):
            runtime.interpose = self.traces.around

    def close(self) -> None:
        if self.traces is not None:
            self.traces.close()

    # For whoever reads the figures

    @property
    def vitals(self) -> Vitals | None:
        return None if self._runtime is None else self._runtime.vitals()

    async def refresh(self) -> None:
        """Asks the database what waits there, unless it said so a moment ago."""
        async with self._asking:
            if self._runtime is None or time.monotonic() - self._asked_at < FRESH_S:
                return
            try:
                async with asyncio.timeout(PATIENCE_S):
                    self.backlog = await self._runtime.backlog()
            except (StorageError, TimeoutError):
                self.backlog = None
            self._asked_at = time.monotonic()

    def forget(self) -> None:
        """What the database said is out of date: it is asked again the next time."""
        self._asked_at = -FRESH_S

    async def render(self) -> bytes:
        """All figures, in the text form that Prometheus reads."""
        await self.refresh()
        return generate_latest(self.registry)

    def metrics_app(self) -> MetricsApp:
        """An ASGI application that answers every GET with the figures."""
        return MetricsApp(self.render)
