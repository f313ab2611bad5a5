"""The store on PostgreSQL 15 and newer: many workers on one database."""

from collections.abc import Callable, Sequence, Set

from tenuto.storage.catalog import SqlCatalog
from tenuto.storage.credits import SqlCredits
from tenuto.storage.jobs import JobStore
from tenuto.storage.outbox import SqlOutbox
from tenuto.storage.port import Append, Batch, Committed, Hints, TenantReads
from tenuto.storage.pruning import Pruning
from tenuto.storage.registry import SqlRegistry
from tenuto.storage.reviews import SqlReviews
from tenuto.storage.runs import SqlRuns
from tenuto.storage.shared.notices import SqlNotices
from tenuto.storage.shared.operations import SqlOperations
from tenuto.storage.shared.progress import SqlProgress
from tenuto.storage.shared.status_changes import SqlStatusChanges

from .claims import PostgresClaims
from .commits import PostgresCommits
from .database import PostgresDatabase
from .executions import PostgresExecutions
from .limits import PostgresLimits
from .mailbox import PostgresMailbox
from .notifications import Notifier
from .sessions import PostgresSessions
from .tasks import PostgresTasks


class PostgresStore:
    """Implements `Store`."""

    def __init__(self, dsn: str, *, read_only: bool = False, serializable: bool = False) -> None:
        database = PostgresDatabase(dsn, read_only=read_only)
        self.database = database
        self.sessions = PostgresSessions(database)
        self.claims = PostgresClaims(database)
        self.mailbox = PostgresMailbox(database)
        self.tasks = PostgresTasks(database.lend)
        self.executions = PostgresExecutions(database)
        self.limits = PostgresLimits(database.lend)
        self.registry = SqlRegistry(database)
        self.credits = SqlCredits(database)
        self.runs = SqlRuns(database)
        self.outbox = SqlOutbox(database, skip_locked=True)
        self.jobs = JobStore(database, skip_locked=True)
        self.reviews = SqlReviews(database)
        self.catalog = SqlCatalog(database)
        self.pruning = Pruning(database)
        self.notices = SqlNotices(database)
        self.progress = SqlProgress(database)
        self.operations = SqlOperations(database, self.tasks)
        self.status_changes = SqlStatusChanges(database)
        self._commits = PostgresCommits(database, serializable=serializable)
        self._notifier: Notifier | None = None

    def for_tenant(self, tenant: str | None) -> TenantReads:
        database = self.database.for_tenant(tenant)
        if database is self.database:
            return TenantReads(self.executions, self.registry, self.reviews)
        return TenantReads(PostgresExecutions(database), SqlRegistry(database), SqlReviews(database))

    async def open(self, *, migrate: bool) -> int:
        return await self.database.open(migrate=migrate)

    async def close(self) -> None:
        if self._notifier is not None:
            await self._notifier.close()
        await self.database.close()

    async def check(self) -> None:
        await self.database.check()

    def listen(self, hear: Callable[[Hints], None]) -> None:
        self._notifier = Notifier(self.database.connect, hear)

    def notify(self, hint: str) -> None:
        if self._notifier is not None:
            self._notifier.notify(hint)

    async def commit(self, batch: Batch) -> Committed:
        return await self._commits.commit(batch)

    async def written(self, appends: Sequence[Append]) -> list[bool]:
        return await self._commits.written(appends)

    async def blocked(self, batch: Batch) -> Set[str]:
        return await self._commits.blocked(batch)
