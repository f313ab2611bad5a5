"""`tenuto check`: reads every record of the stream once and reports violations as it finds them.

Memory use does not depend on the length of the stream: only the definitions, one execution and the end of one hash
chain are held.
"""

from collections.abc import AsyncIterator, Callable

from msgspec import Struct

from tenuto.errors import StorageError
from tenuto.storage.port import DefinitionRow
from tenuto.storage.shared.records import (
    AuditRecord,
    DuplicateKey,
    ExecutionRecord,
    HeadRecord,
    HolderRecord,
    InboxRecord,
    LimitRecord,
    MigrationRecord,
    SessionRecord,
    TenantLimitRow,
)

from .audit import AUDITED_SINCE, Chains, head_is_last
from .definitions import D2, Plans
from .findings import Finding, finding, show
from .history import History
from .invariants import Family, Violated
from .lifecycle import G6
from .limits import Use, exceeded, miscounted
from .records import End, Head, Page
from .stuck import L8, SLACK_MS

family = Family("Creation and keys")

K2 = family("K2", "A tenant has at most one execution for an idempotency key.")


class Counts(Struct):
    executions: int = 0
    records: int = 0
    findings: int = 0


class Checker:
    """Checks a stream of records. `told` collects notices: facts worth knowing that need not be violations."""

    def __init__(self, *, slack_ms: int = SLACK_MS) -> None:
        self.counts = Counts()
        self.told: list[Finding] = []
        self._use = Use()
        self._slack_ms = slack_ms
        self._began = self._now = 0
        self._plans = Plans()
        self._chains = Chains()
        self._audited_since = 0
        self._history: History | None = None
        self._skipped: str | None = None  # an execution that cannot be folded; its rows still belong to it
        self._complete = False

    async def findings(self, records: AsyncIterator[Struct]) -> AsyncIterator[Finding]:
        async for record in records:
            for found in self._take(record):
                self.counts.findings += 1
                yield found
        if not self._complete:
            raise StorageError("the record was cut off: its end is missing", code="bad_record", hint="export it again")

    def _take(self, record: Struct) -> list[Finding]:
        self.counts.records += 1
        match record:
            case Head():
                self._now = self._began = record.at
            case Page():
                ended, self._now = self._ended(), record.at
                return ended
            case End():
                self._complete = True
                self.told += self._use.beyond(self._began)
                return self._ended()
            case DefinitionRow():
                return [*self._ended(), *self._define(record)]
            case ExecutionRecord():
                return [*self._ended(), *self._begin(record)]
            case MigrationRecord():
                if record.number == AUDITED_SINCE:
                    self._audited_since = record.applied_at
            case HeadRecord():
                return _asked(head_is_last, record)
            case AuditRecord():
                return _asked(self._chains.take, record, self._now - self._slack_ms)
            case HolderRecord():
                self._use.take(record)
                return self._held(record)
            case LimitRecord():
                self._use.take(record)
            case SessionRecord() | InboxRecord():
                pass
            case DuplicateKey():
                return [finding(K2, None, f"{record.executions} executions have one key", show(record))]
            case TenantLimitRow():
                self.told += exceeded(record)
                return miscounted(record)
            case _:
                return self._belongs(record)
        return []

    def _ended(self) -> list[Finding]:
        history, self._history, self._skipped = self._history, None, None
        return [] if history is None else list(history.end(self._now, self._slack_ms))

    def _define(self, row: DefinitionRow) -> list[Finding]:
        try:
            self._plans.add(row)
        except Violated as violated:
            return [finding(violated.invariant, None, violated.detail, show(row))]
        return []

    def _begin(self, row: ExecutionRecord) -> list[Finding]:
        self.counts.executions += 1
        definition = self._plans.row(row.definition, row.version)
        if definition is None:
            self._skipped = row.id
            return [finding(D2, row.id, f"{row.definition}/{row.version} is not stored", show(row))]
        try:
            plan = self._plans.plan(definition)
        except Violated as violated:
            self._skipped = row.id
            return [finding(violated.invariant, row.id, "its definition cannot be used", show(row))]
        self._history = History(row, definition, plan, self._audited_since)
        return []

    def _belongs(self, record: Struct) -> list[Finding]:
        execution: str = getattr(record, "execution", "")
        if self._history is not None and self._history.row.id == execution:
            self._history.take(record)
            return []
        if execution == self._skipped:
            return []
        return [finding(G6, execution, "there is no such execution", show(record))]

    def _held(self, row: HolderRecord) -> list[Finding]:
        ended_at = row.session_ended_at
        if ended_at is None or (ended_at and ended_at >= self._now - self._slack_ms):
            return []
        return [finding(L8, None, "a limit is held by a session that has ended", show(row))]


def _asked(rule: Callable[..., None], row: Struct, *arguments: object) -> list[Finding]:
    try:
        rule(row, *arguments)
    except Violated as violated:
        return [finding(violated.invariant, None, violated.detail, show(row))]
    return []
