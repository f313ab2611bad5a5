"""What a handler's parameters are given, by their markers and types; and what values cross the durable boundary."""

import enum
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from tenuto import (
    Done,
    Engine,
    FromCompensationError,
    FromCompensationResult,
    FromStep,
    Header,
    Headers,
    Input,
    Required,
    Result,
    Retry,
    Saga,
    SagaBuilder,
    SagaContext,
    StepInputs,
    Variable,
    Variables,
    approval,
    saga,
    signal,
    step,
)
from tenuto.errors import (
    DefinitionError,
    IndeterminateError,
    InvalidInput,
    NonRetryableError,
    StepError,
    TransientError,
)

from .conftest import MakeEngine
from .doubles import Stage, transaction
from .sagas import FAST, Flight, Trip, one_step

# -- What a step is given ----------------------------------------------------------------------------------------------


async def implicit(given: dict[str, Any]) -> Any:
    return given


async def marked(given: Annotated[dict[str, Any], Input]) -> Any:
    return given


async def one_key(city: Annotated[str, Input("city")]) -> Any:
    return city


async def two_keys(city: Annotated[str, Input("city")], cents: Annotated[int, Input("cents")]) -> Any:
    return [city, cents]


async def missing_key(there: Annotated[str | None, Input("nothing")]) -> Any:
    return there


async def header(name: Annotated[str | None, Header("x-name")]) -> Any:
    return name


async def all_headers(given: Annotated[Mapping[str, str], Headers]) -> Any:
    return dict(given)


async def variable(given: Annotated[int | None, Variable("v")]) -> Any:
    return given


async def all_variables(given: Annotated[Mapping[str, Any], Variables]) -> Any:
    return dict(given)


async def context(ctx: SagaContext) -> Any:
    return ctx.step_id


async def with_default(given: Annotated[int, Variable("nothing")] = 7) -> Any:
    return given


async def by_keyword(*, given: Annotated[str, Input("city")], ctx: SagaContext) -> Any:
    return [given, ctx.step_id]


def in_a_thread(given: dict[str, Any], ctx: SagaContext, v: Annotated[int, Variable("v")]) -> Any:
    return [given["city"], ctx.step_id, v]


GIVEN = {"city": "Oslo", "cents": 5}
PARAMETERS: list[tuple[Any, object]] = [
    (implicit, GIVEN),
    (marked, GIVEN),
    (one_key, "Oslo"),
    (two_keys, ["Oslo", 5]),
    (missing_key, None),
    (header, "Ann"),
    (all_headers, {"X-Name": "Ann"}),
    (variable, 3),
    (all_variables, {"v": 3}),
    (context, "work"),
    (with_default, 7),
    (by_keyword, ["Oslo", "work"]),
    (in_a_thread, ["Oslo", "work", 3]),
]


@pytest.mark.requirement("A16")
@pytest.mark.parametrize(("function", "value"), PARAMETERS, ids=lambda part: getattr(part, "__name__", ""))
async def test_a_parameter_is_given_what_it_asks_for(engine: Engine, function: Any, value: object) -> None:
    engine.register(one_step("s", function).build())
    result = await engine.execute("s", GIVEN, headers={"X-Name": "Ann"}, variables={"v": 3})
    assert result.output == value


@pytest.mark.requirement("A16")
async def test_the_result_of_another_step_is_a_parameter_and_a_dependency(engine: Engine) -> None:
    stage = Stage()

    async def flight(trip: Trip) -> Flight:
        stage.log.append("flight")
        return Flight(trip.city)

    async def ticket(flight: Annotated[Flight, FromStep("flight")]) -> str:
        stage.log.append("ticket")
        return flight.pnr.upper()

    # Named before it is added, and without `depends_on`: the parameter is enough.
    engine.register(SagaBuilder("s", output="ticket").step("ticket", ticket).step("flight", flight).build())

    assert (await engine.execute("s", Trip("Oslo"))).output == "OSLO"
    assert stage.log == ["flight", "ticket"]


