"""Limits on the requests that one process works on at once: in all, by tenant, and for starts of full tenants.

A process that accepts more than it can do makes every client wait. So requests beyond the limit get 429 before any of
their body is read, and the accepted ones stay fast. A request counts from the moment it has arrived completely: a
client that sends slowly, or not at all, occupies no slot.
"""

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import get_args
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Receive, Scope, Send

from tenuto.api.engine import Engine
from tenuto.errors import RateExceeded, TenantLimit
from tenuto.runtime.shared.in_flight import tenant_is_full
from tenuto.views import Until

from .error_responses import error_response
from .paths import path_of

MAX_STREAMS = 1_000
MIN_RETRY_S, MAX_RETRY_S = 1, 4  # a random delay between the two spreads the retries of rejected clients
REMEMBERED_S = 5.0  # after that a credential is checked again: it may be revoked
MAX_REMEMBERED = 10_000

REJECTED = "tenuto.rejected"  # in a request's scope: the reason of its 429, for the metrics
_SHARES = "tenuto.shares"  # in a request's scope: the tenants whose share it holds

_START = "/v1/executions"
_PROBES = ("/healthz", "/readyz", "/metrics")
_EXECUTION = re.compile(r"/v1/executions/[^/:]+")
_EVENTS = re.compile(r"/v1/executions/[^/:]+/events")
_FEED = "/v1/feed"
_NO_START = nullcontext()
_TRUE = ("1", "on", "t", "true", "y", "yes")


class RequestLimiter:
    """The limiter of one application. Two of its layers use it: one before the body is read, one after it."""

    def __init__(self, max_requests: int, engine: Engine) -> None:
        """A `max_requests` of 0 is no limit."""
        self._max_requests = max_requests
        self.in_flight = 0
        self.shares = TenantShares(max_requests)
        self.streams = TenantShares(MAX_STREAMS, "open streams")
        self.refused_starts = RefusedStarts(engine)

    def reject_early(self, app: ASGIApp) -> ASGIApp:
        """The outer layer: rejects a request by its head."""

        async def layer(scope: Scope, receive: Receive, send: Send) -> None:
            rejection = None
            if scope["type"] == "http":
                rejection = self._rejection(scope, self.refused_starts.tenant_of(scope))
            await (rejection or app)(scope, receive, send)

        return layer

    def hold_slot(self, app: ASGIApp) -> ASGIApp:
        """The inner layer: holds a slot for a request that has arrived, until it is answered."""

        async def layer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or _is_exempt(scope):
                await app(scope, receive, send)
                return
            tenant = self.refused_starts.tenant_of(scope)
            if (rejection := self._rejection(scope, tenant)) is not None:
                await rejection(scope, receive, send)
                return
            self.in_flight += 1
            held: list[str] = []
            scope[_SHARES] = held
            try:
                with _NO_START if tenant is None else self.refused_starts.retried(tenant):
                    await app(scope, receive, send)
            finally:
                self.in_flight -= 1
                for holder in held:
                    self.shares.release(holder)

        return layer

    def take_share(self, scope: Scope, tenant: str) -> None:
        """Counts a request against its tenant, once the tenant is known. Raises `RateExceeded`."""
        held: list[str] | None = scope.get(_SHARES)
        if held is not None and not held:
            count_rejection(scope, "share", self.shares.take, tenant)
            held.append(tenant)

    def _rejection(self, scope: Scope, tenant: str | None) -> ASGIApp | None:
        """The response that replaces the application's. `tenant`: whose start this is, if it was refused recently."""
        if tenant is not None and (refusal := self.refused_starts.refusal(tenant)) is not None:
            scope[REJECTED] = "tenant"
            return error_response(refusal)
        if 0 < self._max_requests <= self.in_flight and not _is_exempt(scope):
            scope[REJECTED] = "room"
            delay = random.uniform(MIN_RETRY_S, MAX_RETRY_S)  # noqa: S311  (not a secret)
            return error_response(
                RateExceeded("This process is at its limit of concurrent requests.", retry_after=delay)
            )
        return None


