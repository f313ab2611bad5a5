"""A class, a builder and a document that say the same are the same, byte for byte."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.authoring.builder import SagaBuilder
from tenuto.authoring.context import SagaContext
from tenuto.authoring.decorators import Saga, approval, group, saga, signal, step, wait
from tenuto.authoring.document import read_document
from tenuto.authoring.markers import FromStep, Result
from tenuto.authoring.outcome import NotDone, Outcome
from tenuto.authoring.program import Program
from tenuto.authoring.programs import bind_handler, compile_document, compile_saga
from tenuto.authoring.settings import Retry
from tenuto.kernel.definition import canonical, content_hash, to_document

from .calls import raw, run


@dataclass
class Trip:
    city: str


@dataclass
class Flight:
    pnr: str


@dataclass
class Payment:
    amount: int


class CardDeclined(Exception): ...


# -- One saga, three times ---------------------------------------------------------------------------------------------

OPTIONS: Any = {
    "version": 2,
    "compensation": "circuit_breaker",
    "layer_concurrency": 4,
    "timeout": "1h",
    "output": "charge",
    "concurrency_key": "input.city",
    "on_conflict": "reject",
    "classify": {CardDeclined: "NON_RETRYABLE"},
}
FLIGHT: Any = {
    "timeout": "5s",
    "retry": Retry(4, backoff="jittered", initial="200ms", maximum="5s", jitter=0.2, on=["TRANSIENT"]),
    "compensation_retry": 2,
    "compensation_backoff": "1s",
    "compensation_timeout": "10s",
    "compensation_critical": True,
    "limits": ["gds"],
}
CHARGE: Any = {"safety": "not_safe_to_retry", "deadline": "15m", "set_variable": "charge", "when": "input.city != ''"}
NOTIFY: Any = {
    "foreach": "steps.flight.result.people",
    "suffix": "item.email",
    "type": "notify",
    "failure_mode": "continue",
    "max_concurrency": 7,
}
WORK: Any = {
    "mode": "parallel",
    "max_concurrency": 1,
    "repeat_until": "steps.draft.result == 'x'",
    "max_visits": 3,
}


async def flight(trip: Trip) -> Flight:
    return Flight(trip.city)


async def cancel_flight(flight: Flight) -> None: ...


def charge(trip: Trip, flight: Annotated[Flight, FromStep("flight")]) -> Payment:
    return Payment(1)


def find_charge(ctx: SagaContext) -> Outcome[Payment]:
    return NotDone()


def refund(payment: Annotated[Payment | None, Result]) -> None: ...


def notify(person: Any) -> str:
    return "sent"


def draft(trip: Trip) -> str:
    return "draft"


@saga("book-trip", **OPTIONS)
class BookTrip(Saga[Trip, Payment]):
    @step(compensate="cancel_flight", **FLIGHT)
    async def flight(self, trip: Trip) -> Flight:
        return await flight(trip)

    paid = signal("paid", Payment, deadline="1h", depends_on=[flight])
    ok = approval(deadline="24h", permission="trips:approve", depends_on=[paid])
    cool_down = wait("10m", depends_on=[ok])

    @step(depends_on=[cool_down], reconcile="find_charge", compensate="refund", **CHARGE)
    def charge(self, trip: Trip, flight: Annotated[Flight, FromStep(flight)]) -> Payment:
        return charge(trip, flight)

    @step(**NOTIFY)
    def notify(self, person: Any) -> str:
        return notify(person)

    @step
    def draft(self, trip: Trip) -> str:
        return draft(trip)

    later = wait(until="input.at")
    work = group(draft, later, **WORK)

    async def cancel_flight(self, flight: Flight) -> None: ...

    def find_charge(self, ctx: SagaContext) -> Outcome[Payment]:
        return NotDone()

    def refund(self, payment: Annotated[Payment | None, Result]) -> None: ...


def built() -> Program:
    return (
        SagaBuilder("book-trip", **OPTIONS)
        .step("flight", flight, compensate=cancel_flight, **FLIGHT)
        .signal("paid", "paid", Payment, deadline="1h", depends_on=[flight])
        .approval("ok", deadline="24h", permission="trips:approve", depends_on=["paid"])
        .wait("cool_down", "10m", depends_on=["ok"])
        .step("charge", charge, depends_on=["cool_down"], reconcile=find_charge, compensate=refund, **CHARGE)
        .step("notify", notify, **NOTIFY)
        .step("draft", draft)
        .wait("later", until="input.at")
        .group("work", draft, "later", **WORK)
        .build()
    )


DOCUMENT: dict[str, Any] = {
    "name": "book-trip",
    "version": 2,
    "mode": "dag",
    "scheduling": "layered",
    "output": "${steps.charge.result}",
    "policies": {
        "compensation": "CIRCUIT_BREAKER",
        "cancel": "compensate",
        "max_concurrency": 4,
        "timeout_ms": 3_600_000,
        "concurrency_key": "input.city",
        "on_conflict": "reject",
        "classify": {"CardDeclined": "NON_RETRYABLE"},
    },
    "steps": [
        {
            "step_id": "flight",
            "handler": "book-trip.flight",
            "idempotency_strategy": "SAFE_TO_RETRY",
            "compensation_handler": "book-trip.flight.compensate",
            "retry_policy": {
                "max_attempts": 4,
                "backoff_strategy": "jittered",
                "initial_delay_ms": 200,
                "max_delay_ms": 5_000,
                "jitter": 0.2,
                "timeout_ms": 5_000,
                "retry_on_classes": ["TRANSIENT"],
            },
            "compensation_max_attempts": 3,
            "compensation_backoff_ms": 1_000,
            "compensation_timeout_ms": 10_000,
            "compensation_critical": True,
            "limits": ["gds"],
        },
        {
            "step_id": "paid",
            "type": "wait",
            "with": {"signal": "paid"},
            "timeout_ms": 3_600_000,
            "depends_on": ["flight"],
        },
        {
            "step_id": "ok",
            "type": "human_approval",
            "timeout_ms": 86_400_000,
            "permission": "trips:approve",
            "depends_on": ["paid"],
        },
        {"step_id": "cool_down", "type": "wait", "with": {"duration_ms": 600_000}, "depends_on": ["ok"]},
        {
            "step_id": "charge",
            "handler": "book-trip.charge",
            "idempotency_strategy": "NOT_SAFE_TO_RETRY",
            "depends_on": ["cool_down", "flight"],
            "reconcile_handler": "book-trip.charge.reconcile",
            "compensation_handler": "book-trip.charge.compensate",
            "timeout_ms": 900_000,
            "set_variable": "charge",
            "when": "input.city != ''",
        },
        {
            "step_id": "notify",
            "type": "notify",
            "handler": "book-trip.notify",
            "idempotency_strategy": "SAFE_TO_RETRY",
            "foreach": "steps.flight.result.people",
            "suffix": "item.email",
            "failure_mode": "continue",
            "max_concurrency": 7,
            "depends_on": ["flight"],
        },
        {
            "step_id": "work",
            "type": "scope",
            "mode": "parallel",
            "max_concurrency": 1,
            "repeat_until": "steps.draft.result == 'x'",
            "max_visits": 3,
            "children": [
                {"step_id": "draft", "handler": "book-trip.draft", "idempotency_strategy": "SAFE_TO_RETRY"},
                {"step_id": "later", "type": "wait", "with": {"until": "${input.at}"}},
            ],
        },
    ],
}


def test_class_and_builder_are_the_same() -> None:
    assert canonical(built().plan.definition) == canonical(compile_saga(BookTrip()).plan.definition)


def test_document_and_class_are_the_same() -> None:
    assert canonical(read_document(DOCUMENT)) == canonical(compile_saga(BookTrip()).plan.definition)


def test_the_hash_is_the_same_too() -> None:
    assert content_hash(read_document(DOCUMENT)) == built().plan.hash == compile_saga(BookTrip()).plan.hash


def test_a_definition_is_read_back_from_its_own_document() -> None:
    definition = compile_saga(BookTrip()).plan.definition
    document: Any = to_document(definition)
    assert read_document(document) == definition


def test_class_and_builder_have_the_same_handlers() -> None:
    ours, theirs = compile_saga(BookTrip()).handlers, built().handlers
    assert {n: (h.kind, h.is_async, h.needs) for n, h in ours.items()} == {
        n: (h.kind, h.is_async, h.needs) for n, h in theirs.items()
    }


def test_a_document_runs_with_handlers_given_by_name() -> None:
    functions: dict[str, Any] = {"book-trip.flight": flight, "book-trip.notify": notify}
    handlers = {name: bind_handler(name, function) for name, function in functions.items()}
    program = compile_document(read_document(DOCUMENT), {**handlers, "other": bind_handler("other", draft)})
    assert sorted(program.handlers) == ["book-trip.flight", "book-trip.notify"]
    assert run(program, "flight", input=raw({"city": "Oslo"})) == Flight("Oslo")
    assert set(program.missing_handlers()) == {
        "book-trip.flight.compensate", "book-trip.charge", "book-trip.charge.reconcile",
        "book-trip.charge.compensate", "book-trip.draft",
    }  # fmt: skip


# -- Any saga ----------------------------------------------------------------------------------------------------------

durations = st.sampled_from(["200ms", "5s", "10m", 3, 0.5])
step_options = st.fixed_dictionaries(
    {},
    optional={
        "timeout": durations,
        "retry": st.integers(0, 5) | st.builds(Retry, st.integers(1, 5), jitter=st.sampled_from([0, 0.1, 0.5])),
        "partial_effect": st.booleans(),
        "limits": st.lists(st.sampled_from(["a", "b"]), unique=True),
        "queue": st.sampled_from(["q"]),
        "set_variable": st.sampled_from(["v"]),
        "when": st.sampled_from(["input.x", "input.y > 3"]),
        "type": st.sampled_from(["task", "notify", "external_call"]),
        "compensation_policy": st.sampled_from(["auto", "manual"]),
    },
)


@given(st.lists(step_options, min_size=1, max_size=5), st.data())
@settings(max_examples=50, deadline=None)
def test_every_way_agrees_on_every_saga(options: list[Any], data: st.DataObject) -> None:
    ids = [f"s{index}" for index in range(len(options))]
    builder = SagaBuilder("any")
    body: dict[str, Any] = {}
    for index, (id, chosen) in enumerate(zip(ids, options, strict=True)):
        earlier = data.draw(st.lists(st.sampled_from(ids[:index]), unique=True)) if index else []

        def work(self: Any, x: Trip) -> None: ...
        def undo(self: Any, x: Trip) -> None: ...

        undone = bool(chosen.get("partial_effect"))  # which has no effect without a compensation
        bound: dict[str, Any] = {"compensate": undo.__get__(object())} if undone else {}
        unbound: dict[str, Any] = {"compensate": undo} if undone else {}
        builder.step(id, work.__get__(object()), depends_on=earlier, **bound, **chosen)
        body[f"undo_{id}"] = undo
        body[id] = step(id=id, depends_on=[body[name] for name in earlier], **unbound, **chosen)(work)
    made: Any = type("Made", (), body)
    definition = compile_saga(saga("any")(made)()).plan.definition
    document: Any = to_document(definition)
    assert canonical(builder.build().plan.definition) == canonical(definition) == canonical(read_document(document))


@pytest.mark.parametrize(
    "order", ["strict_sequential", "grouped_parallel", "retry_with_backoff", "best_effort_parallel"]
)
def test_every_order_of_undo(order: Any) -> None:
    program = SagaBuilder("s", compensation=order).step("a", draft).build()
    assert program.plan.definition.policies.compensation == order.upper()