@pytest.mark.requirement("A16")
async def test_a_required_parameter_without_a_value_fails_the_step(engine: Engine) -> None:
    async def strict(given: Annotated[int | None, Variable("v"), Required]) -> Any:
        return given

    engine.register(one_step("s", strict).build())

    refused = await engine.execute("s")
    assert (refused.steps["work"].error_class, refused.steps["work"].error_code) == (
        "NON_RETRYABLE",
        "parameter_missing",
    )
    assert "'given'" in str(refused.steps["work"].error)
    assert (await engine.execute("s", variables={"v": 0})).output == 0


@pytest.mark.requirement("A16")
async def test_guards_and_reconciles_take_parameters_too(engine: Engine) -> None:
    """As the step does. `forward_key` is the key that the step sent."""
    seen: list[Any] = []

    @saga("probed", output="pay")
    class Probed(Saga[Trip, str]):
        @step
        async def first(self, trip: Trip) -> str:
            return f"first of {trip.city}"

        async def look(self, trip: Trip, first: Annotated[str, FromStep(first)], ctx: SagaContext) -> Any:
            seen.append((trip, first, ctx.forward_key))
            return Done("found")

        @step(safety="not_safe_to_retry", reconcile=look)
        async def pay(self, ctx: SagaContext, first: Annotated[str, FromStep(first)]) -> str:
            seen.append(ctx.idempotency_key)
            raise IndeterminateError

    engine.register(Probed())
    assert (await engine.execute(Probed, Trip("Oslo"))).output == "found"
    key, asked = seen
    assert asked == (Trip("Oslo"), "first of Oslo", key)


class Unserialisable: ...


async def two_inputs(a: int, b: int) -> None: ...
async def variadic(*args: int) -> None: ...
async def two_markers(a: Annotated[int, Input, Header("x")]) -> None: ...
async def unknown_step(a: Annotated[int, FromStep("nobody")]) -> None: ...
async def result_in_a_step(a: Annotated[int, Result]) -> None: ...
async def undone_in_a_step(a: Annotated[int | None, FromCompensationResult("other")]) -> None: ...
async def header_of_ints(a: Annotated[int, Header("x")]) -> None: ...
async def wrong_type(a: Annotated[int, FromStep("other")]) -> None: ...
async def cannot_be_read(a: Unserialisable) -> None: ...
async def cannot_be_stored() -> Unserialisable: ...  # type: ignore[empty-body]  # it is never called
async def yields() -> Any:
    yield 1


MISUSES: list[tuple[Any, str, str]] = [
    (two_inputs, "step 'bad'", "ambiguous_parameters"),
    (variadic, "step 'bad', parameter 'args'", "variadic"),
    (two_markers, "step 'bad', parameter 'a'", "two_markers"),
    (unknown_step, "step 'bad', parameter 'a'", "unknown_step"),
    (result_in_a_step, "step 'bad', parameter 'a'", "misplaced"),
    (undone_in_a_step, "step 'bad', parameter 'a'", "misplaced"),
    (header_of_ints, "step 'bad', parameter 'a'", "type"),
    (wrong_type, "step 'bad', parameter 'a'", "type"),
    (cannot_be_read, "step 'bad', parameter 'a'", "type"),
    (cannot_be_stored, "step 'bad'", "type"),
    (yields, "step 'bad'", "generator"),
]


@pytest.mark.requirement("A16")
@pytest.mark.parametrize(
    ("function", "path", "code"), MISUSES, ids=lambda part: getattr(part, "__name__", None) or str(part)
)
async def test_misuse_is_refused_when_it_is_registered(engine: Engine, function: Any, path: str, code: str) -> None:
    """It says which parameter of which step, and why."""

    async def other() -> str:
        return "x"

    with pytest.raises(DefinitionError) as refused:
        engine.register(SagaBuilder("s").step("other", other).step("bad", function))
    assert (path, code) in [(problem.path, problem.code) for problem in refused.value.problems]


# -- What a compensation is given --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Booked:
    id: str


async def takes_input(trip: Trip) -> Any:
    return trip.city


async def takes_result(booked: Booked) -> Any:
    return booked.id


async def takes_neither(other: Flight | None) -> Any:
    return other


async def says_input(given: Annotated[dict[str, Any], Input]) -> Any:
    return given["city"]


async def says_result(given: Annotated[dict[str, Any], Result]) -> Any:
    return given["id"]


async def asks_context(ctx: SagaContext, booked: Booked) -> Any:
    return [ctx.step_id, booked.id]


