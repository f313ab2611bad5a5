"""Attempts under way: a task for an async handler, a thread for a plain one, and the time each may take.

Async handlers run in a task, because they may ask for the current task, open timeouts and set context variables; one
that suspends has its task for itself. Neither task nor thread can be killed: a handler that goes on after its time is
over is reported as timed out at once, and keeps its slot until it ends; its late answer is handed on, for the kernel to
judge.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from queue import SimpleQueue
from time import monotonic
from types import coroutine as make_awaitable
from typing import Any, Final, TypeAlias

from tenuto.errors import ExpressionError, PayloadError
from tenuto.kernel import facts as f
from tenuto.kernel.events import NULL
from tenuto.runtime.clock import Clock, Timer

from .attempt import Attempt
from .attempt_log import log_blocked_loop
from .outcomes import Parked, failed, succeeded

BLOCKING_S: Final = 1  # a handler that returns control later than this draws a warning

Ending: TypeAlias = "f.Outcome | Parked | None"


class Job:
    """An attempt under way. `report` is called once with its outcome, and once more if it was timed out and then ended.

    `begun` says whether its handler may have been called, `ended` whether that has come to its end; until then it holds
    its slot.
    """

    __slots__ = (
        "_abandoned",
        "_called_off",
        "_clock",
        "_report",
        "_task",
        "_tasks",
        "_timer",
        "attempt",
        "begun",
        "ended",
        "loop",
        "stopped",
        "timed_out",
    )

    def __init__(self, attempt: Attempt, clock: Clock, report: "Callable[[Job, Ending], None]") -> None:
        self.attempt = attempt
        self.loop: asyncio.AbstractEventLoop | None = None
        self.ended = False
        self.stopped = False
        self.timed_out = False
        self._clock = clock
        self._report = report
        self._timer: Timer | None = None
        self._task: asyncio.Task[None] | None = None
        self._tasks: Tasks | None = None
        self.begun = False
        self._abandoned = False
        self._called_off = False

    # For async handlers

    def run(self, tasks: "Tasks") -> None:
        self._tasks = tasks
        tasks.run(self)

    def begin(self, task: asyncio.Task[None]) -> Coroutine[Any, Any, None] | None:
        """Calls the handler. If it waits for something, that remains to be awaited in this task."""
        self._task = task
        self.begun = True
        if self.stopped:
            self._end(None)
            return None
        try:
            called: Any = self.attempt.handler.invoke(self.attempt)
            send: Callable[[None], Any] = called.send
        except BaseException as error:
            self._end(self._failed(error))
            return None
        try:
            awaited = self.resume(send, None)
        except StopIteration as stop:
            self._end(self._succeeded(stop.value))
            return None
        except BaseException as error:
            self._end(self._failed(error))
            return None
        self.watch()
        return self._go_on(called, awaited)

    def resume(self, call: Callable[[Any], Any], value: object) -> Any:
        """Runs the handler until it waits or ends. Meanwhile nothing else runs on the event loop."""
        since = monotonic()
        try:
            return call(value)
        finally:
            took = monotonic() - since
            if took > BLOCKING_S and not self.attempt.role.has_blocked:
                self.attempt.role.has_blocked = True
                log_blocked_loop(self.attempt, took)

    async def _go_on(self, called: Coroutine[Any, Any, Any], awaited: Any) -> None:
        ending: Ending
        try:
            ending = self._succeeded(await _resumed(called, awaited, self))
        except BaseException as error:
            if self._abandoned:
                raise
            ending = self._failed(error)
        self._end(ending)

    def _succeeded(self, value: object) -> f.Outcome:
        attempt, role = self.attempt, self.attempt.role
        if role.dispatches:  # the result comes from outside: what the sender returns is not kept
            return f.Succeeded(result=NULL)
        tables = (role.step.classify, attempt.performer.classify)
        outcome = succeeded(
            attempt.handler, role.phase, value, role.schema, may_repeat=role.may_repeat, classify=tables
        )
        return attempt.with_usage(outcome)

    def _failed(self, error: BaseException) -> Ending:
        # What it raises when it is cancelled says nothing of the effect; what it cancelled itself is a failure.
        if self.stopped or self.timed_out:
            return None
        return self._understood(error)

    def _understood(self, error: BaseException) -> f.Failed | Parked:
        """A handler whose parameters cannot be read was not called. If they can be read, the handler was called and
        met a value that cannot be used, such as another execution's result: its effect is unknown."""
        attempt, role = self.attempt, self.attempt.role
        ending = failed(error, role.step, attempt.performer.classify, may_repeat=role.may_repeat)
        if isinstance(ending, f.Failed):
            ending = attempt.with_usage(ending)
        if role.may_repeat or not isinstance(error, PayloadError | ExpressionError) or not attempt.is_readable():
            return ending
        if isinstance(ending, Parked):
            return f.Failed(error_class="INDETERMINATE", code=error.code, summary=ending.why)
        return f.Failed(error_class="INDETERMINATE", code=error.code, summary=ending.summary, trace=ending.trace)

    # For plain handlers

    def run_in_thread(self, loop: asyncio.AbstractEventLoop, threads: "Threads") -> None:
        self.loop = loop
        self.begun = True
        self.watch()
        try:
            threads.run(copy_context().run, self._perform_in_thread)
        except RuntimeError:  # the system has no thread left
            ending = f.Failed(error_class="TRANSIENT", code="no_thread", summary="no thread could be started for it")
            loop.call_soon(self._end, ending)

    def _perform_in_thread(self) -> None:
        attempt = self.attempt
        assert self.loop is not None
        ending: Ending
        try:
            ending = self._succeeded(attempt.handler.invoke(attempt))
        except BaseException as error:
            ending = self._understood(error)
        try:
            self.loop.call_soon_threadsafe(self._end, ending)
        except RuntimeError:  # the loop was closed while the handler ran
            return

    # For both

    @property
    def is_task(self) -> bool:
        return self._tasks is not None

    def stop(self) -> None:
        """The attempt is no longer wanted. A thread goes on; a task is cancelled, and may go on all the same."""
        if self.ended or self._called_off:
            return
        self._called_off = self.stopped = self.attempt.stopped = True
        self._unwatch()
        if self._task is not None and self.begun:
            self._task.cancel()

    def forget(self) -> None:
        """The attempt is settled without it: let it finish in peace, and report nothing."""
        self.stopped = self.attempt.stopped = True
        self._unwatch()

    def abandon(self) -> None:
        self._abandoned = True

    def watch(self) -> None:
        self._timer = self._clock.call_later(self.attempt.role.timeout_ms, self._time_out)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        if self.ended or self.stopped:
            return
        self.timed_out = True
        if self._task is not None:
            self._task.cancel()
        self._report(self, self.attempt.with_usage(f.TimedOut()))

    def _end(self, ending: Ending) -> None:
        if self._timer is not None:
            self._unwatch()
        self.ended = True
        self._report(self, None if self.stopped else ending)


