"""Whose executions a worker takes: a tenant with many does not keep the others out."""

import asyncio
import os
from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from tenuto import Engine, SagaBuilder
from tenuto.storage import Store
from tenuto.storage.port import TENANTS_AT_ONCE, Batch, Turn, plan_pairs
from tenuto.storage.postgres.store import PostgresStore
from tenuto.storage.sqlite.store import SqliteStore
from tests.contract.doubles import Stage, until_blocked
from tests.durable.rows import append, standing, start
from tests.seams import (
    POSTGRES_CLAIM_BY_TENANT,
    SQLITE_DUE_OF_TENANT,
    SQLITE_NEXT_PLAN,
    durable_runtime,
    held_by,
    runtime_of,
)


async def _waiting(store: Store, *tenants: str, wake_at: int = 1, priority: int = 0, plan: str = "d/1") -> None:
    """One execution for each, which nobody owns and which is due."""
    batch = Batch(session="s1")
    definition, version = plan_pairs([plan])[0]
    for number, tenant in enumerate(tenants):
        id = f"{tenant}-{number}-{priority}-{wake_at}"
        row = start(id, owner=None, tenant=tenant)
        batch.starts.append(replace(row, priority=priority, definition=definition, version=version))
        batch.standings[id] = standing(id, release=True, wake_at=wake_at)
        batch.appends.append(append(id))
    assert not (await store.commit(batch)).refused


async def _claim(store: Store, *, after: str = "", full: tuple[str, ...] = (), each: int = 2, limit: int = 100) -> str:
    turn = Turn(after=after, full=full, each=each, limit=limit)
    claims, next_after = await store.claims.claim_by_tenant("s1", ["d/1"], turn)
    tenants = Counter(claim.id.partition("-")[0] for claim in claims)
    return " ".join([*(f"{tenant}{number}" for tenant, number in sorted(tenants.items())), f"/{next_after}"])


async def test_tenants_are_claimed_for_in_turn(store: Store) -> None:
    await store.sessions.open("s1", "worker", "build", 60_000, ())
    await _waiting(store, *["a"] * 50, "b", *["c"] * 3)
    assert await _claim(store) == "a2 b1 c2 /"
    assert await _claim(store, full=("a",)) == "c1 /"
    assert await _claim(store, full=("a",)) == "/"
    assert await _claim(store, after="a") == "/"
    assert await _claim(store, each=60, limit=7) == "a7 /"


async def test_only_what_is_due_and_can_be_run_is_claimed_in_turn(store: Store) -> None:
    await store.sessions.open("s1", "worker", "build", 60_000, ())
    await _waiting(store, "a", wake_at=10**14)
    await _waiting(store, "b")
    assert await _claim(store) == "b1 /"
    await _waiting(store, "c")
    claims, _ = await store.claims.claim_by_tenant("s1", ["other/1"], Turn(after="", full=(), each=9, limit=9))
    assert claims == []
    await store.sessions.end("s1")
    assert await _claim(store) == "/"


async def test_what_is_urgent_is_claimed_first_of_its_tenant(store: Store) -> None:
    await store.sessions.open("s1", "worker", "build", 60_000, ())
    await _waiting(store, "a", "a")
    await _waiting(store, "a", priority=1, wake_at=2)
    claims, _ = await store.claims.claim_by_tenant("s1", ["d/1"], Turn(after="", full=(), each=1, limit=9))
    assert [claim.id for claim in claims] == ["a-0-1-2"]


async def test_plans_of_a_tenant_are_claimed_in_order_and_those_of_others_are_stepped_over(store: Store) -> None:
    await store.sessions.open("s1", "worker", "build", 60_000, ())
    for wake_at, plan in enumerate(("c/1", "d/2", "a/1", "d/11", "a/b/3", "d/1", "z/1", "a/1"), 1):
        await _waiting(store, "a", wake_at=wake_at, plan=plan)
    await _waiting(store, "a", wake_at=9, plan="a/b/3", priority=1)
    mine, found = ["a/b/3", "d/11", "d/2", "a/1", "b/1", "z/2"], []
    while claims := (await store.claims.claim_by_tenant("s1", mine, Turn(after="", full=(), each=1, limit=9)))[0]:
        found += [f"{claim.definition}/{claim.version}" for claim in claims]
    assert found == ["a/b/3", "d/2", "a/1", "d/11", "a/b/3", "a/1"]


