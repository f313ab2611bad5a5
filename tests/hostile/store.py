"""A store that fails as databases do, around a real one.

Each call draws its fault. The worst are those after which nobody knows: the call was applied and its answer lost, or it
is applied only after its caller was told that the connection broke. A read never shows more than the database had, but
its answer may be old by the time it comes; that is all that the port promises about reads.
"""

from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from tenuto.errors import StorageError
from tenuto.storage.port import Batch, Committed, Hints, Mail, Store, TenantReads

from .faults import Rates, gave_way, refused, unreachable
from .loop import pause
from .situations import SITUATIONS

T = TypeVar("T")

# fmt: off
WRITES = frozenset({
    "commit", "open", "end", "reap", "claim", "claim_by_tenant", "claim_one", "post", "add", "replace",
    "move", "park", "begin_notice", "end_notice", "run", "run_all", "take", "begin", "answer", "give_back", "beat",
    "sweep", "published", "put_off", "exchange", "set", "set_tenant", "save", "serve", "try_again",
})
# fmt: on
# fmt: off
PARTS = frozenset({
    "sessions", "claims", "executions", "progress", "notices", "operations", "tasks", "outbox", "limits", "catalog",
    "registry", "reviews", "pruning",
})
# fmt: on


class Surroundings(Protocol):
    """What decides which fault comes next."""

    rates: Rates
    mail_at_once: int
    outage: str | None  # "read-only", "full" or "out of reach", for a while

    def happens(self, share: float) -> bool: ...

    def between(self, least_ms: float, most_ms: float) -> float: ...

    def sometimes(self, name: str, happened: object = True) -> None: ...

    def shuffle(self, items: list[Any]) -> None: ...

    def later(self, seconds: float, call: Callable[[], Awaitable[object]]) -> None:
        """On the server's side, whatever becomes of the client."""


class HostileStore:
    def __init__(self, store: Store, around: Surroundings) -> None:
        self._store = store
        self.around = around

    if not TYPE_CHECKING:  # to whoever asks it is a `Store`, and the rest of one

        def __getattr__(self, name: str) -> Any:
            found = getattr(self._store, name)
            if name in PARTS:
                return Part(found, self)
            return found if not iscoroutinefunction(found) else _hostile(self, name, found)

    @property
    def mailbox(self) -> "HostileMailbox":
        return HostileMailbox(self._store.mailbox, self)

    def for_tenant(self, tenant: str | None) -> TenantReads:
        return cast(
            TenantReads,
            SimpleNamespace(
                **{name: Part(part, self) for name, part in self._store.for_tenant(tenant)._asdict().items()}
            ),
        )

    async def open(self, *, migrate: bool) -> int:
        return await self._store.open(migrate=migrate)

    async def close(self) -> None:
        await self._store.close()

    async def commit(self, batch: Batch) -> Committed:
        """One that only lets go of something may be applied long after its error: nothing in it is there already."""
        around = self.around
        if batch.standings and not batch.appends and around.happens(10 * around.rates.applied_late):
            self._met("applied after the error", "commit")
            around.later(around.between(1, 3_000) / 1_000, lambda: self._let_go_late(batch))
            raise unreachable()
        return await self.call("commit", lambda: self._store.commit(batch))

    async def _let_go_late(self, batch: Batch) -> Committed:
        return await self._store.commit(batch)

    def listen(self, hear: Callable[[Hints], None]) -> None:
        around = self.around

        def distorted(hints: Hints) -> None:
            if around.happens(around.rates.hint_lost):
                around.sometimes("hint lost")
                return
            hear(hints)
            if around.happens(around.rates.hint_doubled):
                around.sometimes("hint doubled")
                hear(hints)

        self._store.listen(distorted)

    async def call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        around = self.around
        if around.happens(0.3):
            await pause(around.between(0, 3) / 1_000)
        if around.outage is not None and (around.outage == "out of reach" or name in WRITES):
            around.sometimes(around.outage)
            raise unreachable() if around.outage == "out of reach" else refused(around.outage.replace("-", "_"))
        rates = around.rates
        if around.happens(rates.fails_before):
            self._met("fails before", name)
            raise unreachable()
        if around.happens(rates.busy):
            self._met("gave way to another", name)
            raise gave_way()
        if name in WRITES and around.happens(rates.applied_late):
            self._met("applied after the error", name)
            around.later(around.between(1, 400) / 1_000, call)
            raise unreachable()
        if around.happens(rates.slow):
            self._met("slow", name)
            await pause(around.between(50, 1_500) / 1_000)
        answer = await call()
        if around.happens(rates.applied_but_error):
            self._met("applied, but an error", name)
            raise unreachable()
        if around.happens(rates.stale):
            self._met("answer is old when it comes", name)
            await pause(around.between(20, 1_500) / 1_000)
        elif name in WRITES or around.happens(0.1):
            await pause(around.between(0, 3) / 1_000)
        return answer

    def _met(self, fault: str, name: str) -> None:
        self.around.sometimes(fault)
        named = f"{'limit' if name == 'exchange' else name}: {fault}"
        if named in SITUATIONS:
            self.around.sometimes(named)


class Part:
    """Tasks, the outbox and so on: the same faults."""

    def __init__(self, part: Any, store: HostileStore) -> None:
        self._part = part
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        return found if not iscoroutinefunction(found) else _hostile(self._store, name, found)


class HostileMailbox(Part):
    async def post(self, id: str, execution: str, body: bytes) -> tuple[int, str | None] | None:
        posted: tuple[int, str | None] | None = await self._store.call(
            "post", lambda: self._part.post(id, execution, body)
        )
        if self._store.around.happens(self._store.around.rates.posted_twice):
            self._store.around.sometimes("letter posted twice")
            posted = await self._store.call("post", lambda: self._part.post(id, execution, body))
        return posted

    async def unread(self, session: str) -> list[Mail]:
        found: list[Mail] = await self._store.call("unread", lambda: self._part.unread(session))
        around = self._store.around
        around.sometimes("more letters than are read at once", len(found) == around.mail_at_once)
        if len(found) > 1 and around.happens(around.rates.shuffled):
            around.sometimes("letters out of order")
            around.shuffle(found)
        return found


def _hostile(store: HostileStore, name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def called(*given: Any, **named: Any) -> Any:
        return await store.call(name, lambda: method(*given, **named))

    return called


def hostile(store: Store, around: Surroundings) -> Store:
    return cast(Store, HostileStore(store, around))


async def whatever_comes(call: Callable[[], Awaitable[object]]) -> None:
    """A server finishes what its client has long given up."""
    try:
        await call()
    except StorageError:
        return
