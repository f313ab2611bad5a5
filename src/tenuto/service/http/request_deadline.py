"""Deadlines of requests: at the deadline the request is answered and its work is canceled.

A database that does not respond, or a driver that cancels a query, may take minutes. The response then says that the
outcome is unknown: the work may have been done, or may still be done.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenuto.errors import StorageError

from .error_responses import RequestRejected, error_response, rejection_response
from .request_limits import is_stream

LONGEST_WAIT_S = 60.0  # added for streams and long polls
RETRY_AFTER_S = 5.0

_BOUND = "tenuto.bound"  # in a request's scope


class RequestDeadline:
    """`body_seconds` is the time to receive the body, `seconds` the time to answer from then on."""

    def __init__(self, app: ASGIApp, seconds: float, body_seconds: float) -> None:
        self._app = app
        self._sending = _Queue(body_seconds)
        self._usual = _Queue(seconds)
        self._attended = _Queue(seconds + LONGEST_WAIT_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        queue = self._attended if is_stream(scope) else self._usual
        bound = scope[_BOUND] = Deadline(queue, self._sending, scope, receive, send)
        queue.add(bound)
        try:
            await self._app(scope, receive, bound.send)
        except (Exception, asyncio.CancelledError):
            if not bound.is_late:
                raise
        finally:
            queue.remove(bound)
            del scope[_BOUND]  # breaks the reference cycle, so that the garbage collector has nothing to do
        if bound.is_late:
            await bound.end()


def sending(scope: Scope) -> "Deadline":
    """A context in which the body is received. A body that is late is answered with 408."""
    bound: Deadline = scope[_BOUND]
    return bound


class _Queue:
    """Requests with the same time limit: the oldest is due first, so one timer is enough.

    The timer keeps running when the queue is empty, because the next request needs it again.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._due: dict[Deadline, float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # the loop of the timer, while it runs

    def add(self, bound: "Deadline") -> None:
        loop = bound.loop
        self._due[bound] = due = loop.time() + self.seconds
        if self._loop is not loop:  # the application may be served by another loop later
            self._loop = loop
            loop.call_at(due, self._look)

    def remove(self, bound: "Deadline") -> None:
        self._due.pop(bound, None)

    def _look(self) -> None:
        loop, self._loop = asyncio.get_running_loop(), None
        while self._due:
            bound, due = next(iter(self._due.items()))
            if due > loop.time():
                self._loop = loop
                loop.call_at(due, self._look)
                return
            del self._due[bound]
            bound.give_up()


class Deadline:
    """The deadline of one request, which is answered once: by the application or at the deadline."""

    __slots__ = (
        "__weakref__",
        "_is_answered",
        "_is_sent",
        "_queue",
        "_receive",
        "_scope",
        "_send",
        "_sending",
        "_task",
        "_telling",
        "loop",
    )

    def __init__(self, queue: _Queue, sending: _Queue, scope: Scope, receive: Receive, send: Send) -> None:
        self._queue = queue
        self._sending = sending
        self._scope = scope
        self._receive = receive
        self._send = send
        self.loop = asyncio.get_running_loop()
        self._task = asyncio.current_task(self.loop)
        self._is_sent = True
        self._is_answered = False
        self._telling: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._is_sent = False
        self._queue.remove(self)
        self._sending.add(self)

    def __exit__(self, *_: object) -> None:
        self._is_sent = True
        self._sending.remove(self)
        self._queue.add(self)

    @property
    def is_late(self) -> bool:
        return self._telling is not None

    async def send(self, message: Message) -> None:
        if self._telling is None:
            self._is_answered = True
            await self._send(message)

    def give_up(self) -> None:
        """Answers in a task of its own, because the canceled task may not end at once."""
        assert self._task is not None
        if not self._is_answered:
            late = error_response(_late(self._scope["method"], self._queue.seconds))
            response = late if self._is_sent else rejection_response(RequestRejected(408))
            self._telling = asyncio.ensure_future(response(self._scope, self._receive, self._send))
            self._task.cancel()

    async def end(self) -> None:
        assert self._task is not None
        assert self._telling is not None
        others = self._task.uncancel()
        await self._telling
        if others:  # the task was also canceled from elsewhere
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
