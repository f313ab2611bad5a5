"""`Harness`: an engine for tests with a virtual clock.

    async with Harness(BookTrip()) as t:
        t.script(BookTrip.hotel, TransientError("503"), Hotel("H1"))
        result = await t.execute(BookTrip, trip)
        assert t.calls(BookTrip.hotel) == 2 and t.elapsed < timedelta(seconds=1)

Handlers run unchanged, in real time. While no handler runs and a test waits for a result, the clock jumps from timer to
timer: delays, deadlines, limits. Ids count from one, so jitter is the same in every run.
"""

import asyncio
import heapq
import inspect
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any, Final, Literal, NamedTuple

from tenuto.runtime.clock import Clock, Environment, Timer

from .api.engine import Engine
from .authoring.context import step_name
from .authoring.markers import StepRef
from .authoring.program import Call, Handler, Program
from .authoring.programs import handlers_running
from .errors import NotFound, NotSupported
from .kernel.address import Phase, Ref
from .kernel.evolve import holder_of
from .kernel.plan import handler_name
from .kernel.state import Execution
from .runtime.memory import MemoryRuntime
from .values.durations import Duration, milliseconds

START_MS: Final = 1_767_225_600_000  # the first moment of 2026
SETTLE_MS: Final = 50  # real time for handlers to finish while a test advances the clock
_PHASES: tuple[Phase, ...] = ("forward", "compensate", "guard", "reconcile", "plan")


