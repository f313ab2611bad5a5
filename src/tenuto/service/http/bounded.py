"""How long a request may take: then it is answered, whatever it waits for, and what it waits for is given up.

A database that does not answer, or a driver that asks it to stop, may take minutes. Whoever asked hears by then that
nobody knows what came of it: what was under way may have been done, or be done yet.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenuto.errors import StorageError

from .gate import is_attended
from .problems import told

LONGEST_WAIT_S = 60.0  # of somebody who waits for an execution, and says how long
RETRY_AFTER_S = 5.0

_BOUND = "tenuto.bound"  # in a request's scope


class Bounded:
    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        seconds = self._seconds + (LONGEST_WAIT_S if is_attended(scope) else 0)
        bound = scope[_BOUND] = _Bound(seconds, scope, receive, send)
        try:
            await self._app(scope, receive, bound.send)
        except (Exception, asyncio.CancelledError):
            if not bound.is_late:
                raise
        finally:
            bound.stop()
            del scope[_BOUND]  # they hold each other: what is left of each request would wait for the collector
        if bound.is_late:
            await bound.end()


@contextmanager
def uncounted(scope: Scope) -> Iterator[None]:
    """How long a request is on its way does not count: that is the sender's time, and has a bound of its own."""
    bound: _Bound | None = scope.get(_BOUND)
    if bound is None:
        yield
        return
    bound.stop()
    yield
    bound.begin()


class _Bound:
    """One request, and the moment by which it is answered."""

    __slots__ = (
        "__weakref__",
        "_is_answered",
        "_receive",
        "_scope",
        "_seconds",
        "_send",
        "_task",
        "_telling",
        "_timer",
    )

    def __init__(self, seconds: float, scope: Scope, receive: Receive, send: Send) -> None:
        self._seconds = seconds
        self._scope = scope
        self._receive = receive
        self._send = send
        self._task = asyncio.current_task()
        self._is_answered = False
        self._telling: asyncio.Task[None] | None = None
        self._timer = self._set()

    def _set(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._seconds, self._give_up)

    def begin(self) -> None:
        self._timer = self._set()

    def stop(self) -> None:
        self._timer.cancel()

    @property
    def is_late(self) -> bool:
        return self._telling is not None

    async def send(self, message: Message) -> None:
        if not self.is_late:
            self._is_answered = True
            await self._send(message)

    def _give_up(self) -> None:
        """It is told by a task of its own: the one that does the work may not end as soon as it is told to."""
        assert self._task is not None
        if not self._is_answered:
            response = told(_late(self._scope["method"], self._seconds))
            self._telling = asyncio.ensure_future(response(self._scope, self._receive, self._send))
            self._task.cancel()

    async def end(self) -> None:
        assert self._task is not None
        assert self._telling is not None
        others = self._task.uncancel()
        await self._telling
        if others:  # somebody else told it to end, too
            raise asyncio.CancelledError


def _late(method: str, seconds: float) -> StorageError:
    if method in ("GET", "HEAD"):
        return _Late(f"There was no answer within {seconds:g} s. Nothing was changed.", code="too_slow")
    return _Late(
        f"There was no answer within {seconds:g} s, and whether this was done is not known.",
        code="outcome_unknown",
        hint="with an Idempotency-Key, send the same again: it is done once; without one, see first how things stand",
    )


class _Late(StorageError):
    retry_after = RETRY_AFTER_S
