"""The client of one service: a part for each kind of work, on one connection pool."""

from collections.abc import Callable

from tenuto.authoring.program import Program
from tenuto.errors import ServiceError, StorageError
from tenuto.kernel.definition import Definition
from tenuto.runtime.vitals import Vitals

from .audit_log import RemoteAuditLog
from .commands import RemoteCommands
from .definitions import RemoteCatalog, RemotePrograms
from .executions import RemoteExecutions
from .feed import RemoteFeed
from .identity import RemoteIdentity
from .jobs import RemoteJobs
from .limits import RemoteAdmission, RemoteLimits
from .operations import RemoteOperations
from .reviews import RemoteReviews
from .transport import Transport


class ServiceClient:
    """Implements `Lifecycle`. Its parts implement the ports that an engine needs."""

    def __init__(
        self,
        url: str,
        api_key: str | None,
        compile: Callable[[Definition], Program],
        new_id: Callable[[], str],
    ) -> None:
        transport = self._transport = Transport(url, api_key)
        self.programs = RemotePrograms(RemoteCatalog(transport), compile)
        self.executions = RemoteExecutions(transport, self.programs)
        self.commands = RemoteCommands(transport, self.programs, self.executions, new_id)
        self.reviews = RemoteReviews(transport)
        self.admission = RemoteAdmission()
        self.limits = RemoteLimits(transport)
        self.jobs = RemoteJobs(transport)
        self.audit = RemoteAuditLog(transport)
        self.identity = RemoteIdentity(transport)
        self.operations = RemoteOperations(transport)
        self.feed = RemoteFeed(transport)

    async def open(self) -> None:
        """Opens the connection pool. The first request shows whether the service is available."""
        await self._transport.open()

    async def close(self, grace_ms: int) -> None:
        await self._transport.close()

    def vitals(self) -> Vitals:
        return Vitals(is_open=self._transport.is_open, held=0, lanes={})

    async def check(self) -> None:
        try:
            await self._transport.get("/readyz", has="status")
        except ServiceError as error:
            raise StorageError(error.message, code=error.code, hint=error.hint) from error