@pytest.mark.requirement("E11")
@pytest.mark.parametrize(
    ("undo", "value"),
    [
        (takes_input, "Oslo"),
        (takes_result, "b-Oslo"),
        (takes_neither, None),
        (says_input, "Oslo"),
        (says_result, "b-Oslo"),
        (asks_context, ["book", "b-Oslo"]),
    ],
    ids=lambda part: getattr(part, "__name__", ""),
)
async def test_a_compensation_is_given_the_input_else_the_result_else_none(
    engine: Engine, undo: Any, value: object
) -> None:
    async def book(trip: Trip) -> Booked:
        return Booked(f"b-{trip.city}")

    builder = SagaBuilder("s").step("book", book, compensate=undo)
    engine.register(builder.step("fail", Stage().fails("x", NonRetryableError()), depends_on=["book"]).build())

    result = await engine.execute("s", Trip("Oslo"))
    assert result.steps["book"].compensation_result == value


async def takes_either(trip: Trip) -> None: ...
async def takes_what_is_not_there(other: Flight) -> None: ...
async def takes_a_result_that_may_not_be(booked: Annotated[Booked, Result]) -> None: ...
async def takes_two(trip: Trip, booked: Booked) -> None: ...


@pytest.mark.requirement("E11")
@pytest.mark.parametrize(
    ("undo", "options", "code"),
    [
        (takes_either, {}, "ambiguous"),
        (takes_what_is_not_there, {}, "unresolved"),
        (takes_a_result_that_may_not_be, {"partial_effect": True}, "optional"),
        (takes_two, {}, "ambiguous_parameters"),
    ],
    ids=lambda part: getattr(part, "__name__", ""),
)
async def test_a_compensation_that_cannot_be_called_is_refused(
    engine: Engine, undo: Any, options: dict[str, Any], code: str
) -> None:
    async def same(trip: Trip) -> Trip:
        return trip

    async def other(trip: Trip) -> Booked:
        return Booked("b")

    with pytest.raises(DefinitionError) as refused:
        engine.register(SagaBuilder("s").step("a", same if undo is takes_either else other, compensate=undo, **options))
    (problem,) = refused.value.problems
    assert (problem.code, problem.path.startswith("step 'a', compensation")) == (code, True)


@pytest.mark.requirement("A18")
async def test_a_compensation_is_given_what_came_of_others(engine: Engine) -> None:
    seen: list[Any] = []

    async def undo_first(
        ok: Annotated[str | None, FromCompensationResult("second")],
        not_undone: Annotated[str | None, FromCompensationResult("third")],
        error: Annotated[StepError | None, FromCompensationError("third")],
        no_error: Annotated[StepError | None, FromCompensationError("second")],
    ) -> None:
        seen.extend([ok, not_undone, error, no_error])

    stage = Stage()
    builder = SagaBuilder("s", compensation="circuit_breaker").step("first", stage.does("1"), compensate=undo_first)
    builder.step("second", stage.does("2"), depends_on=["first"], compensate=stage.does("undone"))
    undo_third = stage.fails("u", TransientError("no answer", code="gone"))
    builder.step("third", stage.does("3"), depends_on=["second"], compensate=undo_third)
    builder.step("fail", stage.fails("x", NonRetryableError()), depends_on=["third"])
    engine.register(builder.build())

    await engine.execute("s")

    ok, not_undone, error, no_error = seen
    assert (ok, not_undone, no_error) == ("undone", None, None)
    assert isinstance(error, TransientError)
    assert (error.message, error.code) == ("no answer", "gone")


# -- Variables and headers ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("A17")
async def test_variables_live_as_long_as_their_run(engine: Engine) -> None:
    """A step that says `set_variable` leaves its result there, for parameters and for expressions."""
    stage = Stage()

    async def rate() -> int:
        return 3

    async def use(rate: Annotated[int, Variable("rate")], all: Annotated[Mapping[str, Any], Variables]) -> Any:
        return [rate, dict(all)]

    builder = SagaBuilder("s", output="use").step("find", rate, set_variable="rate")
    builder.step("use", use, depends_on=["find"])
    builder.step("dear", stage.does("dear"), when="variables.rate > 2", depends_on=["find"])
    builder.step("cheap", stage.does("cheap"), when="variables.rate <= 2", depends_on=["find"])
    engine.register(builder.build())

    result = await engine.execute("s", variables={"currency": "NOK"})

    assert result.output == [3, {"currency": "NOK", "rate": 3}]
    assert stage.log == ["dear"]