class TenantShares:
    """Counts slots by tenant. One tenant gets at most three quarters of them, so that it cannot block the others."""

    def __init__(self, limit: int, slots: str = "concurrent requests") -> None:
        """A `limit` of 0 is no limit."""
        self._limit = limit
        self._of_one = max(1, limit - limit // 4)
        self._slots = slots
        self._by_tenant: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._by_tenant.total()

    def take(self, tenant: str) -> None:
        """Raises `RateExceeded` if no slot is left for this tenant."""
        if 0 < self._limit <= len(self):
            raise RateExceeded(f"This process is at its limit of {self._slots}.", retry_after=5)
        if self._limit > 0 and self._by_tenant[tenant] >= self._of_one:
            raise RateExceeded(f"This tenant has used its share of {self._slots}.", retry_after=2)
        self._by_tenant[tenant] += 1

    @contextmanager
    def held(self, tenant: str) -> Iterator[None]:
        self.take(tenant)
        try:
            yield
        finally:
            self.release(tenant)

    def release(self, tenant: str) -> None:
        self._by_tenant[tenant] -= 1
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]


class RefusedStarts:
    """Remembers the credentials whose starts were refused because their tenant is at its in-flight limit.

    Reading and authenticating such a start costs far more than refusing it. So while a credential is remembered, the
    engine is asked about its tenant first, and further starts get 429 unread; a repeated start gets 429 too, and its
    response when it is sent again.

    Once the tenant may have capacity, only a few of its starts are let through at a time. They use it as fast as many
    starts would, which would only wait or be refused at full cost.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._by_credential: dict[int, tuple[str, float]] = {}
        self._in_flight: Counter[str] = Counter()

    def remember(self, authorization: str | None, tenant: str) -> None:
        """Notes that a start with this credential was refused."""
        if authorization is None:
            return
        if len(self._by_credential) >= MAX_REMEMBERED:
            self._by_credential.clear()
        self._by_credential[hash(authorization.encode("latin-1"))] = (tenant, time.monotonic())

    def tenant_of(self, scope: Scope) -> str | None:
        """The tenant of this start, if a start with its credential was refused recently."""
        if not self._by_credential or scope["method"] != "POST" or path_of(scope) != _START:
            return None
        for name, value in scope["headers"]:
            if name == b"authorization":
                return self._remembered(hash(value))
        return None

    def refusal(self, tenant: str) -> TenantLimit | None:
        return tenant_is_full(tenant) if self._engine.is_crowded(tenant, self._in_flight[tenant]) else None

    @contextmanager
    def retried(self, tenant: str) -> Iterator[None]:
        """Counts a start that is let through, until it is answered."""
        self._in_flight[tenant] += 1
        try:
            yield
        finally:
            self._in_flight[tenant] -= 1
            if not self._in_flight[tenant]:
                del self._in_flight[tenant]

    def _remembered(self, credential: int) -> str | None:
        tenant, at = self._by_credential.get(credential, ("", 0.0))
        if not tenant:
            return None
        if time.monotonic() > at + REMEMBERED_S:
            del self._by_credential[credential]
            return None
        return tenant


def count_rejection(scope: Scope, reason: str, take: Callable[[str], None], key: str) -> None:
    """Takes a slot or a token. If none is left, notes the reason for the metrics and raises `RateExceeded`."""
    try:
        take(key)
    except RateExceeded:
        scope[REJECTED] = reason
        raise


def _is_exempt(scope: Scope) -> bool:
    """Probes are always answered. Streams and long polls have a limit of their own."""
    return scope["method"] == "GET" and (path_of(scope) in _PROBES or is_stream(scope))


def is_stream(scope: Scope) -> bool:
    """Whether the request stays open until something happens: an event stream or a long poll."""
    if scope["method"] != "GET":
        return False
    path = path_of(scope)
    if path == _FEED or _EVENTS.fullmatch(path) is not None:
        return _query(scope).get("follow", "true").lower() in _TRUE
    return _EXECUTION.fullmatch(path) is not None and _query(scope).get("wait") in get_args(Until)


def _query(scope: Scope) -> dict[str, str]:
    """The query as the routes read it: the last of repeated parameters counts."""
    query: bytes = scope["query_string"]
    return dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True)) if query else {}