@make_awaitable
def _resumed(called: Coroutine[Any, Any, Any], awaited: Any, job: Job) -> Generator[Any, Any, Any]:
    """Awaits a coroutine that was run until it first waited for something."""
    while True:
        try:
            sent = yield awaited
        except GeneratorExit:  # the event loop is gone: no caller awaits the result
            job.abandon()
            called.close()
            raise
        except BaseException as error:
            try:
                awaited = job.resume(called.throw, error)
            except StopIteration as stop:
                return stop.value
        else:
            try:
                awaited = job.resume(called.send, sent)
            except StopIteration as stop:
                return stop.value


@make_awaitable
def _one_turn() -> Generator[None, None, None]:
    """Lets everything else that is ready go first."""
    yield


class Tasks:
    """Tasks for async handlers. Many handlers never suspend: those run one after another in the same task.

    A handler that suspends keeps its task, and another one goes on with those that wait; one that left something behind
    in the task (a context variable, a request to cancel it) is the last to run there. So no handler can tell that it
    was not given a task of its own.
    """

    def __init__(self) -> None:
        self._ready: deque[tuple[Job, Context]] = deque()
        self._task: asyncio.Task[None] | None = None

    def run(self, job: Job) -> None:
        """Runs it in the caller's context, as a task of its own would."""
        self._ready.append((job, copy_context()))
        if self._task is None:
            self._spawn()

    def _spawn(self) -> None:
        context = self._ready[0][1]
        self._task = asyncio.get_running_loop().create_task(self._work(context.copy()), context=context)

    def leave(self) -> None:
        """The handler that is running takes its task with it."""
        self._task = None
        if self._ready:
            self._spawn()

    async def _work(self, unchanged: Context) -> None:
        task = asyncio.current_task()
        assert task is not None
        ready = self._ready
        try:
            while ready:
                for _ in range(len(ready)):
                    if ready[0][1] != unchanged:
                        self.leave()
                        return
                    waits = ready.popleft()[0].begin(task)
                    if waits is not None:
                        self.leave()
                        await waits
                        return
                    if task.cancelling() or copy_context() != unchanged:
                        self.leave()
                        return
                if ready:  # what these have led to waits until the loop has gone round
                    await _one_turn()
        finally:
            if self._task is task:
                self._task = None


class Threads:
    """Threads for plain `def` handlers. Daemons: a handler that never returns must not keep the process alive."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._calls: SimpleQueue[tuple[Callable[..., object], tuple[object, ...]] | None] = SimpleQueue()
        self._started = 0
        self._idle = 0
        self._lock = threading.Lock()

    def run(self, function: Callable[..., object], *arguments: object) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif self._started < self.size:
                name = f"tenuto-{self._started + 1}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._started += 1
        self._calls.put((function, arguments))

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            function, arguments = call
            function(*arguments)
            del call, function, arguments
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        """Idle threads end; busy ones when their handler does."""
        for _ in range(self._started):
            self._calls.put(None)
