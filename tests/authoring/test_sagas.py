"""Sagas as classes: what the words of an author become, and what is said when they make no sense."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import pytest

from tenuto.authoring.context import SagaContext, step_name
from tenuto.authoring.decorators import Saga, approval, group, saga, signal, step, wait
from tenuto.authoring.markers import ExpandEach, FromStep, Result
from tenuto.authoring.outcome import Done, NotDone, Outcome
from tenuto.authoring.program import Program
from tenuto.authoring.programs import compile_saga, handlers_running
from tenuto.authoring.saga_source import saga_name
from tenuto.authoring.settings import Retry
from tenuto.errors import DefinitionError, PayloadError
from tenuto.kernel.definition import Definition, RetryPolicy, Scope, Step

from .calls import raw, run


@dataclass
class Trip:
    city: str


@dataclass
class Flight:
    pnr: str


@dataclass
class Charge:
    id: str


def definition(saga: object) -> Definition:
    return compile_saga(saga).plan.definition


def steps(saga: object) -> dict[str, Step]:
    return {node.id: node.step for node in compile_saga(saga).plan.root.walk() if not node.is_scope}


def problems(saga: object) -> list[tuple[str, str]]:
    with pytest.raises(DefinitionError) as refused:
        compile_saga(saga)
    return [(problem.path, problem.code) for problem in refused.value.problems]


def told(saga: object) -> str:
    with pytest.raises(DefinitionError) as refused:
        compile_saga(saga)
    return str(refused.value)


# -- The class ---------------------------------------------------------------------------------------------------------


@saga("book-trip", output="charge", compensation="grouped_parallel", layer_concurrency=4, timeout="1h")
class BookTrip(Saga[Trip, Charge]):
    async def cancel_flight(self, flight: Flight) -> None: ...

    async def find_charge(self, ctx: SagaContext) -> Outcome[Charge]:
        return NotDone()

    async def refund(self, charge: Charge | None) -> None: ...

    @step(compensate=cancel_flight, timeout="5s", retry=Retry(max_attempts=3, initial="200ms"))
    async def flight(self, trip: Trip) -> Flight:
        return Flight(trip.city)

    @step
    def hotel(self, trip: Trip) -> str:
        return trip.city

    @step(depends_on=[hotel], safety="not_safe_to_retry", reconcile=find_charge, compensate="refund")
    async def charge(self, trip: Trip, flight: Annotated[Flight, FromStep(flight)]) -> Charge:
        return Charge(flight.pnr)


def test_a_class_becomes_a_definition() -> None:
    found = definition(BookTrip())
    assert (found.name, found.version, found.mode, found.scheduling) == ("book-trip", 1, "dag", "layered")
    assert found.output == "${steps.charge.result}"
    assert found.policies.compensation == "GROUPED_PARALLEL"
    assert found.policies.cancel == "compensate"
    assert found.policies.max_concurrency == 4
    assert found.policies.timeout_ms == 3_600_000
    assert [step.id for step in found.steps] == ["flight", "hotel", "charge"]


def test_steps_name_their_handlers() -> None:
    charge = steps(BookTrip())["charge"]
    assert charge.handler == "book-trip.charge"
    assert charge.reconcile_handler == "book-trip.charge.reconcile"
    assert charge.compensation_handler == "book-trip.charge.compensate"
    assert charge.guard_handler is None
    assert charge.safety == "NOT_SAFE_TO_RETRY"


def test_a_program_has_every_handler_it_names() -> None:
    program = compile_saga(BookTrip())
    assert program.missing_handlers() == ()
    kinds = {name: (handler.kind, handler.is_async) for name, handler in program.handlers.items()}
    assert kinds == {
        "book-trip.flight": ("step", True),
        "book-trip.flight.compensate": ("compensation", True),
        "book-trip.hotel": ("step", False),
        "book-trip.charge": ("step", True),
        "book-trip.charge.reconcile": ("probe", True),
        "book-trip.charge.compensate": ("compensation", True),
    }


def test_dependencies_are_those_named_and_those_read() -> None:
    assert steps(BookTrip())["charge"].depends_on == ("hotel", "flight")


def test_handlers_are_bound_to_the_instance() -> None:
    program = compile_saga(BookTrip())
    given = {"input": raw({"city": "Oslo"}), "results": {"flight": raw({"pnr": "X"})}}
    assert run(program, "charge", **given) == Charge("X")


def test_results_and_output_come_back_typed() -> None:
    program = compile_saga(BookTrip())
    assert program.output_step == "charge"
    assert program.decode_output(raw({"id": "1"})) == Charge("1")
    assert program.decode_result["flight"](raw({"pnr": "X"})) == Flight("X")
    assert program.decode_result["hotel"](raw("x")) == "x"
    with pytest.raises(PayloadError, match="output: Expected"):
        program.decode_output(raw(3))


def test_a_probes_answer_is_encoded_as_the_result_it_found() -> None:
    encode = compile_saga(BookTrip()).handlers["book-trip.charge.reconcile"].encode
    assert bytes(encode(Done(Charge("1"))) or b"") == b'{"id":"1"}'
    assert bytes(encode(Charge("1")) or b"") == b'{"id":"1"}'


def test_a_function_is_found_by_what_runs_it() -> None:
    program = compile_saga(BookTrip())
    assert handlers_running(program, BookTrip.find_charge) == ("book-trip.charge.reconcile",)
    assert handlers_running(program, BookTrip.charge) == ("book-trip.charge",)
    assert handlers_running(program, BookTrip().flight) == ("book-trip.flight",)
    assert handlers_running(program, test_a_class_becomes_a_definition) == ()


def test_decorators_return_the_function_itself() -> None:
    def work() -> int:
        return 5

    assert step(work) is work
    assert step(timeout="5s")(work) is work
    assert work() == 5
    assert step_name(work) == "work"
    assert step_name(step(id="other")(work)) == "other"
    assert BookTrip.charge.__name__ == "charge"


def test_names_of_sagas() -> None:
    assert saga_name("x") == "x"
    assert saga_name(BookTrip) == saga_name(BookTrip()) == "book-trip"
    with pytest.raises(DefinitionError, match="Trip is not a saga: decorate the class with @saga"):
        saga_name(Trip)
    with pytest.raises(DefinitionError, match="int is not a saga"):
        saga_name(5)


def test_a_class_is_not_an_instance() -> None:
    with pytest.raises(DefinitionError, match=r"BookTrip is a class: pass an instance, BookTrip\(…\)"):
        compile_saga(BookTrip)


@pytest.mark.parametrize("thing", [5, Trip("Oslo"), None])
def test_what_is_no_saga(thing: object) -> None:
    with pytest.raises(DefinitionError, match="is not a saga: decorate the class with @saga"):
        compile_saga(thing)


def test_a_class_without_steps() -> None:
    @saga("empty")
    class Empty: ...

    assert "decorate methods with @step" in told(Empty())


# -- Inheritance -------------------------------------------------------------------------------------------------------


class Double(BookTrip):
    async def flight(self, trip: Trip) -> Flight:
        return Flight("double")

    async def cancel_flight(self, flight: Flight) -> Any:
        return "double"


def test_an_override_is_a_double() -> None:
    program = compile_saga(Double())
    assert program.plan.hash == compile_saga(BookTrip()).plan.hash
    assert run(program, "flight", input=raw({"city": "Oslo"})) == Flight("double")
    assert run(program, "flight.compensate", own_result=raw({"pnr": "X"})) == "double"


T = TypeVar("T")


class Base(Saga[T, str], Generic[T]):
    @step
    def first(self) -> None: ...

    @step
    def second(self) -> None: ...


@saga("derived", output="last")
class Derived(Base[Trip]):
    second = None  # type: ignore[assignment]

    @step
    def last(self, trip: Trip) -> str:
        return trip.city


def test_steps_of_base_classes_come_first_and_can_be_taken_out() -> None:
    program = compile_saga(Derived())
    assert [step.id for step in program.plan.definition.steps] == ["first", "last"]
    assert bytes(program.encode_input(Trip("Oslo"))) == b'{"city":"Oslo"}'


class Agreeable:
    """Has every attribute that it is asked for, as mocks do."""

    def __getattr__(self, name: str) -> object:
        return self


def test_what_only_says_that_it_is_a_step_is_none() -> None:
    @saga("s")
    class Mocked:
        client = Agreeable()

        @step
        def a(self) -> None: ...

    assert [node.id for node in definition(Mocked()).steps] == ["a"]


def test_static_and_class_methods() -> None:
    @saga("s")
    class Mixed:
        @step
        @staticmethod
        def a(trip: Trip) -> str:
            return trip.city

        @step(depends_on=["a"])
        @classmethod
        def b(cls, trip: Trip) -> str:
            return cls.__name__

        @step(compensate=a)
        def c(self, trip: Trip) -> None: ...

    program = compile_saga(Mixed())
    given = {"input": raw({"city": "Oslo"})}
    assert run(program, "a", **given) == "Oslo"
    assert run(program, "b", **given) == "Mixed"
    assert run(program, "c.compensate", **given) == "Oslo"


# -- Words and durations -----------------------------------------------------------------------------------------------


def one(**options: Any) -> Step:
    @saga("s")
    class One:
        @step(**options)
        def a(self, trip: Trip) -> Flight:
            return Flight("X")

        def undo(self, trip: Trip) -> None: ...

        def ask(self) -> Outcome[Flight]:
            return NotDone()

    return steps(One())["a"]


def test_defaults_are_the_kernels() -> None:
    assert one() == Step(id="a", handler="s.a")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (None, RetryPolicy()),
        (0, RetryPolicy(max_attempts=1)),
        (2, RetryPolicy(max_attempts=3)),
        (Retry(), RetryPolicy()),
        (Retry(5), RetryPolicy(max_attempts=5)),
        (Retry(backoff="fixed", initial="1s"), RetryPolicy(backoff_strategy="fixed", initial_delay_ms=1000)),
        (Retry(maximum=2), RetryPolicy(max_delay_ms=2000)),
        (Retry(backoff="jittered"), RetryPolicy(backoff_strategy="exponential", jitter=0.1)),
        (Retry(jitter=1), RetryPolicy(jitter=1.0)),
        (Retry(on=["TRANSIENT"]), RetryPolicy(retry_on_classes=("TRANSIENT",))),
    ],
)  # fmt: skip
def test_retries(given: Any, meant: RetryPolicy) -> None:
    assert one(retry=given).retry_policy == meant


def test_timeout_is_for_an_attempt_and_deadline_for_the_step() -> None:
    found = one(timeout="5s", deadline=timedelta(minutes=1))
    assert (found.retry_policy.timeout_ms, found.timeout_ms) == (5_000, 60_000)


def test_an_attempt_never_has_more_time_than_its_step() -> None:
    assert one(deadline="10s").retry_policy.timeout_ms == 10_000
    assert one(deadline="10m").retry_policy.timeout_ms == 30_000


def test_every_keyword_has_its_place() -> None:
    found = one(
        type="notify", safety="safe_to_retry_with_guard", guard="ask", compensate="undo", compensation_policy="manual",
        compensation_retry=4, compensation_backoff="2s", compensation_timeout=3, compensation_critical=True,
        partial_effect=True, when="input.x", foreach="input.list", suffix="item.id", max_concurrency=7,
        failure_mode="continue", limits=["ses"], queue="q", classify={ValueError: "TRANSIENT"},
        idempotency_key="k-${input.id}", set_variable="v",
    )  # fmt: skip
    assert found == Step(
        id="a", handler="s.a", type="notify", safety="SAFE_TO_RETRY_WITH_GUARD", guard_handler="s.a.guard",
        compensation_handler="s.a.compensate", compensation_policy="manual", compensation_max_attempts=5,
        compensation_backoff_ms=2_000, compensation_timeout_ms=3_000, compensation_critical=True, partial_effect=True,
        when="input.x", foreach="input.list", suffix="item.id", max_concurrency=7, failure_mode="continue",
        limits=("ses",), queue="q", classify={"ValueError": "TRANSIENT"}, idempotency_key="k-${input.id}",
        set_variable="v",
    )  # fmt: skip


def test_a_compensations_retry() -> None:
    found = one(compensate="undo", compensation_retry=Retry(5, initial="1s"))
    assert (found.compensation_max_attempts, found.compensation_backoff_ms) == (5, 1_000)
    found = one(compensate="undo", compensation_retry=Retry(5, initial="1s"), compensation_backoff="2s")
    assert found.compensation_backoff_ms == 2_000


def test_a_single_dependency_or_limit_needs_no_list() -> None:
    @saga("s")
    class One:
        @step
        def first(self) -> None: ...

        @step(depends_on=first, limits="ses")  # type: ignore[call-overload, untyped-decorator]
        def second(self) -> None: ...

        @step(depends_on=(id for id in ("first", "second")))
        def third(self) -> None: ...

    for _ in range(2):
        found = steps(One())
        assert (found["second"].depends_on, found["second"].limits) == (("first",), ("ses",))
        assert found["third"].depends_on == ("first", "second")


def test_saga_settings() -> None:
    @saga(
        "s",
        version=3,
        scheduling="eager",
        concurrency_key="input.id",
        on_conflict="reject",
        classify={KeyError: "TRANSIENT"},
    )
    class Settings:
        @step
        def a(self) -> None: ...

    found = definition(Settings())
    assert (found.version, found.scheduling) == (3, "eager")
    assert found.policies.concurrency_key == "input.id"
    assert found.policies.on_conflict == "reject"
    assert found.policies.classify == {"KeyError": "TRANSIENT"}


class Clash(ValueError): ...


Clash.__name__ = "ValueError"


@pytest.mark.parametrize(
    ("options", "where", "code"),
    [
        ({"timeout": "5 parsecs"}, "timeout", "bad_duration"),
        ({"deadline": -1}, "deadline", "bad_duration"),
        ({"deadline": 0}, "deadline", "out_of_range"),
        ({"timeout": "20s", "deadline": "10s"}, "timeout", "timeout_order"),
        ({"retry": -1}, "retry", "type"),
        ({"retry": True}, "retry", "type"),
        ({"retry": "3"}, "retry", "type"),
        ({"retry": Retry(0)}, "retry, max_attempts", "out_of_range"),
        ({"retry": Retry(jitter=2)}, "retry, jitter", "out_of_range"),
        ({"retry": Retry(initial="x")}, "retry, initial", "bad_duration"),
        ({"retry": Retry(initial="2s", maximum="1s")}, "retry, initial", "out_of_range"),
        ({"retry": Retry(backoff="linear")}, "retry, backoff", "unknown_word"),  # type: ignore[arg-type]
        ({"retry": Retry(on=["NON_RETRYABLE"])}, "retry, on", "forbidden_class"),
        ({"safety": "dangerous"}, "safety", "unknown_word"),
        ({"safety": "not_safe_to_retry"}, "safety", "unsafe"),
        ({"safety": "safe_to_retry_with_guard"}, "guard", "missing"),
        ({"guard": "ask"}, "guard", "not_allowed"),
        ({"guard": "nothing"}, "guard", "unknown_function"),
        ({"type": "decision"}, "type", "unknown_word"),
        ({"compensation_retry": 3}, "compensation_retry", "not_allowed"),
        ({"compensate": "undo", "compensation_retry": Retry(maximum="5s")}, "compensation_retry", "not_allowed"),
        ({"classify": {ValueError: "BAD"}}, "classify", "unknown_word"),
        ({"classify": {"ValueError": "TRANSIENT"}}, "classify", "type"),
        ({"classify": {ValueError: "TRANSIENT", Clash: "TRANSIENT"}}, "classify", "repeated"),
        ({"when": "input."}, "when", "expression"),
        ({"foreach": "steps.x.result"}, "foreach", "unknown_step"),
        ({"foreach": ExpandEach([1])}, "foreach", "misplaced"),
        ({"foreach": ExpandEach.from_step("x")}, "foreach", "unknown_step"),
        ({"suffix": "item"}, "suffix", "not_allowed"),
        ({"depends_on": ["x"]}, "depends_on", "unknown_step"),
        ({"depends_on": ["a"]}, "depends_on", "cycle"),
        ({"idempotency_key": "${x}"}, "idempotency_key", "expression"),
        ({"limits": [""]}, "limits.0", "blank"),
        ({"max_concurrency": -1}, "max_concurrency", "out_of_range"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_the_authors_words(options: Any, where: str, code: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        one(**options)
    assert [(p.path, p.code) for p in refused.value.problems] == [(f"step 'a', {where}", code)]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"max_concurrency": "3"}, "max_concurrency: Expected `int`, got `str`"),
        ({"failure_mode": "retry"}, "failure_mode: Invalid enum value 'retry'"),
        ({"compensation_policy": "x"}, "compensation_policy: Invalid enum value 'x'"),
        ({"when": 3}, "when: Expected `str | null`, got `int`"),
        ({"partial_effect": "yes"}, "partial_effect: Expected `bool`, got `str`"),
    ],
)
def test_what_is_of_the_wrong_type_is_told(options: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match="step 'a': ") as refused:
        one(**options)
    assert why in str(refused.value)


def test_an_unknown_keyword_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(DefinitionError, match="`timeot`: did you mean `timeout`"):
        step(timeot="5s")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "where", "code"),
    [
        ({"compensation": "whatever"}, "saga 's', compensation", "unknown_word"),
        ({"version": 0}, "saga 's', version", "out_of_range"),
        ({"timeout": "x"}, "saga 's', timeout", "bad_duration"),
        ({"timeout": 0}, "saga 's', timeout", "out_of_range"),
        ({"output": "x"}, "saga 's', output", "unknown_step"),
        ({"concurrency_key": "steps.a.result"}, "saga 's', concurrency_key", "expression"),
        ({"scheduling": "lazy"}, "saga 's'", "bad_value"),
        ({"layer_concurrency": -1}, "saga 's', layer_concurrency", "out_of_range"),
        ({"on_conflict": "x"}, "saga 's'", "bad_value"),
    ],
)
def test_what_is_wrong_with_a_saga(options: Any, where: str, code: str) -> None:
    @saga("s", **options)
    class Wrong:
        @step
        def a(self) -> None: ...

    assert problems(Wrong()) == [(where, code)]


def test_a_saga_needs_a_name() -> None:
    @saga("no name")
    class Wrong:
        @step
        def a(self) -> None: ...

    assert problems(Wrong()) == [("saga 'no name', name", "bad_name")]


def test_a_decorator_without_a_name_is_refused_with_a_suggestion() -> None:
    with pytest.raises(DefinitionError, match=r'^@saga needs a name: @saga\("book-trip"\)$'):

        @saga  # type: ignore[arg-type]
        class BookTrip:
            @step
            def a(self) -> None: ...


def test_a_step_without_self_is_refused() -> None:
    @saga("s")
    class Wrong:
        def cancel(result: Annotated[int, Result]) -> None: ...  # type: ignore[misc]

        @step
        def a() -> int: ...  # type: ignore[misc, empty-body]

        @step(compensate=cancel)
        def b(x: Trip) -> int: ...  # type: ignore[misc, empty-body]

        @step
        def c(*, x: Trip) -> int: ...  # type: ignore[misc, empty-body]

    assert told(Wrong()).splitlines()[1:] == [
        f"  {where} of Wrong has no `self`: write `def {name}(self, …)`, or add @staticmethod"
        for where, name in [
            ("step 'a'", "a"),
            ("step 'b'", "b"),
            ("step 'b', compensation", "cancel"),
            ("step 'c'", "c"),
        ]
    ]


def test_self_may_have_another_name_and_come_with_other_arguments() -> None:
    @saga("s")
    class Odd:
        @step
        def a(this) -> None: ...

        @step
        def b(self: Any, trip: Trip) -> None: ...

        @step
        def c(self, /, trip: Trip) -> None: ...

    assert set(steps(Odd())) == {"a", "b", "c"}


def test_all_problems_are_told_at_once() -> None:
    @saga("s", output="nothing", compensation="x")  # type: ignore[arg-type]
    class Wrong:
        @step(timeout="x", compensate="nothing", depends_on=["nothing"])
        def a(self, one: int, two: int) -> None: ...

        @step(when="1 +", safety="not_safe_to_retry")
        def b(self, x: Annotated[int, FromStep("nothing")]) -> None: ...

    assert {(path, code) for path, code in problems(Wrong())} == {
        ("step 'a'", "ambiguous_parameters"),
        ("step 'a', compensate", "unknown_function"),
        ("step 'b', parameter 'x'", "unknown_step"),
        ("step 'a', depends_on", "unknown_step"),
        ("saga 's', output", "unknown_step"),
        ("saga 's', compensation", "unknown_word"),
        ("step 'a', timeout", "bad_duration"),
        ("step 'b', when", "expression"),
        ("step 'b', safety", "unsafe"),
    }


def test_problems_read_as_sentences() -> None:
    @saga("s")
    class Wrong:
        @step(safety="not_safe_to_retry", timeout="20s", deadline="10s")
        def a(self) -> None: ...

    text = told(Wrong())
    assert text.startswith("Saga 's' has 2 problems.\n  step 'a', safety: ")
    assert 'needs a `compensate`, a `reconcile`, or `compensation_policy="manual"`' in text
    assert "lengthen the step's `deadline`" in text


# -- Output ------------------------------------------------------------------------------------------------------------


def test_an_output_with_a_dash() -> None:
    @saga("s", output="a-b")
    class Dashed:
        @step(id="a-b")
        def a(self) -> None: ...

    assert definition(Dashed()).output == '${steps["a-b"].result}'


def test_an_output_named_by_its_function_is_found_after_the_class() -> None:
    def work() -> int:
        return 1

    from tenuto.authoring.builder import SagaBuilder

    assert SagaBuilder("s", output=work).step("w", work).build().output_step == "w"


def test_the_output_must_be_what_the_saga_promises() -> None:
    @saga("s", output="a")
    class Wrong(Saga[Trip, Charge]):
        @step
        def a(self, trip: Trip) -> Flight:
            return Flight("x")

    assert "step 'a' returns Flight, but the saga declares Charge" in told(Wrong())


def test_a_clone_is_no_output() -> None:
    @saga("s", output="a#0")
    class Wrong:
        @step(foreach="input.list")
        def a(self) -> None: ...

    assert "one clone cannot be the output: name the whole step" in told(Wrong())


def test_the_output_of_a_fan_out_is_a_list() -> None:
    @saga("s", output="a")
    class Fan(Saga[Trip, list[Flight | None]]):
        @step(foreach="input.list")
        def a(self, trip: Trip) -> Flight:
            return Flight("x")

    assert compile_saga(Fan()).decode_output(raw([{"pnr": "x"}, None])) == [Flight("x"), None]


def test_an_output_may_be_fanned_out_by_its_input() -> None:
    program = compile_saga(BookTrip())
    assert program.decode_output(raw([{"id": "1"}, None])) == [Charge("1"), None]


def test_without_output_the_declared_type_is_read() -> None:
    @saga("s")
    class Plain(Saga[Trip, Charge]):
        @step
        def a(self, trip: Trip) -> Charge:
            return Charge("x")

    program = compile_saga(Plain())
    assert program.plan.definition.output is None
    assert program.output_step is None
    assert program.decode_output(raw({"id": "1"})) == Charge("1")


# -- Guards and reconciles ---------------------------------------------------------------------------------------------


def test_probes_may_take_what_steps_take() -> None:
    @saga("s")
    class Probed:
        @step
        def first(self) -> int:
            return 1

        def look(self, trip: Trip, n: Annotated[int, FromStep(first)], ctx: SagaContext) -> Any:
            return trip.city, n, ctx.forward_key

        @step(reconcile=look, safety="not_safe_to_retry")
        def a(self, trip: Trip) -> None: ...

    program = compile_saga(Probed())
    assert program.handlers["s.a.reconcile"].needs.results == ("first",)
    assert program.plan.definition.steps[1].depends_on == ("first",)
    given = {"input": raw({"city": "Oslo"}), "results": {"first": raw(1)}}
    assert run(program, "a.reconcile", **given) == ("Oslo", 1, "f")


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (bool, "it returns bool, but must return Outcome[T]"),
        (None, "but must return Outcome[T]"),
        (Done[Flight] | bool, "must return Outcome[T]"),
        (Done[Charge] | NotDone, "it returns Done[Charge], but the step's result is Flight"),
    ],
)
def test_what_a_probe_returns_is_checked(returned: Any, why: str) -> None:
    def ask() -> Any: ...

    ask.__annotations__["return"] = returned
    with pytest.raises(DefinitionError) as refused:
        one(reconcile=ask)
    assert why in str(refused.value)
    assert refused.value.problems[0].path == "step 'a', reconcile"


# -- Steps that are not functions --------------------------------------------------------------------------------------


@dataclass
class Payment:
    amount: int


@saga("order", output="ship")
class Order(Saga[Trip, str]):
    paid = signal("paid", Payment, deadline="1h")
    ok = approval(deadline="24h", permission="orders:approve", data=Payment, depends_on=[paid], when="input.city != ''")
    cool_down = wait("10m", depends_on=[ok])
    until = wait(until="steps.paid.result.amount")

    @step(depends_on=[cool_down])
    def ship(self, payment: Annotated[Payment, FromStep(paid)], ok: Annotated[Payment, FromStep(ok)]) -> str:
        return f"{payment.amount}"


def test_declared_steps() -> None:
    found = steps(Order())
    assert found["paid"] == Step(id="paid", type="wait", with_={"signal": "paid"}, timeout_ms=3_600_000)
    assert found["ok"] == Step(
        id="ok", type="human_approval", timeout_ms=86_400_000, permission="orders:approve", depends_on=("paid",),
        when="input.city != ''",
    )  # fmt: skip
    assert found["cool_down"] == Step(id="cool_down", type="wait", with_={"duration_ms": 600_000}, depends_on=("ok",))
    assert found["until"].with_ == {"until": "${steps.paid.result.amount}"}
    assert found["until"].depends_on == ("paid",)
    assert found["ship"].depends_on == ("cool_down", "paid", "ok")


def test_results_of_declared_steps_are_typed() -> None:
    program = compile_saga(Order())
    assert program.decode_result["paid"](raw({"amount": 5})) == Payment(5)
    assert program.decode_result["ok"](raw({"amount": 5})) == Payment(5)
    assert program.decode_result["cool_down"](None) is None


def test_declared_steps_are_named_by_their_attribute() -> None:
    assert step_name(Order.paid) == "paid"
    with pytest.raises(TypeError, match="step 'paid' cannot be called"):
        Order.paid()
    with pytest.raises(AttributeError):
        Order.paid.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("declared", "where", "code"),
    [
        (wait(), "step 'w'", "ambiguous_wait"),
        (wait("1s", until="input.x"), "step 'w'", "ambiguous_wait"),
        (wait("x"), "step 'w', duration", "bad_duration"),
        (wait("0s"), "step 'w', duration", "out_of_range"),
        (wait(until="1 +"), "step 'w', until", "expression"),
        (signal(" "), "step 'w', name", "blank"),
        (approval(deadline="0s"), "step 'w', deadline", "out_of_range"),
        (approval(when="1 +"), "step 'w', when", "expression"),
    ],
)
def test_declared_steps_can_be_wrong(declared: Any, where: str, code: str) -> None:
    class Holder:
        @step
        def a(self) -> None: ...

    Holder.w = declared  # type: ignore[attr-defined]
    declared.__set_name__(Holder, "w")
    found = problems(saga("s")(Holder)())
    assert (where, code) in found


# -- Groups ------------------------------------------------------------------------------------------------------------


@saga("agents", scheduling="eager")
class Agents:
    @step
    def plan(self) -> int:
        return 1

    @step
    def write(self, n: Annotated[int, FromStep(plan)]) -> str:
        return "draft"

    review = approval()

    @step
    def polish(self, draft: Annotated[str, FromStep(write)]) -> str:
        return draft

    work = group(
        write, review, polish, repeat_until="steps.polish.result == 'done'", max_visits=5, failure_mode="retry"
    )

    @step
    def publish(self, text: Annotated[str, FromStep(polish)]) -> None: ...


def test_groups_nest_their_steps() -> None:
    found = definition(Agents())
    assert [node.id for node in found.steps] == ["plan", "work", "publish"]
    work = found.steps[1]
    assert isinstance(work, Scope)
    assert [node.id for node in work.children] == ["write", "review", "polish"]
    assert (work.mode, work.max_visits, work.failure_mode) == ("sequence", 5, "retry")
    assert work.repeat_until == "steps.polish.result == 'done'"


def test_what_a_member_reads_the_group_waits_for() -> None:
    found = definition(Agents())
    assert found.steps[1].depends_on == ("plan",)
    assert found.steps[2].depends_on == ("work",)
    assert all(child.depends_on == () for child in found.steps[1].children)  # type: ignore[union-attr]


def test_groups_in_groups() -> None:
    @saga("s")
    class Nested:
        @step
        def a(self) -> int:
            return 1

        @step
        def b(self) -> int:
            return 1

        @step
        def c(self, n: Annotated[int, FromStep(a)]) -> int:
            return 1

        @step
        def d(self, n: Annotated[int, FromStep(c)]) -> int:
            return 1

        inner = group(a, b, mode="parallel", max_concurrency=1)
        outer = group(inner, c, d, mode="dag", deadline="1m")

    (outer,) = definition(Nested()).steps
    assert isinstance(outer, Scope)
    assert [(child.id, child.depends_on) for child in outer.children] == [
        ("inner", ()), ("c", ("inner",)), ("d", ("c",)),
    ]  # fmt: skip
    assert outer.timeout_ms == 60_000


def grouped(*members: Any, **options: Any) -> list[tuple[str, str]]:
    @saga("s")
    class Grouped:
        @step
        def a(self) -> int:
            return 1

        @step
        def b(self, n: Annotated[int, FromStep(a)]) -> int:
            return 1

        work = group(*(members or (a, b)), **options)

    return problems(Grouped())


@pytest.mark.parametrize(
    ("members", "options", "wrong"),
    [
        (("b", "a"), {}, ("step 'b'", "not_before")),
        ((), {"mode": "parallel"}, ("step 'b'", "not_before")),
        (("a", "x", "b"), {}, ("group 'work'", "unknown_step")),
        (("a", "b", "a"), {}, ("group 'work'", "two_groups")),
        (("a", "b", "work"), {}, ("group 'work'", "cycle")),
        ((), {"depends_on": ["a"]}, ("group 'work', depends_on", "cycle")),
        ((), {"mode": "flow"}, ("group 'work', mode", "unknown_word")),
        ((), {"mode": "x"}, ("group 'work', mode", "unknown_word")),
        ((), {"max_rounds": 0}, ("group 'work', max_rounds", "out_of_range")),
        ((), {"repeat_until": "steps.work.result"}, ("group 'work', repeat_until", "unknown_step")),
    ],
)
def test_groups_can_be_wrong(members: Any, options: Any, wrong: tuple[str, str]) -> None:
    assert wrong in grouped(*members, **options)


def test_a_step_may_read_the_last_round_of_a_later_one() -> None:
    @saga("s")
    class Loop:
        @step
        def ask(self, last: Annotated[int | None, FromStep("answer")]) -> int:
            return 1

        @step
        def answer(self, n: Annotated[int, FromStep(ask)]) -> int:
            return 1

        rounds = group(ask, answer, repeat_until="steps.answer.result > 3")

    assert definition(Loop()).steps[0].id == "rounds"


def test_a_group_has_no_result() -> None:
    @saga("s", output="g")
    class Wrong(Saga[Trip, str]):
        @step
        def a(self) -> None: ...

        g = group(a)

        @step
        def b(self, x: Annotated[int, FromStep(g)]) -> None: ...

    assert ("step 'b', parameter 'x'", "type") in problems(Wrong())
    assert "step 'g': it is a group, which has no result" in told(Wrong())


def test_an_empty_group() -> None:
    @saga("s")
    class Wrong:
        g = group()

    assert problems(Wrong()) == [("group 'g', steps", "empty")]


# -- Fan-outs ----------------------------------------------------------------------------------------------------------


def fan(annotation: Any, foreach: Any = "steps.people.result", **options: Any) -> Program:
    @saga("s")
    class Fan:
        @step
        def people(self) -> list[Trip]:
            return []

        @step(foreach=foreach, **options)
        def send(self, trip: Trip) -> str:
            return trip.city

        @step
        def sum(self, sent: Any) -> None: ...

    Fan.sum.__annotations__["sent"] = annotation
    return compile_saga(Fan())


def test_a_fan_out_waits_for_what_it_goes_over() -> None:
    found = fan(Annotated[list[str], FromStep("send")]).plan.definition
    assert [node.depends_on for node in found.steps] == [(), ("people",), ("send",)]


def test_the_path_of_items_begins_with_the_result() -> None:
    with pytest.raises(DefinitionError, match="path 'people' must begin with `result`"):
        fan(Annotated[list[str], FromStep("send")], ExpandEach.from_step("people", "people"))


def test_items_from_a_step_are_an_expression() -> None:
    each = ExpandEach.from_step("people", "result")
    found = fan(Annotated[list[str], FromStep("send")], each).plan.definition
    assert found == fan(Annotated[list[str], FromStep("send")]).plan.definition


@pytest.mark.parametrize(
    ("annotation", "options"),
    [
        (Annotated[list[str], FromStep("send")], {}),
        (Annotated[list[str | None], FromStep("send")], {"failure_mode": "continue"}),
        (Annotated[tuple[str, ...], FromStep("send")], {}),
        (Annotated[Any, FromStep("send")], {"failure_mode": "continue"}),
        (Annotated[str, FromStep("send#3")], {}),
        (Annotated[list[str], FromStep("people#0")], {}),
    ],
)
def test_fan_outs_are_read_as_lists(annotation: Any, options: Any) -> None:
    if annotation.__metadata__[0].step != "people#0":
        assert fan(annotation, **options).handlers


@pytest.mark.parametrize(
    ("annotation", "options", "why"),
    [
        (
            Annotated[str, FromStep("send")],
            {},
            "it is a fan-out of str, but the parameter is annotated str: use list[…]",
        ),
        (Annotated[list[int], FromStep("send")], {}, "but the parameter is annotated list[int]"),
        (Annotated[list[str], FromStep("send")], {"failure_mode": "continue"}, "annotate the parameter list[… | None]"),
        (Annotated[int, FromStep("send#3")], {}, "it returns str, but the parameter is annotated int"),
        (Annotated[str, FromStep("send#ann")], {}, "name clones by index, as in 'send#0'"),
    ],
)
def test_fan_outs_read_otherwise_are_refused(annotation: Any, options: Any, why: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        fan(annotation, **options)
    assert why in str(refused.value)


# -- Types of what is read ---------------------------------------------------------------------------------------------


def read(result: Any, wanted: Any) -> Program:
    @saga("s")
    class Reads:
        @step
        def a(self) -> Any: ...

        @step
        def b(self, x: Any) -> None: ...

    Reads.a.__annotations__["return"] = result
    Reads.b.__annotations__["x"] = Annotated[wanted, FromStep("a")]
    return compile_saga(Reads())


Id = NewType("Id", str)


class Options(TypedDict):
    depth: int


class Pair(NamedTuple):
    left: int


@dataclass
class Page(Generic[T]):
    items: list[T]


@dataclass
class Ticket(Flight):
    seat: str = ""


@pytest.mark.parametrize(
    ("result", "wanted"),
    [
        (Flight, Flight), (Flight, Flight | None), (Flight | None, Flight), (Ticket, Flight), (Flight, Any),
        (Any, Flight), (Flight, dict[str, Any]), (dict[str, Any], Flight), (Flight, list[Flight]), (int, float),
        (list[Ticket], list[Flight]), (Flight | Charge, Charge), (None, Flight | None), (list, list[int]),
        (Annotated[Flight, "x"], Flight), (tuple[int, str], list[Any]), (list[int], set[int]), (object, int),
        (Literal["a"], str), (Id, str), (Options, dict[str, Any]), (Pair, Pair), (Page[int], Page[int]),
        (Page[int], Page[str]),
    ],
)  # fmt: skip
def test_types_that_fit(result: Any, wanted: Any) -> None:
    assert read(result, wanted).handlers


@pytest.mark.parametrize(
    ("result", "wanted"),
    [
        (Flight, Charge), (Flight, Ticket), (str, int), (float, int), (bool, int), (list[Flight], Flight),
        (list[Flight], list[Charge]), (None, Flight), (dict[str, Any], int), (Flight, str), (Flight | Charge, int),
        (Options, Flight), (Pair, str), (Id, int), (bytes, str),
    ],
)  # fmt: skip
def test_types_that_do_not(result: Any, wanted: Any) -> None:
    with pytest.raises(DefinitionError, match="step 'b', parameter 'x': step 'a': it returns"):
        read(result, wanted)


def test_a_step_elsewhere_is_not_a_step_of_this_saga() -> None:
    @saga("s")
    class Wrong:
        @step
        def a(self, x: Annotated[Flight, FromStep(BookTrip.cancel_flight)]) -> None: ...

    assert "step 'BookTrip.cancel_flight' does not exist; steps are a" in told(Wrong())


def test_two_steps_with_one_id() -> None:
    @saga("s")
    class Wrong:
        @step(id="x")
        def a(self) -> None: ...

        @step(id="x")
        def b(self) -> None: ...

    assert problems(Wrong()) == [("step 'x'", "duplicate_id")]


def test_handlers_that_would_share_a_name() -> None:
    @saga("s")
    class Wrong:
        @step(compensate="undo")
        def a(self) -> None: ...

        def undo(self) -> None: ...

        @step(id="a.compensate")
        def b(self) -> None: ...

    assert problems(Wrong()) == [("step 'a.compensate'", "duplicate_handler")]


def test_a_cycle_of_reads_is_named() -> None:
    @saga("s")
    class Wrong:
        @step
        def a(self, x: Annotated[int, FromStep("b")]) -> int:
            return 1

        @step
        def b(self, x: Annotated[int, FromStep("a")]) -> int:
            return 1

    assert "these wait for one another: a → b → a" in told(Wrong())
