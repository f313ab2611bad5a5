"""Accounts and the ledger of credits. Written once for both dialects.

Law 1: `balance` and `held` of an account change under the lock of its row, and checks forbid values below zero. Ends of
       run attempts do not wait for that lock: they leave a row in `credit_changes`, which the next reserve applies.
Law 2: ledger entries are only inserted. One sequencer numbers them per organisation, in the order in which they were
       committed, with the credits that are available after each and a hash chain.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct, structs

from tenuto.errors import IdempotencyConflict, InsufficientCredits, StorageError
from tenuto.values.credits import decimal_text
from tenuto.views.ledger import CreditEntry
from tenuto.views.projections import AuditRow

from .statements import Statement, Statements, marks, noting

AT_ONCE = 500
MAX_CONFLICTS = 20
_MARK = b"\x02"  # what is hashed here is a ledger entry


class StoredCreditEntry(CreditEntry, frozen=True, kw_only=True):
    """A ledger entry as it is stored. Without `n`, it has no number yet."""

    position: int
    n: int | None = None
    available_after: int | None = None
    hash: str | None = None


class AccountRow(Struct, frozen=True):
    """The account of an organisation, with every settlement applied."""

    tenant: str
    balance: int = 0
    held: int = 0

    @property
    def available(self) -> int:
        return self.balance - self.held


class LedgerHead(Struct, frozen=True):
    """The last number of an organisation's ledger, the credits available after it, and its hash."""

    n: int = 0
    available: int = 0
    hash: str = ""


class CreditStore(Protocol):
    async def account(self, tenant: str) -> AccountRow: ...

    async def accounts(self, after: str, limit: int) -> list[AccountRow]: ...

    async def entries(
        self, tenant: str, after: int, limit: int, execution: str | None = None
    ) -> list[StoredCreditEntry]:
        """Numbered entries in their order, from this number on."""

    async def entry(self, tenant: str, n: int) -> StoredCreditEntry | None: ...

    async def find(self, tenant: str, key: str) -> StoredCreditEntry | None: ...

    async def post(self, row: CreditEntry, note: AuditRow) -> StoredCreditEntry:
        """Writes a topup or an adjustment with its key. The same key and amount return the same entry."""

    async def number(self) -> int:
        """Numbers the entries that have no number, and returns how many. Two who do it at once do it once."""

    async def head(self, tenant: str) -> LedgerHead: ...

    async def oldest_unnumbered(self) -> int | None:
        """When the oldest entry without a number was written."""


_ENTRY = ", ".join(StoredCreditEntry.__struct_fields__)
_ROW = CreditEntry.__struct_fields__
INSERT_LEDGER = f"INSERT INTO credit_ledger ({', '.join(_ROW)}) VALUES ({marks(len(_ROW))})"
_NUMBERING = (
    "UPDATE credit_ledger SET n = CAST(v.value ->> 0 AS bigint), available_after = CAST(v.value ->> 1 AS bigint), "
    "hash = v.value ->> 2 FROM json_each($1) AS v "
    "WHERE credit_ledger.position = CAST(v.key AS bigint) AND credit_ledger.n IS NULL"
)
_PENDING = "coalesce((SELECT sum(c.{}) FROM credit_changes c WHERE c.tenant = a.tenant), 0)"
_ACCOUNT = (
    f"SELECT a.tenant, CAST(a.balance + {_PENDING.format('balance')} AS bigint), "
    f"CAST(a.held + {_PENDING.format('held')} AS bigint) FROM credit_accounts a"
)
APPLY_CHANGES = (
    "UPDATE credit_accounts SET "
    "balance = balance + coalesce((SELECT sum(c.balance) FROM credit_changes c WHERE c.tenant = $1), 0), "
    "held = held + coalesce((SELECT sum(c.held) FROM credit_changes c WHERE c.tenant = $1), 0) WHERE tenant = $1"
)
FORGET_CHANGES = "DELETE FROM credit_changes WHERE tenant = $1"


