"""The store on SQLite: one file, in WAL mode with `synchronous=FULL`. Acknowledged commits survive a loss of power."""

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

from .claims import SqliteClaims
from .commits import SqliteCommits
from .database import SqliteDatabase
from .executions import SqliteExecutions
from .file_watch import Watch
from .limits import SqliteLimits
from .mailbox import SqliteMailbox
from .sessions import SqliteSessions
from .tasks import SqliteTasks


class SqliteStore:
    """Implements `Store` on a file."""

    def __init__(
        self, path: str, *, synchronous: str = "FULL", clock: Callable[[], int] | None = None, read_only: bool = False
    ) -> None:
        database = SqliteDatabase(path, synchronous=synchronous, clock=clock, read_only=read_only)
        self.database = database
        self.sessions = SqliteSessions(database)
        self.claims = SqliteClaims(database)
        self.mailbox = SqliteMailbox(database)
        self.tasks = SqliteTasks(database.in_transaction, database.fetch, database.now)
        self.executions = SqliteExecutions(database)
        self.limits = SqliteLimits(database.in_transaction, database.fetch, database.now)
        self.registry = SqlRegistry(database)
        self.credits = SqlCredits(database)
        self.runs = SqlRuns(database)
        self.outbox = SqlOutbox(database, skip_locked=False)
        self.jobs = JobStore(database, skip_locked=False)
        self.reviews = SqlReviews(database)
        self.catalog = SqlCatalog(database)
        self.pruning = Pruning(database)
        self.notices = SqlNotices(database)
        self.progress = SqlProgress(database)
        self.operations = SqlOperations(database, self.tasks)
        self.status_changes = SqlStatusChanges(database)
        self._commits = SqliteCommits(database)
        self._watch: Watch | None = None

    def for_tenant(self, tenant: str | None) -> TenantReads:
        return TenantReads(self.executions, self.registry, self.reviews)

    async def open(self, *, migrate: bool) -> int:
        return await self.database.open(migrate=migrate)

    async def close(self) -> None:
        if self._watch is not None:
            await self._watch.close()
        await self.database.close()

    async def check(self) -> None:
        await self.database.check()

    def listen(self, hear: Callable[[Hints], None]) -> None:
        self._watch = Watch(self.database.path, self.database.data_version, hear)

    def notify(self, hint: str) -> None:
        """Does nothing: other processes watch the file."""

    async def commit(self, batch: Batch) -> Committed:
        return await self._commits.commit(batch)

    async def written(self, appends: Sequence[Append]) -> list[bool]:
        return await self._commits.written(appends)

    async def blocked(self, batch: Batch) -> Set[str]:
        """None: a writer waits for the whole transaction of another one."""
        return frozenset()
