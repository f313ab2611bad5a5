"""What is particular to running all in one process: slots, threads, limits, keys, and handlers that will not stop."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

import pytest

from tenuto import Engine, ExpandEach, FromStep, Retry, SagaBuilder, SagaContext, StepInputs
from tenuto.errors import (
    ConcurrencyConflict,
    EngineClosed,
    IdempotencyConflict,
    InvalidInput,
    InvalidTransition,
    NonRetryableError,
    NotFound,
    NotSupported,
    ResultTimeout,
    TransientError,
)
from tenuto.testing import Harness


class Gate:
    """A handler that says when it was entered, and goes on when it is let."""

    def __init__(self) -> None:
        self.entered: asyncio.Queue[str] = asyncio.Queue()
        self.released = asyncio.Event()
        self.inside = 0
        self.most = 0

    async def __call__(self, ctx: SagaContext) -> str:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered.put_nowait(ctx.path)
        try:
            await self.released.wait()
        finally:
            self.inside -= 1
        return ctx.path


class ThreadGate:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.entered = asyncio.Event()
        self.released = threading.Event()
        self.left = asyncio.Event()

    def __call__(self) -> str:
        self.loop.call_soon_threadsafe(self.entered.set)
        assert self.released.wait(30)
        self.loop.call_soon_threadsafe(self.left.set)
        return "late"


def one(name: str, function: Callable[..., Any], **options: Any) -> SagaBuilder:
    return SagaBuilder(name).step("x", function, **options)


# -- Threads -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("K7")
async def test_plain_handlers_run_in_threads_and_never_block_the_loop() -> None:
    gate = ThreadGate()
    main = threading.current_thread()
    threads: list[object] = []

    def blocking() -> str:
        threads.append(threading.current_thread())
        return gate()

    async with Engine() as engine:
        engine.register(one("slow", blocking), one("quick", _quick))
        slow = await engine.start("slow")
        await gate.entered.wait()
        assert (await engine.execute("quick")).succeeded  # while the other one blocks its thread
        gate.released.set()
        assert (await slow.output()) == "late"
    assert threads != [main]


async def test_context_variables_reach_threads_and_do_not_leak() -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")
    seen: list[str] = []

    def plain() -> None:
        seen.append(tenant.get())
        tenant.set("left behind")

    async def coroutine() -> None:
        seen.append(tenant.get())
        tenant.set("left behind")

    async with Engine(threads=1, slots=1) as engine:
        engine.register(one("plain", plain), one("async", coroutine))
        tenant.set("acme")
        for name in ("plain", "plain", "async", "async"):
            await engine.execute(name)
    assert seen == ["acme"] * 4


async def test_a_timed_out_thread_goes_on_and_its_next_attempt_waits_for_it() -> None:
    gate = ThreadGate()
    calls: list[int] = []

    def stubborn(ctx: SagaContext) -> str:
        calls.append(ctx.attempt)
        return gate() if ctx.attempt == 1 else "second"

    async with Harness(one("s", stubborn, timeout="5s", retry=Retry(max_attempts=2, initial="1s", jitter=0))) as t:
        handle = await t.start("s")
        await gate.entered.wait()
        await t.advance("5s")
        assert (await handle.status())["steps"][0]["status"] == "retrying"
        await t.advance("1m")
        assert calls == [1]  # the second attempt is granted, and held back
        blocked = (await handle.status())["blocked"]
        assert blocked is not None
        assert blocked["reason"] == "slot"
        gate.released.set()
        assert (await handle.output()) == "second"
    assert calls == [1, 2]


async def test_the_late_answer_of_a_thread_counts_until_another_attempt_is_granted() -> None:
    gate = ThreadGate()

    def slow() -> str:
        return gate()

    async with Harness(one("s", slow, timeout="5s", retry=Retry(max_attempts=2, initial="1h", jitter=0))) as t:
        handle = await t.start("s")
        await gate.entered.wait()
        await t.advance("5s")
        gate.released.set()
        assert (await handle.output()) == "late"
        assert t.elapsed == timedelta(seconds=5)


@pytest.mark.requirement("K7")
async def test_an_async_handler_that_is_timed_out_is_cancelled() -> None:
    gate = Gate()
    async with Harness(one("s", gate, timeout="5s", retry=0)) as t:
        handle = await t.start("s")
        await gate.entered.get()
        await t.advance("4999ms")
        assert gate.inside == 1
        await t.advance("1ms")
        result = await handle.result()
        assert (result.steps["x"].status, result.steps["x"].error_class) == ("timed_out", "TRANSIENT")
        assert gate.inside == 0


async def test_a_handler_that_ignores_its_cancellation_holds_up_nobody_but_its_own_step() -> None:
    released = asyncio.Event()
    calls: list[int] = []

    async def deaf(ctx: SagaContext) -> str:
        calls.append(ctx.attempt)
        while not released.is_set() and ctx.attempt == 1:
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return f"attempt {ctx.attempt}"

    async with Harness(
        one("s", deaf, timeout="5s", retry=Retry(max_attempts=2, initial="1s", jitter=0)), one("quick", _quick)
    ) as t:
        handle = await t.start("s")
        await t.advance("1m")
        assert calls == [1]
        released.set()
        assert (await handle.output()) == "attempt 2"
    assert calls == [1, 2]


async def test_closing_waits_for_handlers_and_then_stops_them() -> None:
    gate = Gate()
    polite = Gate()
    engine = Engine(shutdown_grace="10ms")
    async with engine:
        engine.register(one("s", gate), one("p", polite))
        handle = await engine.start("s")
        await gate.entered.get()
        waiting = asyncio.ensure_future(handle.result())
        await engine.start("p")
        await polite.entered.get()
    assert gate.inside == polite.inside == 0
    with pytest.raises(EngineClosed):
        await waiting
    with pytest.raises(EngineClosed):
        await engine.execute("s")


async def test_a_command_for_many_that_the_end_overtakes_was_refused_by_nobody() -> None:
    async with Engine() as engine:
        engine.register(SagaBuilder("waits").signal("paid", "paid").build())
        await engine.start("waits")
        acting = engine.cancel_many(definition="waits", reason="closed")  # has chosen, and not told yet, at the end
        came, _ = await asyncio.gather(acting, engine.close(), return_exceptions=True)
    assert isinstance(came, EngineClosed)


async def test_closing_lets_handlers_finish_within_the_grace() -> None:
    gate = Gate()
    async with Engine(shutdown_grace="30s") as engine:
        engine.register(one("s", gate))
        await engine.start("s")
        await gate.entered.get()
        asyncio.get_running_loop().call_soon(gate.released.set)
    assert gate.inside == 0


async def test_a_thread_that_never_ends_does_not_keep_the_engine_open() -> None:
    gate = ThreadGate()
    async with Engine(shutdown_grace="10ms") as engine:
        engine.register(one("s", lambda: gate()))
        await engine.start("s")
        await gate.entered.wait()
    gate.released.set()
    await gate.left.wait()


# -- Slots -------------------------------------------------------------------------------------------------------------


async def _quick() -> str:
    return "quick"


@pytest.mark.requirement("G4")
async def test_no_more_run_than_there_are_slots() -> None:
    gate = Gate()
    async with Engine(slots=3) as engine:
        engine.register(SagaBuilder("fan").step("x", gate))
        handle = await engine.start("fan", StepInputs({"x": ExpandEach(range(10))}))
        for _ in range(3):
            await gate.entered.get()
        status = await handle.status()
        assert status["steps"][0]["clones"] is not None
        assert status["steps"][0]["clones"]["running"] == 10
        gate.released.set()
        result = await handle.result()
    assert gate.most == 3
    assert len(result.results_of("x")) == 10


async def test_a_large_fan_out_starves_nobody() -> None:
    order: list[str] = []

    async def note(ctx: SagaContext) -> None:
        order.append(ctx.saga)

    async with Engine(slots=1) as engine:
        engine.register(SagaBuilder("large").step("x", note), one("small", note))
        large = await engine.start("large", StepInputs({"x": ExpandEach(range(1_000))}))
        await engine.execute("small")
        assert order.index("small") <= 3
        await large.result()
    assert len(order) == 1_001


@pytest.mark.requirement("G6")
async def test_high_priority_goes_first_and_undo_before_all() -> None:
    order: list[str] = []
    gate = Gate()

    async def note(ctx: SagaContext) -> None:
        order.append(ctx.correlation_id)

    async def undo(ctx: SagaContext) -> None:
        order.append(f"undo {ctx.correlation_id}")

    async def refuse(ctx: SagaContext) -> None:
        for _ in range(5):
            await engine.start("note", correlation_id="n", priority="high")
        raise NonRetryableError

    failing = SagaBuilder("failing").step("a", note, compensate=undo).step("b", refuse, depends_on=["a"])
    async with Engine(slots=1) as engine:
        engine.register(one("gate", gate), one("note", note), failing)
        await engine.start("gate")
        await gate.entered.get()
        handles = [
            await engine.start("note", correlation_id="normal"),
            await engine.start("note", correlation_id="high", priority="high"),
        ]
        gate.released.set()
        for handle in handles:
            await handle.result()
        assert order == ["high", "normal"]
        order.clear()
        await engine.execute("failing", correlation_id="f")
        assert order[:2] == ["f", "undo f"]


# -- Limits ------------------------------------------------------------------------------------------------------------


async def test_a_rate_spends_neither_attempts_nor_timeouts() -> None:
    starts: list[timedelta] = []

    async with Harness() as t:

        async def send() -> None:
            starts.append(t.elapsed)

        t.register(SagaBuilder("mail").step("x", send, limits=["ses"], timeout="1s", retry=0))
        await t.limit("ses", rate="10/s")
        result = await t.execute("mail", StepInputs({"x": ExpandEach(range(35))}))
        assert result.succeeded
        assert result.steps["x"].attempts == 35
    assert [sum(at == timedelta(seconds=n) for at in starts) for n in range(4)] == [10, 10, 10, 5]


async def test_in_no_window_are_there_more_starts_than_the_rate_allows() -> None:
    starts: list[float] = []
    async with Harness() as t:

        async def send() -> None:
            starts.append(t.elapsed.total_seconds())

        t.register(SagaBuilder("mail").step("x", send, limits=["ses"]))
        await t.limit("ses", rate="5000/s")
        await t.execute("mail", StepInputs({"x": ExpandEach(range(8_000))}))
    assert max(sum(at <= other < at + 1 for other in starts) for at in sorted(set(starts))) <= 5_000


async def test_concurrency_is_shared_by_all_executions() -> None:
    gate = Gate()
    async with Engine() as engine:
        engine.register(one("a", gate, limits=["db"]), one("b", gate, limits=["db"]), one("free", _quick))
        await engine.limit("db", concurrency=2)
        handles = [await engine.start(name) for name in ("a", "b", "a", "b")]
        await gate.entered.get()
        await gate.entered.get()
        assert (await engine.execute("free")).succeeded
        assert gate.inside == 2
        blocked = (await handles[3].status())["blocked"]
        assert blocked is not None
        assert (blocked["reason"], blocked["waiting_for"]) == ("limit", "db")
        gate.released.set()
        assert all([(await handle.result()).succeeded for handle in handles])
    assert gate.most == 2


async def test_a_limit_is_shared_by_threads_and_tasks() -> None:
    gate = ThreadGate()
    async with Engine() as engine:
        engine.register(one("thread", lambda: gate(), limits=["db"]), one("task", _quick, limits=["db"]))
        await engine.limit("db", concurrency=1)
        first = await engine.start("thread")
        await gate.entered.wait()
        second = await engine.start("task")
        gate.released.set()
        assert (await first.result()).succeeded
        assert (await second.result()).succeeded


async def test_a_limit_can_be_raised_while_others_wait() -> None:
    gate = Gate()
    async with Engine() as engine:
        engine.register(one("a", gate, limits=["db"]))
        await engine.limit("db", concurrency=1)
        for _ in range(3):
            await engine.start("a")
        await gate.entered.get()
        await engine.limit("db", concurrency=3)
        await gate.entered.get()
        await gate.entered.get()
        gate.released.set()


@pytest.mark.parametrize("rate", ["", "x", "10", "10/", "0/s", "-1/s", "10/parsec"])
async def test_a_rate_that_is_none_is_refused(rate: str) -> None:
    async with Engine() as engine:
        with pytest.raises(InvalidInput, match="rate"):
            await engine.limit("x", rate=rate)


# -- Keys --------------------------------------------------------------------------------------------------------------


async def test_one_execution_at_a_time_per_concurrency_key_in_order() -> None:
    gate = Gate()
    order: list[str] = []

    async def work(ctx: SagaContext) -> None:
        order.append(ctx.correlation_id)
        await gate(ctx)

    async with Engine() as engine:
        engine.register(SagaBuilder("order", concurrency_key="input.id").step("x", work))
        handles = [await engine.start("order", {"id": "o1"}, correlation_id=str(n)) for n in range(3)]
        other = await engine.start("order", {"id": "o2"}, correlation_id="other")
        await gate.entered.get()
        await gate.entered.get()
        assert order == ["0", "other"]
        status = await handles[1].status()
        assert status["status"] == "running"
        assert status["blocked"] is not None
        assert (status["blocked"]["reason"], status["blocked"]["waiting_for"]) == ("concurrency_key", "o1")
        await handles[1].cancel()
        gate.released.set()
        await handles[2].result()
        await other.result()
        assert (await handles[1].result()).status == "canceled"
    assert order == ["0", "other", "2"]


async def test_a_conflict_can_be_refused() -> None:
    gate = Gate()
    async with Engine() as engine:
        engine.register(SagaBuilder("order", concurrency_key="input.id", on_conflict="reject").step("x", gate))
        handle = await engine.start("order", {"id": 7})
        with pytest.raises(ConcurrencyConflict):
            await engine.start("order", {"id": 7}, idempotency_key="k")
        assert await engine.count() == {"running": 1}
        gate.released.set()
        await handle.result()
        assert (await engine.execute("order", {"id": 7}, idempotency_key="k")).succeeded  # the refusal burnt no key


async def test_a_retry_asks_for_its_key_again() -> None:
    gate = Gate()
    fails = [True]

    async def work(ctx: SagaContext) -> None:
        if ctx.correlation_id == "first" and fails:
            fails.pop()
            raise NonRetryableError
        await gate(ctx)

    async with Engine() as engine:
        engine.register(SagaBuilder("order", concurrency_key="input.id").step("x", work))
        first = await engine.start("order", {"id": 1}, correlation_id="first")
        assert (await first.result()).status == "failed"
        second = await engine.start("order", {"id": 1}, correlation_id="second")
        await gate.entered.get()
        await first.retry(reason="again")
        blocked = (await first.status())["blocked"]
        assert blocked is not None
        assert blocked["reason"] == "concurrency_key"
        gate.released.set()
        assert (await second.result()).succeeded
        assert (await first.result()).succeeded


async def test_an_idempotency_key_names_one_execution() -> None:
    async with Engine() as engine:
        engine.register(one("s", _echo), one("other", _echo))
        first = await engine.start("s", 1, idempotency_key="k")
        again = await engine.start("s", 1, idempotency_key="k", correlation_id="another try")
        assert first.id == again.id
        assert (await engine.execute("s", 1, idempotency_key="k")).execution_id == first.id
        with pytest.raises(IdempotencyConflict):
            await engine.start("s", 2, idempotency_key="k")
        with pytest.raises(IdempotencyConflict):
            await engine.start("other", 1, idempotency_key="k")
        elsewhere = await engine.start("s", 2, idempotency_key="k", tenant="acme")
        assert elsewhere.id != first.id


async def _echo(value: int) -> int:
    return value


# -- Handlers that are not there ---------------------------------------------------------------------------------------

CALLBACK = {
    "name": "ocr",
    "steps": [
        {
            "step_id": "scan",
            "type": "external_call",
            "handler": "send",
            "completion": "callback",
            "idempotency_strategy": "SAFE_TO_RETRY",
            "ack_timeout_ms": 10_000,
            "result_timeout_ms": 60_000,
            "retry_policy": {"max_attempts": 3, "initial_delay_ms": 100, "jitter": 0},
        }
    ],
}


async def test_a_handler_that_is_nowhere_is_not_a_failure() -> None:
    async with Harness() as t:
        await t.apply({"name": "d", "steps": [_step("a", handler="later")]})
        handle = await t.start("d", 5)
        await t.advance("1h")
        status = await handle.status()
        assert status["blocked"] is not None
        assert (status["status"], status["blocked"]["reason"]) == ("running", "no_worker")
        assert status["blocked"]["waiting_for"] == "later"
        t.handler("later", _echo)
        result = await handle.result()
        assert (result.output, result.steps["a"].attempts) == (5, 1)


def _step(id: str, **more: Any) -> dict[str, Any]:
    return {"step_id": id, "type": "task", "idempotency_strategy": "SAFE_TO_RETRY", **more}


async def test_an_engine_that_is_no_worker_runs_nothing() -> None:
    async with Engine(worker=False) as engine:
        engine.register(one("s", _quick))
        handle = await engine.start("s")
        blocked = (await handle.status())["blocked"]
        assert blocked is not None
        assert blocked["reason"] == "no_worker"
        with pytest.raises(ResultTimeout):
            await handle.result(timeout="1ms")


async def test_a_queue_that_nobody_serves_blocks_and_one_that_is_served_runs() -> None:
    async with Engine(queues=["gpu"]) as engine:
        engine.register(one("served", _quick, queue="gpu"), one("other", _quick, queue="cpu"))
        assert (await engine.execute("served")).succeeded
        blocked = (await (await engine.start("other")).status())["blocked"]
        assert blocked is not None
        assert (blocked["reason"], blocked["waiting_for"]) == ("no_worker", "queue cpu")


# -- Callbacks ---------------------------------------------------------------------------------------------------------


async def test_a_callback_step_is_sent_by_its_handler_and_answered_from_outside() -> None:
    sent: list[tuple[int, str]] = []

    async def send(ctx: SagaContext) -> None:
        sent.append((ctx.attempt, ctx.lease_id))

    async with Harness() as t:
        t.handler("send", send)
        await t.apply(CALLBACK)
        handle = await t.start("ocr", {})
        await t.advance("1s")
        (attempt, lease) = sent[0]
        status = await handle.status()
        assert status["blocked"] is not None
        assert (status["blocked"]["reason"], status["blocked"]["waiting_for"]) == ("callback", "scan")
        assert await handle.acknowledge("scan", attempt=attempt, lease="wrong") == "stale_lease"
        assert await handle.acknowledge("scan", attempt=attempt, lease=lease) == "applied"
        assert await handle.acknowledge("scan", attempt=attempt, lease=lease) == "duplicate"
        await t.advance("30s")  # the ack came, so only the result is awaited
        assert await handle.answer("scan", attempt=attempt, lease=lease, result={"pages": 2}) == "applied"
        assert await handle.answer("scan", attempt=attempt, lease=lease, result={"pages": 3}) == "terminal"
        assert (await handle.result()).output == {"pages": 2}


async def test_without_an_ack_the_directive_is_sent_again() -> None:
    sent: list[tuple[int, str]] = []

    async def send(ctx: SagaContext) -> None:
        sent.append((ctx.attempt, ctx.lease_id))

    async with Harness() as t:
        t.handler("send", send)
        await t.apply(CALLBACK)
        handle = await t.start("ocr", {})
        await t.advance("11s")
        assert [attempt for attempt, _ in sent] == [1, 2]
        assert await handle.answer("scan", attempt=1, lease=sent[0][1], result=1) == "stale_attempt"
        error = NonRetryableError("unreadable", code="bad_scan")
        assert await handle.answer("scan", attempt=2, lease=sent[1][1], error=error) == "applied"
        result = await handle.result()
        assert (result.status, result.steps["scan"].error_code) == ("failed", "bad_scan")


async def test_a_directive_that_could_not_be_sent_costs_no_attempt() -> None:
    async with Harness() as t:

        async def send() -> None: ...

        t.handler("send", send)
        await t.apply(CALLBACK)
        t.script("scan", *(TransientError("broker is down") for _ in range(5)))
        handle = await t.start("ocr", {})
        await t.advance("8s")
        refused = [row for row in await handle.history() if row["error_summary"] == "broker is down"]
        assert len(refused) == 5
        status = await handle.status()
        assert status["blocked"] is not None
        assert (status["blocked"]["reason"], status["steps"][0]["attempts"]) == ("callback", 6)


# -- Cancelling, pausing, retrying -------------------------------------------------------------------------------------


async def test_terminate_stops_handlers_and_drain_awaits_them() -> None:
    gate = Gate()
    async with Engine() as engine:
        engine.register(one("s", gate))
        drained, terminated = await engine.start("s"), await engine.start("s")
        await gate.entered.get()
        await gate.entered.get()
        await drained.cancel("drain")
        await terminated.cancel("terminate", reason="enough")
        assert (await terminated.result()).status == "canceled"
        status = await drained.status()
        assert (status["status"], status["cancel_requested"]) == ("running", True)
        gate.released.set()
        result = await drained.result()
        assert (result.status, result.steps["x"].status) == ("canceled", "succeeded")


async def test_a_long_handler_is_told_of_a_cancel_and_a_pause() -> None:
    told: list[tuple[bool, bool]] = []
    go_on = asyncio.Event()
    beating = asyncio.Event()

    async def long(ctx: SagaContext) -> object:
        await ctx.heartbeat({"done": 1})
        beating.set()
        await go_on.wait()
        beat = await ctx.heartbeat({"done": 2})
        told.append((beat.paused, ctx.cancelled))
        raise TransientError

    async def see(ctx: SagaContext) -> object:
        return ctx.progress

    async with Harness(one("s", long)) as t:
        handle = await t.start("s")
        await beating.wait()
        await handle.pause(reason="lunch")
        go_on.set()
        await t.advance("1h")
        assert (await handle.status())["status"] == "paused"
        t.script("x", see)
        await handle.resume()
        assert (await handle.result()).result_of("x") == {"done": 2}
    assert told == [(True, False)]


async def test_commands_that_are_not_allowed_say_so() -> None:
    async with Engine() as engine:
        engine.register(one("s", _quick))
        handle = engine.get((await engine.execute("s")).execution_id)
        for command in (handle.pause(), handle.resume(), handle.cancel(), handle.retry(reason="x")):
            with pytest.raises(InvalidTransition, match="succeeded"):
                await command
        with pytest.raises(InvalidTransition):
            await handle.approve("x")
        with pytest.raises(InvalidTransition):
            await handle.signal("paid")
        with pytest.raises(NotFound):
            await engine.get("nothing").status()
        with pytest.raises(NotFound):
            await engine.resolve("nothing", "dismiss", reason="seen")


# -- Once --------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("D2")
async def test_once_is_true_once_per_step() -> None:
    made: list[bool] = []

    async def confirm(ctx: SagaContext) -> None:
        async with ctx.once(None) as first:
            made.append(first)
        if ctx.attempt < 3:
            raise TransientError

    async with Harness(one("s", confirm)) as t:
        await t.execute("s")
    assert made == [True, False, False]


async def test_there_is_no_transaction_to_start_in() -> None:
    async with Engine() as engine:
        engine.register(one("s", _quick))
        with pytest.raises(NotSupported):
            await engine.start("s", connection=object())


async def test_results_of_a_fan_out_come_in_the_order_of_its_items() -> None:
    async def total(parts: Annotated[list[int | None], FromStep("x")]) -> int:
        return sum(part or 0 for part in parts)

    saga = SagaBuilder("s", output="sum").step("x", _echo, failure_mode="continue").step("sum", total)
    async with Harness(saga) as t:
        t.script("x", NonRetryableError("no"))
        result = await t.execute("s", StepInputs({"x": ExpandEach([5, 6, 7])}))
        assert result.results_of("x") == [None, 6, 7]
        assert result.output == 13
        assert [clone.status for clone in result.steps["x"].clones] == ["skipped", "succeeded", "succeeded"]
        assert result.steps["x#0"].error == "no"