async def test_headers_and_variables_are_in_the_context(engine: Engine) -> None:
    async def look(ctx: SagaContext) -> Any:
        return [dict(ctx.headers), dict(ctx.variables)]

    engine.register(one_step("s", look).build())
    result = await engine.execute("s", headers={"traceparent": "t"}, variables={"v": [1, {"w": 2}]})
    assert result.output == [{"traceparent": "t"}, {"v": [1, {"w": 2}]}]


async def test_headers_are_text(engine: Engine) -> None:
    engine.register(one_step("s", context).build())
    wrong: Any = {"n": 1}
    with pytest.raises(InvalidInput):
        await engine.start("s", headers=wrong)


# -- The context -------------------------------------------------------------------------------------------------------


async def test_a_context_knows_its_attempt(engine: Engine) -> None:
    seen: list[SagaContext] = []

    async def first() -> Flight:
        return Flight("F1")

    async def work(ctx: SagaContext) -> Any:
        seen.append(ctx)
        assert ctx.cancelled is False
        if ctx.attempt < 2:
            raise TransientError("once more")
        found = ctx.result_of("first")
        assert found == Flight("F1"), "decoded to its own type"
        return None

    builder = SagaBuilder("s").step("first", first).step("work", work, depends_on=["first"], timeout="5s", retry=FAST)
    engine.register(builder.build())
    before = datetime.now(UTC)
    result = await engine.execute("s", tenant="acme", correlation_id="c-1")

    assert result.succeeded
    one, two = seen
    assert (one.attempt, two.attempt) == (1, 2)
    assert one.idempotency_key == two.idempotency_key == one.forward_key
    assert (one.execution_id, one.saga, one.step_id) == (result.execution_id, "s", "work")
    assert (one.correlation_id, one.tenant) == ("c-1", "acme")
    assert one.deadline is not None
    assert timedelta(seconds=4) < one.deadline - before < timedelta(seconds=60)


async def test_progress_is_given_to_the_next_attempt(engine: Engine) -> None:
    seen: list[Any] = []

    async def work(ctx: SagaContext) -> None:
        seen.append(ctx.progress)
        beat = await ctx.heartbeat(progress={"page": ctx.attempt})
        assert (beat.paused, beat.cancelled) == (False, False)
        if ctx.attempt < 3:
            raise TransientError

    engine.register(one_step("s", work, retry=FAST).build())
    assert (await engine.execute("s")).succeeded
    assert seen == [None, {"page": 1}, {"page": 2}]


async def test_progress_is_shown(engine: Engine) -> None:
    gate = Stage().gate("a")

    async def work(ctx: SagaContext) -> None:
        await ctx.heartbeat(progress={"page": 3})
        await gate.pass_through()

    engine.register(one_step("s", work).build())
    handle = await engine.start("s")
    await gate.reached.wait()
    assert (await handle.status())["steps"][0]["progress"] == {"page": 3}
    gate.open()
    assert (await handle.result()).succeeded


async def test_a_handler_in_a_thread_beats_too(engine: Engine) -> None:
    seen: list[Any] = []

    def work(ctx: SagaContext) -> None:
        seen.append(ctx.progress)
        ctx.heartbeat_sync(progress=ctx.attempt)
        if ctx.attempt == 1:
            raise TransientError

    engine.register(one_step("s", work, retry=FAST).build())
    assert (await engine.execute("s")).succeeded
    assert seen == [None, 1]


async def test_a_heartbeat_tells_of_a_pause_and_of_a_cancel(engine: Engine) -> None:
    stage = Stage()
    paused, canceled = stage.gate("p"), stage.gate("c")
    beats: list[Any] = []

    async def work(ctx: SagaContext) -> None:
        await paused.pass_through()
        beats.append(await ctx.heartbeat())
        await canceled.pass_through()
        beats.append(await ctx.heartbeat())
        beats.append(ctx.cancelled)

    engine.register(one_step("s", work).build())
    handle = await engine.start("s")
    await paused.reached.wait()
    await handle.pause()
    paused.open()
    await canceled.reached.wait()
    await handle.cancel("drain")
    canceled.open()

    assert (await handle.result()).status == "canceled"
    assert [(beats[0].paused, beats[0].cancelled), beats[1].cancelled, beats[2]] == [(True, False), True, True]