def signed(row: CreditEntry) -> int:
    """Returns what an entry changes of the available credits. A charge takes from what was reserved before."""
    match row.type:
        case "topup" | "refund":
            return row.amount
        case "reserve":
            return -row.amount
        case "adjust":
            return row.amount if row.direction == "credit" else -row.amount
        case "charge":
            return 0


def ledger_hash(before: str, row: CreditEntry, n: int, available_after: int) -> str:
    """Returns SHA-256 over a mark, the hash before, and the entry as canonical JSON."""
    told = {name: getattr(row, name) for name in _ROW}
    told.update(n=n, available_after=available_after)
    body = msgspec.json.encode(told, order="sorted")
    return hashlib.sha256(_MARK + bytes.fromhex(before) + body).hexdigest()


class SqlCredits:
    """Implements `CreditStore` on a store's database."""

    def __init__(self, statements: Statements) -> None:
        self._sql = statements

    async def account(self, tenant: str) -> AccountRow:
        rows = await self._sql.fetch(f"{_ACCOUNT} WHERE a.tenant = $1", (tenant,))
        return AccountRow(*rows[0]) if rows else AccountRow(tenant)

    async def accounts(self, after: str, limit: int) -> list[AccountRow]:
        query = f"{_ACCOUNT} WHERE a.tenant > $1 ORDER BY a.tenant LIMIT $2"
        return [AccountRow(*row) for row in await self._sql.fetch(query, (after, limit))]

    async def entries(
        self, tenant: str, after: int, limit: int, execution: str | None = None
    ) -> list[StoredCreditEntry]:
        of_run = "" if execution is None else " AND execution = $4"
        values = (tenant, after, limit, *(() if execution is None else (execution,)))
        where = f"tenant = $1 AND n IS NOT NULL AND n > $2{of_run} ORDER BY n LIMIT $3"
        return await self._entries(where, values)

    async def entry(self, tenant: str, n: int) -> StoredCreditEntry | None:
        found = await self._entries("tenant = $1 AND n = $2", (tenant, n))
        return found[0] if found else None

    async def find(self, tenant: str, key: str) -> StoredCreditEntry | None:
        found = await self._entries("tenant = $1 AND key = $2", (tenant, key))
        return found[0] if found else None

    async def _entries(self, where: str, values: Sequence[object]) -> list[StoredCreditEntry]:
        rows = await self._sql.fetch(f"SELECT {_ENTRY} FROM credit_ledger WHERE {where}", values)
        return [_entry(row) for row in rows]

    async def post(self, row: CreditEntry, note: AuditRow) -> StoredCreditEntry:
        statements: list[Statement] = [
            (f"{INSERT_LEDGER} ON CONFLICT DO NOTHING RETURNING key", structs.astuple(row)),
            ("INSERT INTO credit_accounts (tenant, balance, held) VALUES ($1, 0, 0) ON CONFLICT DO NOTHING",
             (row.tenant,)),
            # The lock first, and then a statement that sees what was committed while it was waited for.
            ("UPDATE credit_accounts SET balance = balance WHERE tenant = $1", (row.tenant,)),
            (APPLY_CHANGES, (row.tenant,)),
            (FORGET_CHANGES, (row.tenant,)),
            ("UPDATE credit_accounts SET balance = balance + $2 WHERE tenant = $1", (row.tenant, signed(row))),
            *noting(note),
        ]  # fmt: skip
        try:
            written = await self._sql.run_all(statements)
        except StorageError as error:
            if error.code != "bad_data":
                raise
            raise await self._insufficient(row) from None
        found = await self.find(row.tenant, row.key)
        if found is None:  # another entry reverses the same charge
            raise IdempotencyConflict(f"Entry {row.reverses} is reversed already.", code="already_reversed")
        if not written and _meaning(found) != _meaning(row):
            raise IdempotencyConflict(f"The idempotency key {row.key!r} was used before with another request.")
        return found

    async def _insufficient(self, row: CreditEntry) -> InsufficientCredits:
        return not_enough(row.amount, (await self.account(row.tenant)).available)

    # -- The sequencer -------------------------------------------------------------------------------------------------

    async def number(self) -> int:
        numbered = conflicts = 0
        while conflicts < MAX_CONFLICTS and (tenants := await self._unnumbered_tenants()):
            for tenant in tenants:
                head = await self.head(tenant)  # first: if others number meanwhile, the head has moved
                rows = await self._entries("n IS NULL AND tenant = $1 ORDER BY position LIMIT $2", (tenant, AT_ONCE))
                if rows and await self._chain(tenant, head, rows):
                    numbered += len(rows)
                elif rows:
                    conflicts += 1
        return numbered

    async def _unnumbered_tenants(self) -> list[str]:
        first = "SELECT tenant FROM credit_ledger WHERE n IS NULL ORDER BY position LIMIT $1"
        rows = await self._sql.fetch(f"SELECT DISTINCT tenant FROM ({first}) AS waiting", (AT_ONCE,))
        return [tenant for (tenant,) in rows]

    async def _chain(self, tenant: str, old: LedgerHead, rows: list[StoredCreditEntry]) -> bool:
        numbers: dict[int, tuple[int, int, str]] = {}
        n, available, hash = old.n, old.available, old.hash
        for row in rows:
            n, available = n + 1, available + signed(row)
            hash = ledger_hash(hash, row, n, available)
            numbers[row.position] = (n, available, hash)
        new = (tenant, n, available, hash)
        if old.n:
            move = (
                "UPDATE credit_ledger_head SET n = $2, available = $3, hash = $4 "
                "WHERE tenant = $1 AND n = $5 RETURNING n"
            )
            guard: Statement = (move, (*new, old.n))
        else:
            add = (
                "INSERT INTO credit_ledger_head (tenant, n, available, hash) VALUES ($1, $2, $3, $4) "
                "ON CONFLICT DO NOTHING RETURNING n"
            )
            guard = (add, new)
        return await self._sql.run_all([guard, (_NUMBERING, (json.dumps(numbers),))])

    async def head(self, tenant: str) -> LedgerHead:
        rows = await self._sql.fetch("SELECT n, available, hash FROM credit_ledger_head WHERE tenant = $1", (tenant,))
        return LedgerHead(*rows[0]) if rows else LedgerHead()

    async def oldest_unnumbered(self) -> int | None:
        rows = await self._sql.fetch(
            "SELECT created_at FROM credit_ledger WHERE n IS NULL ORDER BY position LIMIT 1", ()
        )
        return rows[0][0] if rows else None


