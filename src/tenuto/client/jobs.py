"""The jobs of the service."""

from datetime import datetime
from typing import Any

from tenuto.views.jobs import CallbackDocument, JobAttemptDocument, JobDocument, JobStatus, JobSummary
from tenuto.views.pages import Page

from .lists import fetch_page
from .transport import Transport, quoted


class RemoteJobs:
    """Implements `JobReads` over HTTP."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

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
        params = {
            "status": status,
            "protocol": protocol,
            "since": None if since is None else since.isoformat(),
            "before": None if before is None else before.isoformat(),
        }
        return await fetch_page(self._transport, "/v1/jobs", params, cursor, limit)

    async def get(self, id: str) -> JobDocument:
        found: JobDocument = await self._transport.get(f"/v1/jobs/{quoted(id)}", has="job_id")
        return found

    async def attempts(self, id: str, step: str | None = None) -> list[JobAttemptDocument]:
        found = await self._transport.get(f"/v1/jobs/{quoted(id)}/steps", {"step_id": step}, has="items")
        rows: list[JobAttemptDocument] = found["items"]
        return rows

    async def callbacks(self, id: str, *, cursor: str | None = None, limit: int = 50) -> Page[CallbackDocument]:
        params: dict[str, Any] = {}
        return await fetch_page(self._transport, f"/v1/jobs/{quoted(id)}/callbacks", params, cursor, limit)

    async def cancel(self, id: str, *, reason: str = "") -> None:
        body = {"reason": reason}
        answer = await self._transport.send("POST", f"/v1/jobs/{quoted(id)}:cancel", body=body, repeats=False)
        answer.document("job_id")
