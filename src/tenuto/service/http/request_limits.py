"""How many requests are under way at once: what comes beyond that is turned away at once, and may come again.

A process that takes in more than it can do makes everybody wait, and in the end answers nobody in time. So those that
it has taken stay quick, and the others hear 429 before anything was read for them. A request counts from when it has
arrived whole: whoever sends his slowly, or not at all, takes nobody's place.
"""

import random
import re
from contextlib import nullcontext
from typing import get_args
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Receive, Scope, Send

from tenuto.errors import RateExceeded
from tenuto.runtime.port import Until

from .error_responses import error_response
from .paths import path_of
from .refused_starts import RefusedStarts
from .shares import Shares

SHORTEST_WAIT_S, LONGEST_WAIT_S = 1, 4  # by chance between the two: those turned away do not all come back together
REFUSED = "tenuto.refused"  # in a request's scope: for which reason it was turned away
TAKEN = "tenuto.taken"  # in a request's scope: the tenants of whose share it has taken

_PROBES = ("/healthz", "/readyz", "/metrics")
_EXECUTION = re.compile(r"/v1/executions/[^/:]+")
_EVENTS = re.compile(r"/v1/executions/[^/:]+/events")
_NOBODY = nullcontext()
_TRUE = ("1", "on", "t", "true", "y", "yes")


class Room:
    """What one process has under way, all in all and by tenant. A most of 0 is no limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.under_way = 0
        self.shares = Shares(most)

    @property
    def is_full(self) -> bool:
        return 0 < self._most <= self.under_way


class _Barrier:
    def __init__(self, app: ASGIApp, room: Room, refused_starts: RefusedStarts) -> None:
        self._app = app
        self._room = room
        self._refused_starts = refused_starts

    def _refused(self, scope: Scope, tenant: str | None) -> ASGIApp | None:
        """What answers instead of the application. The tenant is that of a start, if some of its were refused."""
        if tenant is not None and (refusal := self._refused_starts.refusal(tenant)) is not None:
            scope[REFUSED] = "tenant"
            return error_response(refusal)
        return _turned_away(scope) if self._room.is_full and not _is_free(scope) else None


class Gate(_Barrier):
    """The outer of two: turns away before a request was read."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = None
        if scope["type"] == "http":
            refused = self._refused(scope, self._refused_starts.tenant_of(scope))
        await (refused or self._app)(scope, receive, send)


class Turnstile(_Barrier):
    """The inner one: counts those that were read."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_free(scope):
            await self._app(scope, receive, send)
            return
        tenant = self._refused_starts.tenant_of(scope)
        if (refused := self._refused(scope, tenant)) is not None:
            await refused(scope, receive, send)
            return
        room = self._room
        room.under_way += 1
        taken: list[str] = []
        scope[TAKEN] = taken
        try:
            with _NOBODY if tenant is None else self._refused_starts.passing(tenant):
                await self._app(scope, receive, send)
        finally:
            room.under_way -= 1
            for tenant in taken:
                room.shares.give(tenant)


def _is_free(scope: Scope) -> bool:
    """Probes must be heard. Whoever listens to an execution, or waits for it, is counted as a stream."""
    return scope["method"] == "GET" and (path_of(scope) in _PROBES or is_stream(scope))


def is_stream(scope: Scope) -> bool:
    """Whether somebody stays on the line until something happens."""
    if scope["method"] != "GET":
        return False
    path = path_of(scope)
    if _EVENTS.fullmatch(path) is not None:
        return _query(scope).get("follow", "true").lower() in _TRUE
    return _EXECUTION.fullmatch(path) is not None and _query(scope).get("wait") in get_args(Until)


def _query(scope: Scope) -> dict[str, str]:
    """As the routes read it: of what is given twice the last, and whatever way it is written."""
    query: bytes = scope["query_string"]
    return dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True)) if query else {}


def _turned_away(scope: Scope) -> ASGIApp:
    scope[REFUSED] = "room"
    wait = random.uniform(SHORTEST_WAIT_S, LONGEST_WAIT_S)  # noqa: S311  (nobody gains by guessing it)
    return error_response(RateExceeded("This process has as many requests under way as it takes.", retry_after=wait))