async def test_what_nobody_here_can_run_is_not_looked_at(store: Store) -> None:
    """However much of it a tenant has: the next plan, and what is due of a plan, are each found in the index."""
    looks = await (_looks_on_sqlite(store) if isinstance(store, SqliteStore) else _looks_on_postgresql(store))
    next_plan, due = (look for look in looks if "definition" in look)
    assert "tenant" in next_plan
    assert all(column in due for column in ("tenant", "definition", "version", "priority", "wake_at")), due


async def _looks_on_sqlite(store: SqliteStore) -> list[str]:
    asked = [(SQLITE_NEXT_PLAN, ("a", "d", 1)), (SQLITE_DUE_OF_TENANT, ("a", '[["d", 1]]', 0, 1, 9))]
    plans = [await store.database.fetch(f"EXPLAIN QUERY PLAN {query}", values) for query, values in asked]
    looks = [line for plan in plans for *_, line in plan if "executions_turn" in line]
    assert not any("(definition,version)" in look for look in looks), "it would read all of the plan that it comes from"
    return [" ".join(looks[:-1]), looks[-1]]


async def _looks_on_postgresql(store: Store) -> list[str]:
    assert isinstance(store, PostgresStore)
    await store.sessions.open("s1", "worker", "build", 60_000, ())
    await _waiting(store, *["a"] * 1_000, plan="others/1")
    async with store.database.pool.acquire() as connection:
        await connection.execute("ANALYZE executions")
        rows = await connection.fetch(f"EXPLAIN {POSTGRES_CLAIM_BY_TENANT}", "s1", ["d/1"], ["a"], 2, 9)
    lines = [line for (line,) in rows]
    assert not any("Seq Scan on executions" in line for line in lines)
    return [line for line in lines if "Index Cond" in line]


async def test_many_tenants_are_looked_at_a_part_at_a_time(store: Store) -> None:
    await store.sessions.open("s1", "worker", "build", 60_000, ())
    names = [f"t{number:04}" for number in range(TENANTS_AT_ONCE + 10)]
    await _waiting(store, *names)
    await _waiting(store, *names, wake_at=10**14)
    turn = Turn(after="", full=(), each=1, limit=1_000)
    first, after = await store.claims.claim_by_tenant("s1", ["d/1"], turn)
    rest, end = await store.claims.claim_by_tenant("s1", ["d/1"], replace(turn, after=after))
    assert (len(first), after, len(rest), end) == (TENANTS_AT_ONCE, names[TENANTS_AT_ONCE - 1], 10, "")


async def test_a_tenant_with_many_executions_does_not_keep_others_out(url: str) -> None:
    """They were there first, hold all slots, and more of them wait than the worker has slots for."""
    gate = Stage().gate("held")
    saga = SagaBuilder("s").step("work", gate.pass_through).build()
    async with Engine(url, worker=False) as client:
        client.register(saga)
        await client.start_many("s", [None] * 300, tenant="large")
        async with Engine(url, slots=4, threads=1) as worker:
            worker.register(saga)
            await gate.reached.wait()
            small = await client.start("s", tenant="small")
            runtime = durable_runtime(worker)
            while small.id not in held_by(runtime).records:
                await asyncio.to_thread(os.sched_yield)
            gate.open()
            assert (await small.result()).succeeded


async def test_what_waits_for_a_limit_keeps_nothing_else_out(url: str) -> None:
    async def work() -> None: ...

    limited = SagaBuilder("limited").step("work", work, limits=["l"]).build()
    free = SagaBuilder("free").step("work", work).build()
    async with Engine(url, worker=False) as client:
        client.register(limited, free)
        await client.limit("l", rate="1/d")
        batch = await client.start_many("limited", [None] * 60)
        handle = await client.start("free")
        async with Engine(url, slots=4, threads=1, shutdown_grace="0s") as worker:
            worker.register(limited, free)
            assert (await handle.result()).succeeded
            waiting = await _all_but_one(worker, batch.execution_ids)
            await until_blocked(worker.get(waiting[0]), "limit")


async def _all_but_one(engine: Engine, ids: Sequence[str]) -> list[str]:
    """Those that are left when one has succeeded: the rate lets one start."""
    while True:
        statuses = await runtime_of(engine).executions.statuses(None, ids)
        waiting = [id for id, status in statuses.items() if status != "succeeded"]
        if len(waiting) < len(ids):
            return waiting
