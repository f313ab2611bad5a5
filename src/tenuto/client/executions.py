"""The executions of the service.

Results are built from recorded events: the client fetches them and folds them with the same kernel. What only the
service knows, such as why an execution is blocked now, is fetched as a document.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from math import inf
from typing import Final, Literal

from tenuto.authoring.program import Program
from tenuto.errors import NotFound, ResultTimeout
from tenuto.kernel.events import Entry, ExecutionStarted
from tenuto.kernel.evolve import evolve
from tenuto.kernel.state import Execution, ExecutionStatus
from tenuto.runtime.shared.filters import Filter
from tenuto.views import EventDocument, ExecutionDocument, ExecutionSummary, Until, has_reached
from tenuto.views.pages import Page
from tenuto.views.reading import Reading

from .definitions import RemotePrograms
from .lists import fetch_page, timestamp
from .refusals import check_tenant
from .stream import followed, recorded
from .transport import Transport, quoted

CACHED_EXECUTIONS: Final = 32  # of these, only new events are fetched
WAIT_SECONDS: Final = 20.0  # the longest wait of one request
STATUSES_AT_ONCE: Final = 100


class RemoteExecutions:
    """Implements `Executions` over HTTP."""

    def __init__(self, transport: Transport, programs: RemotePrograms) -> None:
        self._transport = transport
        self._programs = programs
        self._cached: OrderedDict[str, _Record] = OrderedDict()

    def last_known(self, execution_id: str) -> Execution | None:
        """The state of an execution as far as it was read."""
        known = self._cached.get(execution_id)
        return None if known is None else known.state

    async def read(self, tenant: str | None, execution_id: str) -> Reading:
        check_tenant(tenant)
        known = self._cached.get(execution_id)
        try:
            entries = await recorded(self._transport, execution_id, 0 if known is None else len(known.history))
        except NotFound:
            self._cached.pop(execution_id, None)
            raise NotFound(f"There is no execution {execution_id!r}.") from None
        if known is None:
            known = await self._cache(execution_id, entries[0])
        elif execution_id in self._cached:
            self._cached.move_to_end(execution_id)
        known.add(entries)
        return known.reading()

    async def events(self, tenant: str | None, execution_id: str, after: int, limit: int) -> list[Entry]:
        """Only new entries are fetched: the client keeps what it has read."""
        return list((await self.read(tenant, execution_id)).history[after : after + limit])

    async def read_state(self, tenant: str | None, execution_id: str) -> Reading:
        return await self.read(tenant, execution_id)

    async def _cache(self, execution_id: str, first: Entry) -> "_Record":
        assert isinstance(first.event, ExecutionStarted)
        program = await self._programs.of(first.event.definition, first.event.version)
        known = self._cached.setdefault(execution_id, _Record(program))
        if len(self._cached) > CACHED_EXECUTIONS:
            self._cached.popitem(last=False)
        return known

    async def document(self, tenant: str | None, execution_id: str) -> ExecutionDocument:
        check_tenant(tenant)
        found: ExecutionDocument = await self._transport.get(_path(execution_id), has="execution_id")
        return found

    async def follow(
        self, tenant: str | None, execution_id: str, after: int, every_ms: int
    ) -> AsyncIterator[EventDocument]:
        """Yields events. The service chooses the polling interval."""
        check_tenant(tenant)
        async for event in followed(self._transport, execution_id, after):
            yield event

    async def wait(self, tenant: str | None, execution_id: str, until: Until, timeout_ms: int | None) -> Reading:
        """Waits in long-polling requests. The service measures the time, so slow responses do not shorten the wait.

        A service that shuts down responds early; the rest of the time is then requested again.
        """
        left = inf if timeout_ms is None else timeout_ms / 1_000
        clock = asyncio.get_running_loop().time
        while True:
            seconds = min(left, WAIT_SECONDS)
            asked_at = clock()
            await self._transport.get(_path(execution_id), {"wait": until, "seconds": seconds}, has="execution_id")
            answered_at = clock()
            reading = await self.read(tenant, execution_id)
            if has_reached(reading.state, until):
                return reading
            left -= min(seconds, answered_at - asked_at)
            if left <= 0:
                raise ResultTimeout(f"Execution {execution_id} did not settle in time; it continues to run.")

    async def page(self, wanted: Filter, cursor: str | None, limit: int) -> Page[ExecutionSummary]:
        check_tenant(wanted.tenant)
        params = {
            "status": wanted.status,
            "definition": wanted.definition,
            "target_id": wanted.target_id,
            "correlation_id": wanted.correlation_id,
            "since": timestamp(wanted.since_ms),
            "before": timestamp(wanted.before_ms),
            "blocked": "true" if wanted.blocked else None,
            "version": wanted.version,
            "error_class": wanted.error_class,
            "error_code": wanted.error_code,
            "failed_step": wanted.failed_step,
            "blocked_reason": wanted.blocked_reason,
            "q": wanted.q,
            "sort": "newest" if wanted.newest_first else "oldest",
        }
        return await fetch_page(self._transport, "/v1/executions", params, cursor, limit)

    async def count(self, wanted: Filter, by: Literal["status", "definition"]) -> dict[str, int]:
        check_tenant(wanted.tenant)
        params = {"group_by": by, "definition": wanted.definition, "correlation_id": wanted.correlation_id}
        counts: dict[str, int] = (await self._transport.get("/v1/executions:count", params, has="counts"))["counts"]
        return counts

    async def statuses(self, tenant: str | None, ids: Sequence[str]) -> dict[str, ExecutionStatus]:
        found: dict[str, ExecutionStatus] = {}
        for first in range(0, len(ids), STATUSES_AT_ONCE):
            params = {"id": list(ids[first : first + STATUSES_AT_ONCE])}
            found |= (await self._transport.get("/v1/executions:statuses", params, has="statuses"))["statuses"]
        return found


class _Record:
    """An execution as far as it was read. Concurrent readers may add the same entries."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.state = Execution(program.plan)
        self.history: list[Entry] = []

    def add(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.seq == len(self.history) + 1:
                evolve(self.state, entry)
                self.history.append(entry)

    def reading(self) -> Reading:
        return Reading(self.program, self.state, self.history)


def _path(execution_id: str) -> str:
    return f"/v1/executions/{quoted(execution_id)}"
