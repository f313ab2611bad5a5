"""The machine's clock is set while a process runs: what is due fires all the same, and nothing before its time."""

import time
from pathlib import Path

import pytest

from tenuto import Engine, Handle, SagaBuilder
from tenuto.storage.sqlite.store import SqliteStore
from tenuto.values.wall_clock import WallClock

SECOND = 1_000_000_000
HOUR = 3_600 * SECOND


class Machine:
    """Two clocks. One of them can be set."""

    def __init__(self) -> None:
        self.wall = 1_000_000 * SECOND
        self.ticks = 0
        self.clock = WallClock(lambda: self.wall, lambda: self.ticks)

    def pass_by(self, seconds: float) -> int:
        self.wall += int(seconds * SECOND)
        self.ticks += int(seconds * SECOND)
        return self.clock()


def test_it_is_the_machines_time() -> None:
    machine = Machine()
    assert machine.pass_by(1.5) == 1_000_001_500


def test_set_back_it_goes_on_a_tenth_slower_until_the_machine_has_caught_up() -> None:
    machine = Machine()
    begun = machine.pass_by(0)
    machine.wall -= 10 * SECOND
    assert [machine.pass_by(1) - begun for _ in range(3)] == [900, 1_800, 2_700]
    assert machine.pass_by(97) == begun + 90_000 == machine.wall // 1_000_000
    assert machine.pass_by(1) == begun + 91_000


def test_it_is_slowed_however_often_it_is_read() -> None:
    machine = Machine()
    begun = machine.pass_by(0)
    machine.wall -= HOUR
    for _ in range(10_000):
        machine.pass_by(0.0001)
    assert machine.clock() == begun + 900


def test_set_forward_it_follows_at_once() -> None:
    machine = Machine()
    begun = machine.pass_by(0)
    machine.wall += HOUR
    assert machine.pass_by(1) == begun + 3_601_000


def test_it_reaches_what_others_have_reached_and_does_not_go_back_for_them() -> None:
    machine = Machine()
    begun = machine.pass_by(0)
    machine.clock.reach(begun + 5_000)
    assert machine.clock() == begun + 5_000
    machine.clock.reach(begun)
    assert machine.pass_by(1) == begun + 5_900


class Setting:
    """How far the machine's clock was set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ns = 0
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() + self.ns)


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Setting:
    return Setting(monkeypatch)


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/x.db"


async def _until_it_waits(handle: Handle[None]) -> None:
    blocked = None
    while blocked is None or blocked["reason"] != "timer":
        blocked = (await handle.status())["blocked"]


@pytest.mark.parametrize(("wait", "by"), [("2500ms", -HOUR), ("500ms", -HOUR), ("1h", 2 * HOUR)])
async def test_a_wait_ends_though_the_clock_is_set_meanwhile(url: str, setting: Setting, wait: str, by: int) -> None:
    """A long wait is spent outside of memory, a short one inside."""
    async with Engine(url) as engine:
        engine.register(SagaBuilder("s").wait("pause", wait))
        handle = await engine.start("s")
        await _until_it_waits(handle)
        setting.ns = by
        assert (await handle.result()).status == "succeeded"


async def test_a_process_that_is_started_after_the_clock_was_set_back_goes_on_from_there(
    tmp_path: Path, setting: Setting
) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    saga = SagaBuilder("s").wait("pause", "2500ms")
    async with Engine(url) as engine:
        engine.register(saga)
        handle = await engine.start("s")
        await _until_it_waits(handle)
    setting.ns = -HOUR
    async with Engine(url) as engine:
        engine.register(saga)
        assert (await engine.get(handle.id).result()).status == "succeeded"


async def test_a_clock_that_was_wrong_by_more_than_a_day_is_not_followed(tmp_path: Path, setting: Setting) -> None:
    store = SqliteStore(str(tmp_path / "x.db"))
    setting.ns = 1_000 * 24 * HOUR
    await store.open(migrate=True)
    await store.sessions.open("s1", "worker", "build", 60_000, ())
    ahead = store.database.now()
    await store.close()
    setting.ns = 0
    other = SqliteStore(str(tmp_path / "x.db"))
    assert await other.open(migrate=False) < ahead - 999 * 24 * HOUR // 1_000_000
    await other.close()
