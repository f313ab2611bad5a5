"""Reads jobs and cancels them: executions of protocols, as the command gateway shows them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import msgspec
from msgspec import structs

from tenuto.errors import InvalidTransition, NotFound
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref
from tenuto.runtime.bus.embedded import EmbeddedBus
from tenuto.runtime.bus.port import Bus
from tenuto.runtime.shared.filters import check_filter, milliseconds_at
from tenuto.runtime.shared.pages import Paging
from tenuto.storage.bus_messages import attempt_of
from tenuto.storage.ledger.port import JobRecord, JobsWanted, Ledger
from tenuto.values.names import check_name, check_one_of
from tenuto.views.jobs import (
    CallbackDocument,
    CallbackRow,
    JobAttemptDocument,
    JobDocument,
    JobStatus,
    JobSummary,
    attempt_document,
    callback_document,
    job_document,
    job_summary,
)
from tenuto.views.pages import Page

from .backend import local_dispatch
from .context import EngineContext


class JobReads(Protocol):
    """What the command line needs of jobs, here or at a service."""

    async def page(
        self,
        *,
        status: JobStatus | None = None,
        protocol: str | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[JobSummary]: ...

    async def get(self, id: str) -> JobDocument: ...

    async def attempts(self, id: str, step: str | None = None) -> list[JobAttemptDocument]: ...

    async def callbacks(self, id: str, *, cursor: str | None = None, limit: int = 50) -> Page[CallbackDocument]: ...

    async def cancel(self, id: str, *, reason: str = "") -> None: ...


class Jobs:
    """The jobs of one tenant."""

    def __init__(self, context: EngineContext, bus: Bus | None, ledger: Ledger | None = None) -> None:
        """`ledger`: where single jobs are read, if not in the engine's database."""
        self._context = context
        self._bus = bus
        self._store = local_dispatch(context.backend).jobs
        self._ledger: Ledger = ledger or self._store.ledger

    @property
    def _tenant(self) -> str | None:
        return self._context.scope.tenant

    async def page(
        self,
        *,
        status: JobStatus | None = None,
        protocol: str | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[JobSummary]:
        """Returns a page of jobs, newest first."""
        self._context.scope.require("executions:read")
        check_filter(limit=limit)
        check_name(protocol, "protocol")
        if status is not None:
            check_one_of(status, JobStatus, "/status")
        wanted = JobsWanted(
            tenant=self._tenant,
            status=status,
            protocol=protocol,
            since=milliseconds_at(since, "since"),
            before=milliseconds_at(before, "before"),
        )
        paging = Paging("jobs", structs.asdict(wanted), cursor)
        rows = await self._store.ledger.page(wanted, paging.after, limit + 1)
        last = rows[limit - 1].execution if len(rows) > limit else None
        return paging.page([job_summary(row) for row in rows[:limit]], last)

    async def record(self, id: str) -> JobRecord:
        """Reads a job from the ledger alone."""
        self._context.scope.require("executions:read")
        return await self._find(self._ledger, id)

    async def _find(self, ledger: Ledger, id: str) -> JobRecord:
        found = await ledger.job(self._tenant, id)
        if found is None:
            raise NotFound(f"There is no job {id!r}.")
        return found

    async def get(self, id: str) -> JobDocument:
        """Returns a job with its steps."""
        found = await self.record(id)
        return job_document(found.job, found.steps)

    async def attempts(self, id: str, step: str | None = None) -> list[JobAttemptDocument]:
        """Returns the attempts of a job, or of one of its steps."""
        self._context.scope.require("executions:read")
        found = await self._ledger.attempts(self._tenant, id, step)
        if found is None:
            raise NotFound(f"There is no job {id!r}.")
        return [attempt_document(row) for row in found]

    async def callbacks(self, id: str, *, cursor: str | None = None, limit: int = 50) -> Page[CallbackDocument]:
        """Returns a page of the callbacks of a job, oldest first."""
        self._context.scope.require("executions:read")
        check_filter(limit=limit)
        await self._find(self._store.ledger, id)
        paging = Paging("callbacks", {"job": id, "tenant": self._tenant}, cursor)
        rows = await self._store.callbacks.page(self._tenant, id, paging.after, limit + 1)
        last = rows[limit - 1].id if len(rows) > limit else None
        return paging.page([callback_document(row) for row in rows[:limit]], last)

    async def step_service(self, id: str, step: str) -> str | None:
        """Returns the service that owns a step; None if there is no such step."""
        found = await self._store.ledger.job(self._tenant, id)
        row = None if found is None else next((row for row in found.steps if row.key == f"STEP:{step}"), None)
        return None if row is None else str(msgspec.json.decode(row.body)["service"])

    async def note_callback(self, row: CallbackRow) -> None:
        """Adds a callback to the log on which no execution has decided."""
        await self._store.callbacks.add(row)

    async def cancel(self, id: str, *, reason: str = "") -> None:
        """Cancels a job. Nothing more of it starts; its current step ends it. Repeating it changes nothing."""
        context = self._context
        context.scope.require("executions:write")
        found = await self._find(self._store.ledger, id)
        if found.job.status in ("SUCCEEDED", "FAILED_FINAL", "CANCELLED"):
            raise InvalidTransition(f"The job is {found.job.status}: it cannot be cancelled.")
        if found.job.status != "CANCELLING":
            await context.command(id, f.Cancel(at=context.now, actor=context.scope.actor, reason=reason))
        await self._withdraw(id)

    async def _withdraw(self, id: str) -> None:
        """Takes directives back that no worker has received. Their steps end, and with them the job."""
        if not isinstance(self._bus, EmbeddedBus):
            return
        refs = _refs_of(await self._bus.withdraw(id))
        if refs:
            await self._context.tell(id, f.Returned(at=self._context.now, refs=refs))


def _refs_of(messages: Sequence[str]) -> tuple[Ref, ...]:
    attempts = [attempt_of(message) for message in messages]
    return tuple(Ref(step, "forward", number) for _, step, number in attempts)
