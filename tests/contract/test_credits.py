"""Credits: accounts, the ledger, and what concurrent starts may reserve."""

import asyncio
from typing import Any

import pytest

from tenuto import Engine
from tenuto.errors import IdempotencyConflict, InsufficientCredits, InvalidInput, NotFound, NotPermitted
from tenuto.runs import LedgerEntry

from .conftest import MakeEngine
from .surveys import Doing, eventually, survey


async def topup(engine: Engine, amount: Any, key: str = "k") -> LedgerEntry:
    return await engine.credits.topup(amount, org_id="acme", idempotency_key=key, reason="invoice 1")


async def ledger(engine: Engine, size: int) -> list[LedgerEntry]:
    """The ledger, once it has so many numbered entries."""
    return await eventually(lambda: engine.credits.ledger(org_id="acme"), lambda found: len(found) >= size)


async def test_a_topup_counts_once_per_key(engine: Engine) -> None:
    await topup(engine, "500.25")
    await topup(engine, "500.25")
    account = await engine.credits.balance(org_id="acme")
    assert [str(account.balance), str(account.held), str(account.available)] == ["500.25", "0", "500.25"]
    with pytest.raises(IdempotencyConflict):
        await topup(engine, "1")
    found = await ledger(engine, 1)
    assert [(each.n, each.type, str(each.available_after)) for each in found] == [(1, "topup", "500.25")]


@pytest.mark.parametrize("amount", ["-1", "0", 1.5, "1e3", "0.0000001", "a", True, "", "12345678901"])
async def test_an_amount_is_a_decimal_above_zero_with_six_places(engine: Engine, amount: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        await topup(engine, amount)
    assert refused.value.problems[0].code == "invalid_amount"
    assert await engine.credits.ledger(org_id="acme") == []


async def test_an_adjustment_may_not_take_more_than_is_available(engine: Engine) -> None:
    await topup(engine, "10")
    adjust = engine.credits.adjust
    await adjust("4", direction="debit", org_id="acme", idempotency_key="a", reason="an error")
    with pytest.raises(InsufficientCredits):
        await adjust("7", direction="debit", org_id="acme", idempotency_key="b", reason="an error")
    await adjust("1", direction="credit", org_id="acme", idempotency_key="c", reason="an error")
    found = await ledger(engine, 3)
    assert [(each.type, each.direction, str(each.available_after)) for each in found] == [
        ("topup", None, "10"),
        ("adjust", "debit", "6"),
        ("adjust", "credit", "7"),
    ]
    assert (await engine.credits.verify(org_id="acme")).broken_at is None


async def test_a_charge_is_reversed_once(make_engine: MakeEngine) -> None:
    engine = await make_engine(survey(Doing()))
    await topup(engine, "100")
    made = await engine.runs.create("survey", ["north.example"], org_id="acme")
    await made.start()
    await made.output()
    found = await ledger(engine, 4)
    charge = next(each.n for each in found if each.type == "charge")
    reserve = next(each.n for each in found if each.type == "reserve")
    assert charge is not None
    assert reserve is not None
    await engine.credits.reverse(charge, org_id="acme", reason="charged twice")
    with pytest.raises(IdempotencyConflict) as again:
        await engine.credits.reverse(charge, org_id="acme", reason="charged twice")
    assert again.value.code == "already_reversed"
    with pytest.raises(InvalidInput) as wrong:
        await engine.credits.reverse(reserve, org_id="acme", reason="charged twice")
    assert wrong.value.problems[0].code == "not_a_charge"
    with pytest.raises(NotFound):
        await engine.credits.reverse(99, org_id="acme", reason="charged twice")
    assert str((await engine.credits.balance(org_id="acme")).available) == "100"


async def test_only_admins_change_credits(engine: Engine) -> None:
    operator = engine.scoped(tenant="acme", actor="ann", roles=["operator"])
    with pytest.raises(NotPermitted):
        await operator.credits.topup("1", idempotency_key="k", reason="why not")
    assert str((await operator.credits.balance()).balance) == "0"


async def test_as_many_concurrent_starts_as_the_account_pays_for(make_engine: MakeEngine) -> None:
    doing = Doing()
    gate = doing.gate("north.example")
    engine = await make_engine(survey(doing))
    await topup(engine, "2000")
    made = [await engine.runs.create("survey", ["north.example"], org_id="acme") for _ in range(40)]
    started = await asyncio.gather(*(each.start() for each in made), return_exceptions=True)
    refused = [each for each in started if isinstance(each, InsufficientCredits)]
    assert (len(started) - len(refused), len(refused)) == (20, 20)
    account = await engine.credits.balance(org_id="acme")
    assert [str(account.held), str(account.available)] == ["2000", "0"]
    gate.set()
    ran = [each for each, outcome in zip(made, started, strict=True) if not isinstance(outcome, Exception)]
    await asyncio.gather(*(each.output() for each in ran))
    account = await engine.credits.balance(org_id="acme")
    assert [str(account.balance), str(account.held)] == ["1750", "0"]
    await ledger(engine, 1 + 20 * 3)
    assert (await engine.credits.verify(org_id="acme")).broken_at is None
