"""What is read alike from both databases: statements with numbered parameters that both understand."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from tenuto.storage.catalog import Catalog, SqlCatalog
from tenuto.storage.port import (
    ASIDE_AT_ONCE,
    MAIL_AT_ONCE,
    BacklogRow,
    Claim,
    ExecutionRow,
    Loaded,
    Mail,
    Notice,
    ProgressRow,
    SessionRow,
    SnapshotRow,
    Wanted,
    plan_pairs,
)
from tenuto.storage.pruning import Pruning
from tenuto.storage.registry import Registry, SqlRegistry, Statement
from tenuto.storage.reviews import SqlReviews
from tenuto.storage.tasks import TaskStore

from . import queries

T = TypeVar("T")

AT_ONCE = 1_000

_ASLEEP = "owner IS NULL AND wake_at IS NULL AND parked = ''"
_UNHEARD = f"""
SELECT DISTINCT m.execution FROM mailbox m JOIN executions e ON e.id = m.execution
WHERE m.verdict IS NULL AND {_ASLEEP} LIMIT $1"""
_ASIDE = """
SELECT e.id FROM {plans} p CROSS JOIN executions e
WHERE e.owner IS NULL AND e.wake_at IS NOT NULL AND e.definition = p.definition AND e.version = p.version
    AND e.priority IN (0, 1) AND e.wake_at <= {clock} + $2 AND e.parked <> '' LIMIT $3"""
_MAIL = """
SELECT m.id, m.execution, m.body, m.received_at FROM mailbox m JOIN executions e ON e.id = m.execution
WHERE m.verdict IS NULL AND e.owner = $1 ORDER BY m.received_at, m.id LIMIT $2"""


class SqlReading(ABC):
    """The half of a `Store` that needs nothing but `fetch`, and what is built on that."""

    _MARK: ClassVar[str]  # how the statements of `queries` mark a parameter
    _AMONG: ClassVar[str]  # how something is looked for in a list that is a parameter
    _PLANS: ClassVar[str]  # pairs of a definition and a version, from a parameter that is a JSON array
    tasks: TaskStore

    @abstractmethod
    async def fetch(self, query: str, values: Sequence[object]) -> list[Any]: ...

    @abstractmethod
    async def run(self, query: str, values: Sequence[object]) -> list[Any]: ...

    @abstractmethod
    async def run_all(self, statements: Sequence[Statement]) -> bool: ...

    @abstractmethod
    def _listed(self, values: Sequence[str]) -> object:
        """A list, as a parameter."""

    @abstractmethod
    def _clock(self) -> str:
        """The time, as an expression."""

    @property
    def registry(self) -> Registry:
        return SqlRegistry(self)

    @property
    def pruning(self) -> Pruning:
        return Pruning(self)

    @property
    def reviews(self) -> SqlReviews:
        return SqlReviews(self)

    @property
    def catalog(self) -> Catalog:
        return SqlCatalog(self)

    # Executions -----------------------------------------------------------------------------------------------------

    async def row(self, id: str) -> ExecutionRow | None:
        rows = await self.fetch(f"SELECT {queries.EXECUTION_COLUMNS} FROM executions WHERE id = $1", (id,))
        return row_of(ExecutionRow, rows[0]) if rows else None

    async def executions(self, wanted: Wanted, after: str | None, limit: int) -> list[ExecutionRow]:
        rows = await self.fetch(*queries.executions(wanted, after, limit, self._MARK))
        return [row_of(ExecutionRow, row) for row in rows]

    async def count(self, wanted: Wanted, by: str) -> dict[str, int]:
        return {row[0]: row[1] for row in await self.fetch(*queries.count(wanted, by, self._MARK))}

    async def statuses(self, ids: Sequence[str], tenant: str | None = None) -> dict[str, str]:
        query = f"SELECT id, status FROM executions WHERE id {self._AMONG} AND tenant = coalesce($2, tenant)"
        return {row[0]: row[1] for row in await self.fetch(query, (self._listed(ids), tenant))}

    async def owned(self, session: str) -> list[Claim]:
        query = "SELECT id, epoch, definition, version FROM executions WHERE owner = $1"
        return [Claim(*row) for row in await self.fetch(query, (session,))]

    async def bodies(self, id: str, first: int, last: int) -> list[bytes]:
        query = "SELECT body FROM events WHERE execution = $1 AND seq + count > $2 AND seq <= $3 ORDER BY seq"
        return [body for (body,) in await self.fetch(query, (id, first, last))]

    async def progress(self, executions: Sequence[str]) -> list[ProgressRow]:
        query = f"SELECT execution, path, body FROM progress WHERE execution {self._AMONG}"
        return [ProgressRow(*row) for row in await self.fetch(query, (self._listed(executions),))]

    async def aside(self, plans: Sequence[str], within_ms: int) -> list[str]:
        query = _ASIDE.format(plans=self._PLANS, clock=self._clock())
        values = (json.dumps(plan_pairs(plans)), within_ms, ASIDE_AT_ONCE)
        return [id for (id,) in await self.fetch(query, values)]

    async def rouse(self) -> int:
        """Makes due what nobody owns, is not due, and has mail. How many."""
        rows = await self.fetch(_UNHEARD, (AT_ONCE,))
        if not rows:
            return 0
        query = f"UPDATE executions SET wake_at = {self._clock()} WHERE id {self._AMONG} AND {_ASLEEP} RETURNING id"
        return len(await self.run(query, (self._listed([id for (id,) in rows]),)))

    # Mail -----------------------------------------------------------------------------------------------------------

    async def mail(self, session: str) -> list[Mail]:
        return [row_of(Mail, row) for row in await self.fetch(_MAIL, (session, MAIL_AT_ONCE))]

    async def verdicts(self, ids: Sequence[str]) -> dict[str, bytes]:
        query = f"SELECT id, verdict FROM mailbox WHERE id {self._AMONG} AND verdict IS NOT NULL"
        return {row[0]: row[1] for row in await self.fetch(query, (self._listed(ids),))}

    # Workers --------------------------------------------------------------------------------------------------------

    async def sessions(self) -> list[SessionRow]:
        return [row_of(SessionRow, row) for row in await self.fetch(queries.SESSIONS, ())]

    async def backlog(self) -> list[BacklogRow]:
        served = sorted({queue for each in await self.tasks.serving() for queue in each.queues})
        query = queries.backlog(self._clock(), self._AMONG)
        return [BacklogRow(*row) for row in await self.fetch(query, (self._listed(served),))]

    async def notice(self, key: str) -> Notice | None:
        rows = await self.fetch(f"SELECT {queries.NOTICE_COLUMNS} FROM sent_notifications WHERE key = $1", (key,))
        return row_of(Notice, rows[0]) if rows else None


def row_of(kind: type[T], values: Sequence[Any]) -> T:
    """A row as its struct. SQLite has no booleans, and its struct would take the numbers as they are."""
    fields: tuple[str, ...] = kind.__struct_fields__  # type: ignore[attr-defined]  # only structs are passed
    named = dict(zip(fields, values, strict=True))
    if "cancel_requested" in named:
        named["cancel_requested"] = bool(named["cancel_requested"])
    return kind(**named)


def loaded(row: Sequence[Any], bodies: list[bytes]) -> Loaded:
    """From the columns of an execution, and then `seq` and `body` of its snapshot."""
    *columns, seq, snapshot = row
    execution = row_of(ExecutionRow, columns)
    return Loaded(execution, None if seq is None else SnapshotRow(execution.id, seq, snapshot), bodies)