async def test_once_is_true_once_per_step(engine: Engine, url: str) -> None:
    """In the caller's own transaction, where there is a database; what is rolled back was not used."""
    firsts: list[bool] = []

    async def work(ctx: SagaContext) -> None:
        async with transaction(url) as connection, ctx.once(connection) as first:
            firsts.append(first)
            if ctx.attempt == 1:
                raise TransientError("rolled back")
        if ctx.attempt == 2:
            raise TransientError("after it was committed")

    engine.register(one_step("s", work, retry=FAST).build())
    for _ in range(2):
        assert (await engine.execute("s")).succeeded
    assert firsts == [True, True, False] * 2


async def test_once_is_true_once_for_each_name(engine: Engine, url: str) -> None:
    """One handler, two transactions: a retry after the first makes only the second."""
    made: list[str] = []

    async def move(ctx: SagaContext) -> None:
        for name in ("debit", "credit"):
            async with transaction(url) as connection, ctx.once(connection, name) as first:
                if first:
                    made.append(name)
            if ctx.attempt == 1:
                raise TransientError("between the two")

    engine.register(one_step("s", move, retry=FAST).build())
    for _ in range(2):
        assert (await engine.execute("s")).succeeded
    assert made == ["debit", "credit"] * 2


async def test_once_for_two_transactions_of_an_attempt_is_an_error(engine: Engine, url: str) -> None:
    attempts: list[int] = []

    async def move(ctx: SagaContext) -> None:
        attempts.append(ctx.attempt)
        for _ in ("debit", "credit"):
            async with transaction(url) as connection, ctx.once(connection):
                pass

    engine.register(one_step("s", move, retry=FAST).build())
    result = await engine.execute("s")
    assert not result.succeeded
    assert result.error is not None
    assert result.error["code"] == "once_twice"
    assert attempts == [1], "a second one would find both noted, and make neither"


async def test_once_may_be_asked_again_when_its_transaction_was_rolled_back(engine: Engine, url: str) -> None:
    firsts: list[bool] = []

    async def work(ctx: SagaContext) -> None:
        for number in range(2):
            with suppress(LookupError):
                async with transaction(url) as connection, ctx.once(connection) as first:
                    firsts.append(first)
                    if not number:
                        raise LookupError

    engine.register(one_step("s", work).build())
    assert (await engine.execute("s")).succeeded
    assert firsts == [True, True]


async def test_a_name_that_no_database_takes_is_refused(engine: Engine, url: str) -> None:
    refused: list[str] = []

    async def work(ctx: SagaContext) -> None:
        for name in ("", "a\0b", "x" * 257):
            try:
                ctx.once(None, name)
            except InvalidInput:
                refused.append(name)

    engine.register(one_step("s", work).build())
    assert (await engine.execute("s")).succeeded
    assert len(refused) == 3


# -- Types -------------------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Data:
    at: datetime
    price: Decimal
    id: UUID
    colour: Colour
    day: date = date(2026, 1, 2)
    tags: tuple[str, ...] = ()
    more: dict[str, int] = field(default_factory=dict)


class Struct(msgspec.Struct, frozen=True):
    name: str
    inner: Data


class Model(pydantic.BaseModel, frozen=True):
    name: str
    price: Decimal


@attrs.frozen
class Attrs:
    name: str
    colour: Colour


DATA = Data(
    datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC),
    Decimal("12.340"),
    UUID("12345678123456781234567812345678"),
    Colour.RED,
    tags=("a", "ü"),
    more={"n": 1},
)
VALUES: list[tuple[Any, Any]] = [
    (Data, DATA),
    (Struct, Struct("s", DATA)),
    (Model, Model(name="m", price=Decimal("0.10"))),
    (Attrs, Attrs("a", Colour.RED)),
    (list[Data], [DATA, DATA]),
    (Colour, Colour.RED),
    (Decimal, Decimal("3.1400")),
    (dict[str, Any], {"any": ["json", 1, 2.5, None, True]}),
    (int | None, None),
]


