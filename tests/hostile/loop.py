"""An event loop whose time does not pass but is skipped, and on which processes can be killed and frozen.

Everything runs in one thread, threads included, so a seed is the same run everywhere. A *process* is a value of a
context variable: callbacks and tasks inherit it from whoever made them. What belongs to a process that was killed never
runs again, not even its `finally`; what belongs to a frozen one waits for its thaw, as after SIGSTOP and SIGCONT.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")


class NothingLeft(Exception):
    """Nobody waits for anything that could happen."""


class Endless(Exception):
    """More happened than in any world that comes to its end."""


class Process:
    def __init__(self, name: str) -> None:
        self.name = name
        self.killed = False
        self.frozen = False
        self.held: list[_Call] = []

    def __repr__(self) -> str:
        return self.name


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


# Of 150 seeds that hold none took more than 40,000. A count, because time may stand still while the world does not.
MOST_TURNS = 250_000


class _Skipping(selectors.DefaultSelector):
    """Instead of waiting, it says how long it would have waited."""

    def __init__(self, most_turns: int) -> None:
        super().__init__()
        self.now = 1_000.0
        self.turns_left = most_turns

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns_left -= 1
        if self.turns_left < 0:
            raise Endless
        found = super().select(0)
        if not found and timeout is None:
            raise NothingLeft
        if not found and timeout is not None and timeout > 0:
            self.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, most_turns: int = MOST_TURNS) -> None:
        self._skipping = _Skipping(most_turns)
        super().__init__(self._skipping)
        self.errors: list[Mapping[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.errors.append(context))

    def time(self) -> float:
        return self._skipping.now

    def run_in_executor(  # type: ignore[override]  # at once, in this thread
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def spawn(self, process: Process | None, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        context = copy_context()
        context.run(PROCESS.set, process)
        return self.create_task(work, context=context)

    def thaw(self, process: Process) -> None:
        process.frozen = False
        held, process.held = process.held, []
        for call in held:
            self.call_soon(call.run, context=call.context)

    def _call_soon(self, callback: Any, args: Any, context: Any) -> asyncio.Handle:
        call = _Call(callback, args, context or copy_context())
        call.handle = super()._call_soon(call.run, (), call.context)  # type: ignore[misc]  # not in typeshed
        return call.handle

    def call_at(  # type: ignore[override]  # as its parent, with fewer type variables
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        call = _Call(callback, args, context or copy_context())
        call.handle = timer = super().call_at(when, call.run, context=call.context)
        return timer


class _Call:
    """A callback, and the handle by which it can be taken back: also while its process is frozen."""

    __slots__ = ("args", "callback", "context", "handle")

    handle: asyncio.Handle

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        self.callback = callback
        self.args = args
        self.context = context

    def run(self) -> None:
        process = PROCESS.get()
        if process is not None and (process.killed or process.frozen):
            process.held.append(self)  # of the killed, too: nothing of theirs is cleaned up
        elif not self.handle.cancelled():
            self.callback(*self.args)


def pause(seconds: float) -> "asyncio.Future[None]":
    """In the loop's own time, which is skipped."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    loop.call_later(seconds, _set, over)
    return over


def _set(over: "asyncio.Future[None]") -> None:
    if not over.done():
        over.set_result(None)
