"""Runs, accounts and the ledger of executions in memory: the same statements on a database of its own."""

from collections.abc import Sequence

from msgspec import structs

from tenuto.storage.credits import INSERT_LEDGER, SqlCredits, StoredCreditEntry
from tenuto.storage.port import Refusal
from tenuto.storage.runs import OPEN, SqlRuns
from tenuto.storage.shared.reserves import refused_by, totals
from tenuto.views.ledger import Bookings, Reserve

from .registry import MemoryDatabase

_CHANGE = "UPDATE credit_accounts SET balance = balance + $2, held = held + $3 WHERE tenant = $1"


class MemoryCredits(SqlCredits):
    """Numbers entries when they are read: there is no process beside this one that could see them before."""

    async def entries(
        self, tenant: str, after: int, limit: int, execution: str | None = None
    ) -> list[StoredCreditEntry]:
        await self.number()
        return await super().entries(tenant, after, limit, execution)

    async def entry(self, tenant: str, n: int) -> StoredCreditEntry | None:
        await self.number()
        return await super().entry(tenant, n)


class MemoryBooks:
    """Books what decisions of the memory runtime say, without a suspension in between."""

    def __init__(self) -> None:
        self._memory = MemoryDatabase()
        self.credits = MemoryCredits(self._memory)
        self.runs = SqlRuns(self._memory)

    def available(self, tenant: str) -> int:
        rows = self._memory.execute("SELECT balance - held FROM credit_accounts WHERE tenant = $1", (tenant,))
        return rows[0][0] if rows else 0

    def refusal(self, reserve: Reserve) -> Refusal | None:
        created = self._memory.execute(f"SELECT id FROM runs WHERE id = $1 AND {OPEN}", (reserve.execution,))
        found = refused_by([reserve], [id for (id,) in created], {reserve.tenant: self.available(reserve.tenant)})
        return found.get(reserve.execution)

    def book(self, booked: Bookings, now: int) -> None:
        for row in booked.rows:
            self._memory.execute(INSERT_LEDGER, structs.astuple(row))
        for settled in booked.settlements:
            self._memory.execute(_CHANGE, (settled.tenant, settled.balance, settled.held))
        self._reserve(booked.reserves, now)

    def _reserve(self, reserves: Sequence[Reserve], now: int) -> None:
        for tenant, amount in totals(reserves, ()).items():
            self._memory.execute(_CHANGE, (tenant, 0, amount))
        for reserve in reserves:
            if reserve.starts:
                self._memory.execute("UPDATE runs SET started_at = $2 WHERE id = $1", (reserve.execution, now))