@pytest.mark.requirement("A19")
@pytest.mark.parametrize(("type_", "value"), VALUES, ids=lambda part: str(getattr(part, "__name__", ""))[:20])
async def test_values_come_back_as_the_annotated_type(make_engine: MakeEngine, type_: Any, value: Any) -> None:
    """From the caller to a step, from step to step, into an undo, and back to the caller."""
    seen: list[Any] = []

    async def first(given: type_) -> type_:
        seen.append(given)
        return given

    async def second(given: Annotated[type_, FromStep("first")]) -> type_:
        seen.append(given)
        return given

    async def undo(given: Annotated[type_, Result]) -> None:
        seen.append(given)

    builder = SagaBuilder("s", output="second").step("first", first, compensate=undo).step("second", second)
    failing = builder.step("fail", Stage().does("x", NonRetryableError()), depends_on=["second"])
    engine = await make_engine(failing.build())

    failed = await engine.execute("s", value)
    assert seen == [value, value, value]
    result = await engine.execute("s", value)

    assert result.output == failed.result_of("second") == value
    assert type(result.output) is type(value)


@pytest.mark.requirement("A19")
async def test_each_step_may_have_an_input_of_its_own(engine: Engine) -> None:
    seen: list[Any] = []

    async def first(trip: Trip) -> None:
        seen.append(trip)

    async def second(flight: Flight) -> None:
        seen.append(flight)

    engine.register(SagaBuilder("s").step("first", first).step("second", second, depends_on=["first"]).build())
    await engine.execute("s", StepInputs({"first": Trip("Oslo"), "second": Flight("F1")}))
    assert seen == [Trip("Oslo"), Flight("F1")]

    with pytest.raises(InvalidInput, match="'third'"):
        await engine.start("s", StepInputs({"third": 1}))
    with pytest.raises(InvalidInput, match="first"):
        await engine.start("s", StepInputs({"first": "Oslo"}))


@saga("typed-people", output="pay")
class TypedPeople(Saga[None, int]):
    """The data of an approval and the payload of a signal are typed, too."""

    ok = approval(data=Trip)
    paid = signal("paid", Flight)

    @step
    async def pay(self, ok: Annotated[Trip, FromStep(ok)], paid: Annotated[Flight, FromStep(paid)]) -> int:
        assert isinstance(ok, Trip)
        assert isinstance(paid, Flight)
        return ok.cents


@pytest.mark.requirement("A19")
async def test_data_of_approvals_and_signals_is_typed(engine: Engine) -> None:
    engine.register(TypedPeople())
    handle = await engine.start(TypedPeople, None)
    await handle.signal("paid", Flight("F1"))
    await handle.approve("ok", data=Trip("Oslo", 7))

    result = await handle.result()
    assert result.output == 7
    assert (result.result_of(TypedPeople.ok), result.result_of(TypedPeople.paid)) == (Trip("Oslo", 7), Flight("F1"))


@pytest.mark.requirement("A19")
async def test_data_of_another_type_is_refused_where_it_comes_in(engine: Engine) -> None:
    engine.register(TypedPeople())
    handle = await engine.start(TypedPeople, None)

    with pytest.raises(InvalidInput):
        await handle.signal("paid", {"colour": "red"})
    for data in (["no trip"], None):
        with pytest.raises(InvalidInput):
            await handle.approve("ok", data=data)

    await handle.signal("paid", Flight("F1"))
    await handle.approve("ok", data=Trip("Oslo", 7))
    assert (await handle.result()).succeeded


class NotJson:
    pass


@pytest.mark.requirement("A19")
async def test_what_cannot_be_serialised_is_a_clear_error_at_the_step(engine: Engine) -> None:
    async def work() -> Any:
        return {"inner": [NotJson()]}

    engine.register(one_step("s", work, retry=Retry(3, initial="1ms")).build())
    work_result = (await engine.execute("s")).steps["work"]
    assert (work_result.error_class, work_result.error_code, work_result.attempts) == (
        "NON_RETRYABLE",
        "invalid_result",
        1,
    )
    assert "inner" in str(work_result.error)
    assert "NotJson" in str(work_result.error)
