"""The built-in handler `log`."""

import logging

import pytest

from .conftest import MakeEngine
from .documents import run


async def test_a_line_is_written_without_its_secrets(make_engine: MakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    given = {"message": "paid ${input.n}, password=canary", "level": "warning", "fields": {"to": "ann@example.org"}}
    with caplog.at_level(logging.DEBUG, "tenuto.handlers.log"):
        result = await run(await make_engine(), "log", given, {"n": 3})
    (record,) = caplog.records
    assert (result.status, result.output) == ("succeeded", None)
    assert (record.levelname, record.getMessage()) == ("WARNING", "paid 3, password=[secret]")
    told = vars(record)
    assert (told["action"], told["step_id"], told["fields"]) == ("step_log", "work", {"to": "[email]"})


async def test_an_unknown_level_is_refused(make_engine: MakeEngine) -> None:
    work = (await run(await make_engine(), "log", "${input}", {"message": "x", "level": "loud"})).steps["work"]
    assert (work.error_class, work.error_code) == ("NON_RETRYABLE", "bad_with")
