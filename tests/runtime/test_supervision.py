"""What goes on for ever says what stops it, and does not fill the log with it."""

import asyncio

import pytest

from tenuto.errors import StorageError
from tenuto.runtime.supervision import supervised


async def test_what_the_database_says_is_told_once_until_all_is_well(caplog: pytest.LogCaptureFixture) -> None:
    def fail(code: str) -> None:
        with supervised("Looking"):
            raise StorageError("it is away", code=code)

    async def be_well() -> None:
        with supervised("Looking"):
            pass

    for code in ("unreachable", "unreachable", "full", "full"):
        fail(code)
        await asyncio.create_task(be_well())  # another engine's round says nothing about this one
    assert [record.__dict__["code"] for record in caplog.records] == ["unreachable", "full"]
    with supervised("Looking"):
        pass
    fail("full")
    assert [record.__dict__["code"] for record in caplog.records] == ["unreachable", "full", "full"]
    assert caplog.records[0].getMessage() == "Looking failed, and will be tried again: it is away"
    with supervised("Looking"):
        pass
