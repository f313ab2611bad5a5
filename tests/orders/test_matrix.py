"""Every fault of every step, and a cancel at every moment of each. In virtual time on memory and SQLite.

Afterwards money and stock are conserved, nothing was charged twice, no order is both refunded and confirmed, every
event has reached the consumer once, and the engine's invariants hold.
"""

import asyncio
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from tests.draw import draw
from tests.servers.databases import database, empty_database
from tests.servers.postgres import Server

from .matrix import Case, Run, cases
from .shop import Shop
from .virtual import LEASE, run_virtually

SHARDS = 20  # of the cases with a cancel: about 110 in each
DRAWN = 3
DRAWN_ON_POSTGRES = 12

OTHERS = ("inventory", "payment", "consumer")  # services that do without an engine
ALL = list(cases())


async def play(shop: Shop, given: list[Case]) -> list[str]:
    async with shop:
        return await Run(shop, given).wrong()


@cache
def canceled() -> list[Case]:
    """Each case with a cancel at each moment that its order meets when it is not canceled."""

    async def moments() -> list[Case]:
        async with Shop(lease=LEASE) as shop:
            run = Run(shop, ALL)
            assert await run.wrong() == []
            return list(run.moments())

    return run_virtually(moments)


def test_the_cases_are_many() -> None:
    """If moments were no longer noticed, nothing would be canceled."""
    assert len(ALL) >= 100
    assert len(canceled()) > 2_000
    assert len({case.cancel for case in canceled()}) > 30


def test_every_fault_of_every_step_on_sqlite(tmp_path: Path) -> None:
    assert run_virtually(lambda: play(Shop.on_files(tmp_path, lease=LEASE), ALL)) == []


@pytest.mark.prove(drawn=DRAWN)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_cancel_at_every_moment_in_memory(shard: int) -> None:
    given = canceled()[shard::SHARDS]
    assert run_virtually(lambda: play(Shop(lease=LEASE), given)) == []


@pytest.mark.prove(drawn=DRAWN)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_cancel_at_every_moment_on_sqlite(shard: int, tmp_path: Path) -> None:
    given = canceled()[shard::SHARDS]
    assert run_virtually(lambda: play(Shop.on_files(tmp_path, lease=LEASE), given)) == []


def test_drawn_cases_on_postgresql(postgres_server: Server) -> None:
    """In real time, so cases that wait for several timeouts are left out."""
    quick = [case for case in (*ALL, *canceled()) if all(fault.times < 3 for fault in case.faults)]
    with ExitStack() as stack:
        urls = {name: stack.enter_context(empty_database(postgres_server)) for name in OTHERS}
        shop = Shop(stack.enter_context(database(postgres_server)), databases=urls.__getitem__)
        assert asyncio.run(play(shop, draw("orders postgres", quick, DRAWN_ON_POSTGRES))) == []
