"""Alive, and ready: what each needs, and what is said when it is not so."""

import asyncio
from pathlib import Path

from tenuto import Engine
from tenuto.testing import VirtualClock
from tenuto.values.redaction import redact_value
from tests.seams import session_of, set_renewed, task_loop
from tests.servers import sqlite

from .conftest import MakeEngine


async def test_an_open_engine_is_alive_and_ready(make_engine: MakeEngine) -> None:
    engine = await make_engine(telemetry=None)
    assert engine.alive().ok
    ready = await engine.ready()
    assert ready.ok, str(ready)
    assert str(ready) == "open: ok\nclaims: ok\nqueues: ok\nlease: ok\ncommits: ok\ndatabase: ok"


async def test_a_closed_engine_is_not(url: str) -> None:
    engine = Engine(url)
    assert not engine.alive().ok
    async with engine:
        assert engine.alive().ok
    assert not engine.alive().ok
    assert "open: the engine is closed" in str(engine.alive())


async def test_a_database_with_another_schema_makes_it_unready_and_leaves_it_alive(tmp_path: Path) -> None:
    file = tmp_path / "tenuto.db"
    async with Engine(f"sqlite:///{file}") as engine:
        database = sqlite.connect(str(file))
        database.execute("INSERT INTO tenuto_migrations VALUES (9999, 'later', 'x', 0)")
        ready = await engine.ready()
        assert [check.name for check in ready.checks if not check.ok] == ["database"]
        assert "newer_schema" in str(ready)
        database.execute("DELETE FROM tenuto_migrations WHERE number IN (2, 9999)")
        assert "old_schema" in str(await engine.ready())
        assert engine.alive().ok
        database.close()


async def test_a_loop_that_has_ended_is_told(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path / 'tenuto.db'}") as engine:
        guesting = task_loop(engine)
        guesting.cancel()
        await asyncio.wait([guesting])
        assert [check.name for check in engine.alive().checks if not check.ok] == ["queues"]


async def test_without_its_lease_it_is_not_ready(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path / 'tenuto.db'}", clock=VirtualClock(), lease="1h") as engine:
        session = session_of(engine).session
        set_renewed(session, 3_601)
        ready = await engine.ready()
        assert [check.name for check in ready.checks if not check.ok] == ["lease"]
        assert "last renewed 3601 s ago" in str(ready)


async def test_no_check_is_called_like_a_secret(tmp_path: Path) -> None:
    """What is wrong is said in the log by the name of the check, and there what is secret by its name is masked."""
    async with Engine(f"sqlite:///{tmp_path / 'tenuto.db'}") as engine:
        for check in (await engine.ready()).checks:
            assert redact_value("why", check.name, str) == "why", check.name
