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


async def test_fields_are_masked_by_their_names_too_and_numbers_stay_numbers(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {
        "password": "hunter2",
        "pass": "x",
        "pin_token": 1234,
        "user": {"name": "ann", "api_key": "k", "cards": [4111111111111111]},
        "a": 1,
        "rate": 0.5,
        "paid": True,
        "note": None,
    }
    with caplog.at_level(logging.INFO, "tenuto.handlers.log"):
        await run(await make_engine(), "log", {"message": "x", "fields": fields}, {})
    (record,) = caplog.records
    assert vars(record)["fields"] == {
        "password": "[secret]",
        "pass": "[secret]",
        "pin_token": "[secret]",
        "user": {"name": "ann", "api_key": "[secret]", "cards": ["[card]"]},
        "a": 1,
        "rate": 0.5,
        "paid": True,
        "note": None,
    }


async def test_an_unknown_level_is_refused(make_engine: MakeEngine) -> None:
    work = (await run(await make_engine(), "log", "${input}", {"message": "x", "level": "loud"})).steps["work"]
    assert (work.error_class, work.error_code) == ("NON_RETRYABLE", "bad_with")
