"""Requests to start something for a tenant that has far more than it may: refused before they are read.

What such a request costs is reading it and finding out who sent it; the refusal itself is nothing. So for a moment the
service remembers the credentials whose starts were refused, by a number made from them, and asks the engine about their
tenants first. Whoever repeats a request hears 429 as well then, and its answer when he comes again.

Those that are let through are counted until they are answered: when there may be room again, a whole crowd would come
in at once, and would wait for each other, or be refused the dear way. A few at a time fill the room as fast. They count
from when they have arrived whole, because one that is sent slowly, or never, asks for nothing yet.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Scope

from tenuto.api.engine import Engine
from tenuto.errors import TenantLimit
from tenuto.runtime.shared.in_flight import tenant_is_full

from .paths import path_of

START = "/v1/executions"
REMEMBERED_S = 5.0  # after that a credential is looked at again: it may be revoked
MOST = 10_000


class RefusedStarts:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._refused: dict[int, tuple[str, float]] = {}
        self._under_way: Counter[str] = Counter()

    def note(self, authorization: str | None, tenant: str) -> None:
        """A start with this credential was refused."""
        if authorization is None:
            return
        if len(self._refused) >= MOST:
            self._refused.clear()
        self._refused[hash(authorization.encode("latin-1"))] = (tenant, time.monotonic())

    def tenant_of(self, scope: Scope) -> str | None:
        """Whose start this is, if starts with its credential were refused lately."""
        if not self._refused or scope["method"] != "POST" or path_of(scope) != START:
            return None
        for name, value in scope["headers"]:
            if name == b"authorization":
                return self._remembered(hash(value))
        return None

    def refusal(self, tenant: str) -> TenantLimit | None:
        return tenant_is_full(tenant) if self._engine.is_crowded(tenant, self._under_way[tenant]) else None

    @contextmanager
    def passing(self, tenant: str) -> Iterator[None]:
        """One of its starts, from when it was read until it is answered."""
        self._under_way[tenant] += 1
        try:
            yield
        finally:
            self._under_way[tenant] -= 1
            if not self._under_way[tenant]:
                del self._under_way[tenant]

    def _remembered(self, credential: int) -> str | None:
        tenant, at = self._refused.get(credential, ("", 0.0))
        if not tenant:
            return None
        if time.monotonic() > at + REMEMBERED_S:
            del self._refused[credential]
            return None
        return tenant