class VerifiedLedger(Struct, frozen=True):
    """The result of checking a ledger. `broken_at`: the first number that does not fit; None if everything fits."""

    tenant: str
    entries: int
    available: int
    broken_at: int | None


async def verify_ledger(credits: CreditStore, tenant: str) -> VerifiedLedger:
    """Checks numbers, available credits and hashes of an organisation's ledger, and that they add up to its account."""
    n, available, hash = 0, 0, ""
    while rows := await credits.entries(tenant, n, AT_ONCE):
        for row in rows:
            after = available + signed(row)
            expected = ledger_hash(hash, row, n + 1, after)
            if (row.n, row.available_after, row.hash) != (n + 1, after, expected) or after < 0:
                return VerifiedLedger(tenant, n, available, n + 1)
            n, available, hash = n + 1, after, expected
    head = await credits.head(tenant)
    fits = head == LedgerHead(n, available, hash)
    return VerifiedLedger(tenant, n, available, None if fits else n + 1)


def not_enough(needed: int, available: int) -> InsufficientCredits:
    return InsufficientCredits(
        f"{decimal_text(needed)} credits are needed, and {decimal_text(available)} are available.",
        hint="top up the account with `engine.credits.topup`",
        needed=decimal_text(needed),
        available=decimal_text(available),
    )


def _meaning(row: CreditEntry) -> tuple[Any, ...]:
    return (row.type, row.amount, row.direction, row.reverses)


def _entry(row: Sequence[Any]) -> StoredCreditEntry:
    named = dict(zip(StoredCreditEntry.__struct_fields__, row, strict=True))
    return StoredCreditEntry(**{**named, "failed": bool(named["failed"])})
