"""Telemetry of an engine: metrics for Prometheus, logs, and traces for OpenTelemetry.

    telemetry = Telemetry(traces=Tracing.otlp())
    async with Engine(url, telemetry=telemetry) as engine:
        app.mount("/metrics", telemetry.metrics_app())

`Telemetry` is an `Observer` of recorded entries. An engine without it has no overhead. Use one `Telemetry` per engine.
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

FRESH_S: Final = 10.0  # how long figures from the database are cached
PATIENCE_S: Final = 3.0


class Telemetry:
    """Metrics, logs and traces of one engine.

    `logs=False` disables logs; `traces` is optional; metrics are always counted.
    """

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
        """Creates telemetry with logs, and with traces if the settings enable them."""
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

    # For readers of metrics

    @property
    def vitals(self) -> Vitals | None:
        return None if self._runtime is None else self._runtime.vitals()

    async def refresh(self) -> None:
        """Reads the backlog from the database, unless the cached figures are recent."""
        async with self._asking:
            if self._runtime is None or time.monotonic() - self._asked_at < FRESH_S:
                return
            try:
                async with asyncio.timeout(PATIENCE_S):
                    self.backlog = await self._runtime.operations.backlog()
            except (StorageError, TimeoutError):
                self.backlog = None
            self._asked_at = time.monotonic()

    def forget(self) -> None:
        """Discards the cached figures."""
        self._asked_at = -FRESH_S

    async def render(self) -> bytes:
        """Returns all metrics in the text format of Prometheus."""
        await self.refresh()
        return generate_latest(self.registry)

    def metrics_app(self) -> MetricsApp:
        """Returns an ASGI application that answers every GET with the metrics."""
        return MetricsApp(self.render)