class VirtualClock:
    """A clock that moves only when `go_to` is called."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self._now_ms = start_ms
        self._timers: list[tuple[int, int, _VirtualTimer]] = []
        self._numbers = count()

    def now_ms(self) -> int:
        return self._now_ms

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        timer = _VirtualTimer(callback)
        heapq.heappush(self._timers, (self._now_ms + max(0, delay_ms), next(self._numbers), timer))
        return timer

    def next_due(self) -> int | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def go_to(self, moment_ms: int) -> None:
        """Advances to a time, and calls the timers that are due on the way, each at its own time."""
        while (due := self.next_due()) is not None and due <= moment_ms:
            self._now_ms = max(self._now_ms, due)
            timer = heapq.heappop(self._timers)[2]
            assert timer.callback is not None
            timer.callback()
        self._now_ms = max(self._now_ms, moment_ms)


class _VirtualTimer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class _CountedEnvironment(Environment):
    __slots__ = ("_ids",)

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, worker="harness")
        self._ids = count(1)

    def new_id(self) -> str:
        return f"{next(self._ids):026d}"


class _HandlerKey(NamedTuple):
    """The handler of one phase of one step of one definition."""

    definition: str
    step: str
    phase: Phase


class Harness(Engine):
    """An engine in virtual time. Tests can script handlers and crash workers."""

    def __init__(self, *sagas: object, url: str = "memory://", skip: bool = True, **options: Any) -> None:
        self._clock = VirtualClock()
        self._skips = skip
        self._by_hand = 0
        self._calls: dict[_HandlerKey, int] = {}
        self._scripts: dict[_HandlerKey, deque[object]] = {}
        self._crashes: dict[_HandlerKey, deque[Literal["before", "after"]]] = {}
        self._programs: dict[str, Program] = {}
        options.setdefault("shutdown_grace", "1s")
        super().__init__(url, clock=self._clock, **options)
        runtime = self._context.backend.lifecycle
        if not isinstance(runtime, MemoryRuntime):
            raise NotSupported("Harness supports memory:// only.")
        self._memory = runtime
        self._memory.interpose = self._interpose
        self._memory.on_idle = self._skip
        self.register(*sagas)

    def _make_environment(self, clock: Clock | None, build: str) -> Environment:
        return _CountedEnvironment(self._clock)

    # -- Time ----------------------------------------------------------------------------------------------------------

    @property
    def elapsed(self) -> timedelta:
        """The virtual time that has passed."""
        return timedelta(milliseconds=self._clock.now_ms() - START_MS)

    async def advance(self, by: Duration) -> None:
        """Advances the clock, timer by timer, and lets handlers run at each one."""
        until = self._clock.now_ms() + milliseconds(by)
        self._by_hand += 1
        try:
            await self._let_run()
            while (due := self._clock.next_due()) is not None and due <= until:
                self._clock.go_to(due)
                await self._let_run()
            self._clock.go_to(until)
            await self._let_run()
        finally:
            self._by_hand -= 1

    async def _let_run(self) -> None:
        await asyncio.sleep(0)
        await self._memory.quiet(SETTLE_MS)
        await asyncio.sleep(0)

    def _skip(self) -> None:
        """Jumps to the next timer if no handler runs and a caller waits."""
        if not self._skips or self._by_hand or self._memory.running or not self._memory.is_awaited:
            return
        due = self._clock.next_due()
        if due is not None:
            self._clock.go_to(due)
            asyncio.get_running_loop().call_soon(self._skip)

    # -- Handlers ------------------------------------------------------------------------------------------------------

    def script(self, step: StepRef, *outcomes: object) -> None:
        """Scripts the next calls of a handler: values are returned, exceptions raised, callables called.

        Name a step by its id or function; name guards, reconciles and compensations by their functions. A callable
        gets the step's context if it takes an argument. After the last outcome, the handler itself runs.
        """
        for place in self._places(step):
            self._scripts.setdefault(place, deque()).extend(outcomes)

    def crash(self, step: StepRef, *, when: Literal["before", "after"]) -> None:
        """Crashes the worker at the next call of this handler: before the call, or after it ended."""
        for place in self._places(step):
            self._crashes.setdefault(place, deque()).append(when)

    def calls(self, step: StepRef) -> int:
        """Returns how often the handler was called, scripted or not."""
        return sum(self._calls.get(place, 0) for place in self._places(step))

    def _places(self, step: StepRef) -> list[_HandlerKey]:
        found = [place for program in self._memory.programs.all for place in _places_in(program, step)]
        if not found:
            name = step if isinstance(step, str) else step_name(step)
            raise NotFound(f"No registered saga has a step or handler {name!r}.")
        return found

    def _interpose(self, state: Execution, ref: Ref, handler: Handler) -> Handler:
        holder = holder_of(state, ref)
        assert holder is not None
        place = _HandlerKey(state.plan.definition.name, holder.node.id, ref.phase)
        crashes, script = self._crashes.get(place), self._scripts.get(place)
        crash = crashes.popleft() if crashes else None
        if crash != "before":
            self._calls[place] = self._calls.get(place, 0) + 1
        if crash is None and not script:
            return handler

        async def invoke(call: Call) -> object:
            value: object = None
            if crash != "before":
                value = await (_act(script.popleft(), call) if script else _call(handler, call))
            if crash is not None:
                self._memory.lose_worker(state.id, ref)
                await asyncio.get_running_loop().create_future()  # this task now belongs to a crashed worker
            return value

        return Handler(
            name=handler.name,
            kind=handler.kind,
            is_async=True,
            needs=handler.needs,
            invoke=invoke,
            encode=handler.encode,
        )


def _places_in(program: Program, step: StepRef) -> list[_HandlerKey]:
    """Finds handlers by function, by step id, or by the name of a function."""
    nodes = list(program.plan.root.walk())
    if isinstance(step, str):
        named = [
            _HandlerKey(program.name, node.id, "forward") for node in nodes if node.id == step and not node.is_scope
        ]
        if named:
            return named
        running = {name for name, handler in program.handlers.items() if _function_name(handler) == step}
    else:
        running = set(handlers_running(program, step))
    places = [(node, phase) for node in nodes for phase in _PHASES]
    return [
        _HandlerKey(program.name, node.id, phase) for node, phase in places if handler_name(node.spec, phase) in running
    ]


def _function_name(handler: Handler) -> str | None:
    name: str | None = getattr(getattr(handler.invoke, "function", None), "__name__", None)
    return name


async def _call(handler: Handler, call: Call) -> object:
    if handler.is_async:
        running: Any = handler.invoke(call)
        return await running
    return await asyncio.to_thread(handler.invoke, call)


async def _act(outcome: object, call: Call) -> object:
    if isinstance(outcome, BaseException):
        raise outcome
    if isinstance(outcome, type) and issubclass(outcome, BaseException):
        raise outcome
    if callable(outcome) and not isinstance(outcome, type):
        takes_context = bool(inspect.signature(outcome).parameters)
        value = outcome(call.context) if takes_context else outcome()
        return await value if inspect.isawaitable(value) else value
    return outcome
