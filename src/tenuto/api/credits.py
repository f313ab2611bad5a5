"""`Credits`: the accounts and ledgers of organisations."""

from collections.abc import AsyncIterator
from decimal import Decimal

from msgspec import Struct

from tenuto.access.confirmation import confirm
from tenuto.errors import InvalidInput, NotFound, NotPermitted, NotSupported
from tenuto.storage.credits import AccountRow, CreditStore, StoredCreditEntry, VerifiedLedger, verify_ledger
from tenuto.values.credits import Amount, decimal_text, millionths
from tenuto.values.names import DEFAULT_TENANT, check_name, check_one_of
from tenuto.views.ledger import CreditEntry, Direction
from tenuto.views.projections import AuditRow
from tenuto.views.shapes import rfc3339

from .context import EngineContext, check_reason

PAGE = 500


class Account(Struct, frozen=True, kw_only=True):
    """The credits of an organisation. `available` is the balance without what open attempts of runs hold."""

    org_id: str
    balance: Decimal
    held: Decimal
    available: Decimal


class LedgerEntry(Struct, frozen=True, kw_only=True):
    """One entry of a ledger: the fields of `GET /api/v1/credits/ledger`."""

    id: str
    n: int | None
    org_id: str
    run_id: str | None
    attempt_number: int | None
    step: dict[str, str | int] | None
    type: str
    amount: Decimal
    direction: str | None
    reverses: int | None
    key: str
    actor: str
    reason: str
    created_at: str
    available_after: Decimal | None
    hash: str | None
    failed: bool = False


def tenant_of(context: EngineContext, org_id: str | None) -> str:
    """Returns the organisation that a caller means. Only the deployment may name another one than its own."""
    check_name(org_id, "org_id")
    scope = context.scope
    own = scope.tenant
    if own is not None and org_id not in (None, own):
        is_admin = scope.roles is None or "admin" in scope.roles
        if own != DEFAULT_TENANT or not is_admin:
            raise NotPermitted(
                f"This credential belongs to organisation {own!r}, not to {org_id!r}.",
                code="tenant_mismatch",
                hint="leave `org_id` out, or use a credential of that organisation",
            )
    return org_id or own or DEFAULT_TENANT


