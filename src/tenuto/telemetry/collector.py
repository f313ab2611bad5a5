"""Converts counters to Prometheus metrics on demand."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from tenuto.runtime.vitals import Vitals
from tenuto.storage.operations import BacklogRow

from . import catalogue as c
from .counting import Counting
from .metered import Meter
from .served import Served
from .tally import Histogram, StepTally


class Standing(Protocol):
    """The state of the process and its database when metrics are read."""

    @property
    def vitals(self) -> Vitals | None: ...

    @property
    def backlog(self) -> Sequence[BacklogRow] | None: ...


class Figures(Collector):
    def __init__(self, counting: Counting, meter: Meter, served: Served, standing: Standing) -> None:
        self._counting = counting
        self._meter = meter
        self._served = served
        self._standing = standing

    def collect(self) -> Iterator[Family]:
        yield from self._recorded()
        yield from self._of_the_store()
        yield from self._of_the_service()
        if (vitals := self._standing.vitals) is not None:
            yield from _of_the_process(vitals)
            yield from _of_the_database(self._standing.backlog)

    def _recorded(self) -> Iterator[Family]:
        counting = self._counting
        steps = [step for of_saga in list(counting.steps.values()) for step in list(of_saga.values())]
        derived = {c.ATTEMPTS: _attempts(steps), c.SAGA_MOVES: _moves(steps)}
        for metric, counts in counting.counts.items():
            yield _counter(metric, {**derived.get(metric, {}), **counts})
        yield _histogram(c.EXECUTION_SECONDS, {(status,): h for status, h in dict(counting.finished).items()})
        yield _histogram(c.ORDER_SECONDS, {(status,): h for status, h in dict(counting.orders).items()})
        yield _histogram(c.SAGA_SECONDS, {(step.saga, step.step): step.durations for step in steps})
        yield _histogram(c.STEP_SECONDS, _by_type(steps))

    def _of_the_store(self) -> Iterator[Family]:
        meter = self._meter
        if meter.sessions:  # the memory runtime has no sessions
            yield _histogram(c.COMMIT_SECONDS, {(): meter.commits})
            yield _histogram(c.COMMIT_BATCH, {(): meter.batches}, unit=1)
            yield _histogram(c.CLAIM_SECONDS, {(): meter.claims})

    def _of_the_service(self) -> Iterator[Family]:
        served = self._served
        if served.is_serving:
            yield _histogram(c.HTTP_SECONDS, dict(served.durations))
            yield _gauge(c.HTTP_UNDER_WAY, {(): served.under_way})


# -- Recorded entries --------------------------------------------------------------------------------------------------


def _attempts(steps: Iterable[StepTally]) -> dict[tuple[str, ...], int]:
    return {("forward", "succeeded"): sum(step.succeeded for step in steps)}


def _moves(steps: Iterable[StepTally]) -> dict[tuple[str, ...], int]:
    found: dict[tuple[str, ...], int] = {}
    for step in steps:
        outcomes = dict(step.outcomes)
        outcomes["succeeded"] = outcomes.get("succeeded", 0) + step.succeeded
        found.update(((step.saga, step.step, to), count) for to, count in outcomes.items())
    return found


def _by_type(steps: Iterable[StepTally]) -> dict[tuple[str, ...], Histogram]:
    found: defaultdict[tuple[str, ...], Histogram] = defaultdict(lambda: Histogram(c.STEP_BOUNDS))
    for step in steps:
        found[step.kind,].add(step.durations)
    return found


# -- Current state -----------------------------------------------------------------------------------------------------


def _of_the_process(vitals: Vitals) -> Iterator[Family]:
    lanes = vitals.lanes.items()
    yield _gauge(c.IN_HAND, {(): vitals.held})
    yield _gauge(c.SLOTS, {(name,): lane.size for name, lane in lanes})
    yield _gauge(c.SLOTS_IN_USE, {(name,): lane.running for name, lane in lanes})
    yield _gauge(c.SLOTS_WAITING, {(name,): lane.waiting for name, lane in lanes})
    yield _gauge(c.LEASE_AGE, {(): vitals.renewed_ms / 1_000})
    yield _gauge(c.UNCOMMITTED, {(): vitals.uncommitted})


def _of_the_database(backlog: Sequence[BacklogRow] | None) -> Iterator[Family]:
    """Yields the figures of the database.

    If it did not answer, they are left out, because stale values would mislead.
    """
    yield _gauge(c.DATABASE_UP, {(): int(backlog is not None)})
    if backlog is None:
        return
    now = next(row.oldest for row in backlog if row.what == "now") or 0
    rows = {(row.what, row.label): row for row in backlog}
    letters = rows.pop(("reviews", "dead_letter"), None)
    yield _gauge(c.DLQ, {(): letters.count if letters is not None else 0})
    yield _gauge(c.REVIEWS_OPEN, {(label,): row.count for (what, label), row in rows.items() if what == "reviews"})
    for what, count, age in (
        ("due", c.DUE, c.DUE_AGE),
        ("mail", c.MAIL, c.MAIL_AGE),
        ("outbox", c.OUTBOX, c.OUTBOX_AGE),
    ):
        row = rows.get((what, ""), BacklogRow(what, "", 0))
        yield _gauge(count, {(): row.count})
        yield _gauge(age, {(): _age(row, now)})
    queues = {label or c.OF_A_TENANT: row for (what, label), row in rows.items() if what == "tasks"}
    yield _gauge(c.TASKS, {(queue,): row.count for queue, row in queues.items()})
    yield _gauge(c.TASKS_AGE, {(queue,): _age(row, now) for queue, row in queues.items()})
    for what, metric in (("owned", c.OWNED), ("sessions", c.WORKERS)):
        yield _gauge(metric, {(): rows[what, ""].count if (what, "") in rows else 0})


def _age(row: BacklogRow, now: int) -> float:
    return 0.0 if row.oldest is None else max(now - row.oldest, 0) / 1_000


# -- Families ----------------------------------------------------------------------------------------------------------


def _counter(metric: c.Metric, counts: Mapping[tuple[str, ...], int]) -> Family:
    family = CounterMetricFamily(metric.name, metric.text, labels=metric.labels)
    for labels, value in sorted((counts or ({} if metric.labels else {(): 0})).items()):
        family.add_metric(labels, value)
    return family


def _gauge(metric: c.Metric, values: Mapping[tuple[str, ...], float]) -> Family:
    family = GaugeMetricFamily(metric.name, metric.text, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _histogram(metric: c.Metric, found: Mapping[tuple[str, ...], Histogram], unit: int = 1_000) -> Family:
    family = HistogramMetricFamily(metric.name, metric.text, labels=metric.labels)
    for labels, histogram in found.items():
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*histogram.bounds, None), list(histogram.counts), strict=True):
            total += count
            buckets.append(("+Inf" if bound is None else repr(bound / unit), total))
        family.add_metric(labels, buckets, histogram.total / unit)
    return family