class Credits:
    """Reads and changes the credits of organisations."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context

    @property
    def _store(self) -> CreditStore:
        if self._context.backend.credits is None:
            raise NotSupported("A client of a service has no accounts: use the service's /api/v1/credits.")
        return self._context.backend.credits()

    async def balance(self, *, org_id: str | None = None) -> Account:
        """Returns the account of an organisation."""
        self._context.scope.require("credits:read")
        return _account(await self._store.account(tenant_of(self._context, org_id)))

    async def accounts(self) -> AsyncIterator[Account]:
        """Yields the accounts of all organisations. Only the deployment may."""
        self._context.scope.require("credits:read")
        if not self._context.scope.is_deployment:
            raise NotPermitted("Only the deployment's own organisation may list accounts.", code="tenant_mismatch")
        after = ""
        while rows := await self._store.accounts(after, PAGE):
            for row in rows:
                yield _account(row)
            after = rows[-1].tenant

    async def ledger(
        self, *, org_id: str | None = None, run_id: str | None = None, after: int = 0, limit: int | None = None
    ) -> list[LedgerEntry]:
        """Returns numbered entries in their order, those after number `after`. Entries are numbered within a second."""
        self._context.scope.require("credits:read")
        tenant = tenant_of(self._context, org_id)
        found: list[LedgerEntry] = []
        while limit is None or len(found) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(found))
            rows = await self._store.entries(tenant, after, size, run_id)
            found += [entry_document(row) for row in rows]
            if len(rows) < size:
                break
            after = rows[-1].n or after
        return found

    async def topup(
        self, amount: Amount, *, org_id: str | None = None, idempotency_key: str, reason: str
    ) -> LedgerEntry:
        """Adds credits to an account. The same idempotency key adds them once."""
        return await self._post("topup", amount, "", org_id, idempotency_key, reason)

    async def adjust(
        self,
        amount: Amount,
        *,
        direction: Direction,
        org_id: str | None = None,
        idempotency_key: str,
        reason: str,
    ) -> LedgerEntry:
        """Corrects an account: `credit` adds, `debit` takes away."""
        if direction not in ("credit", "debit"):
            raise InvalidInput.at("/direction", "unknown_word", f"{direction!r} is not one of credit, debit")
        check_one_of(direction, Direction, "/direction")
        return await self._post("adjust", amount, direction, org_id, idempotency_key, reason)

    async def reverse(self, entry: int, *, org_id: str | None = None, reason: str) -> LedgerEntry:
        """Gives back a charge, once: writes an adjustment that names the charge."""
        context = self._context
        context.scope.require("credits:write")
        check_reason(reason)
        tenant = tenant_of(context, org_id)
        charge = await self._store.entry(tenant, entry)
        if charge is None:
            raise NotFound(f"The ledger of {tenant!r} has no entry {entry}.")
        if charge.type != "charge":
            raise InvalidInput.at("/entry", "not_a_charge", f"entry {entry} is a {charge.type}, not a charge")
        await self._confirm(tenant, "reverse", str(entry), reason)
        return await self._write(
            CreditEntry(
                execution=charge.execution,
                attempt=charge.attempt,
                step=charge.step,
                step_attempt=charge.step_attempt,
                tenant=tenant,
                type="adjust",
                amount=charge.amount,
                direction="credit",
                reverses=entry,
                key=f"reverse/{entry}/{context.environment.new_id()}",
                actor=context.scope.actor or "system",
                reason=reason,
                created_at=context.now,
            )
        )

    async def verify(self, *, org_id: str | None = None) -> VerifiedLedger:
        """Checks the numbers, the available credits and the hash chain of a ledger."""
        self._context.scope.require("credits:read")
        return await verify_ledger(self._store, tenant_of(self._context, org_id))

    async def _post(
        self,
        type: str,
        amount: Amount,
        direction: Direction,
        org_id: str | None,
        idempotency_key: str,
        reason: str,
    ) -> LedgerEntry:
        context = self._context
        context.scope.require("credits:write")
        check_reason(reason)
        check_name(idempotency_key, "idempotency_key")
        found = millionths(amount)
        tenant = tenant_of(context, org_id)
        await self._confirm(tenant, type, f"{direction}{found}/{idempotency_key}", reason)
        return await self._write(
            CreditEntry(
                tenant=tenant,
                type="topup" if type == "topup" else "adjust",
                amount=found,
                direction=direction,
                key=f"{type}/{idempotency_key}",
                actor=context.scope.actor or "system",
                reason=reason,
                created_at=context.now,
            )
        )

    async def _confirm(self, tenant: str, verb: str, what: str, reason: str) -> None:
        """Asks for a second person, where the deployment wants one for credits."""
        context = self._context
        if "credits" in context.scope.four_eyes:
            registry = context.backend.operations.registry
            await confirm(registry, context.scope, context.now, "credits", ("account", tenant), reason, verb, what)

    async def _write(self, row: CreditEntry) -> LedgerEntry:
        note = AuditRow(
            tenant=row.tenant,
            at=row.created_at,
            actor=row.actor,
            action=f"credits.{'reverse' if row.reverses else row.type}",
            object_type="account",
            object_id=row.tenant,
            reason=f"{decimal_text(row.amount)}: {row.reason}",
        )
        return entry_document(await self._store.post(row, note))


def _account(row: AccountRow) -> Account:
    return Account(
        org_id=row.tenant,
        balance=Decimal(decimal_text(row.balance)),
        held=Decimal(decimal_text(row.held)),
        available=Decimal(decimal_text(row.available)),
    )


def entry_document(row: StoredCreditEntry) -> LedgerEntry:
    return LedgerEntry(
        id=str(row.position),
        n=row.n,
        org_id=row.tenant,
        run_id=row.execution or None,
        attempt_number=row.attempt or None,
        step={"step": row.step, "step_attempt": row.step_attempt} if row.step else None,
        type=row.type,
        amount=Decimal(decimal_text(row.amount)),
        direction=row.direction or None,
        reverses=row.reverses or None,
        key=row.key,
        actor=row.actor,
        reason=row.reason,
        created_at=rfc3339(row.created_at),
        available_after=None if row.available_after is None else Decimal(decimal_text(row.available_after)),
        hash=row.hash,
        failed=row.failed,
    )
