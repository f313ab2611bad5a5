"""An export that was spoiled: the line is named, and what is wrong with it; whatever it is, there is no traceback."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenuto.checker import Checker, export_lines, records_of_lines
from tenuto.checker.export import Exporter
from tenuto.cli import main
from tenuto.errors import StorageError

from .databases import migrated
from .streams import given, stream

WRONG: tuple[Any, ...] = (None, "x", -1, 10**12, True, [7], {"x": 7})


async def _check(lines: list[bytes]) -> str:
    """What is wrong with the lines; nothing if they can be read. What is found in them is another matter."""
    try:
        async for _ in Checker().findings(records_of_lines(lines)):
            pass
    except StorageError as error:
        return f"{error.code}: {error.message}"
    return ""


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """One of each kind."""

    async def read(url: str) -> list[bytes]:
        return [line async for line in export_lines(url, "1")]

    with migrated(tmp_path_factory.mktemp("spoiled"), None) as url:
        found = asyncio.run(read(url))
    assert asyncio.run(_check(found)) == ""
    return {json.loads(line)["record"]: line for line in found}


def _spoiled(line: bytes) -> Iterator[tuple[str, bytes]]:
    """Each field with each value that is of no use there, and without it."""
    row: dict[str, Any] = json.loads(line)
    for field, value in row.items():
        others = {name: kept for name, kept in row.items() if name != field}
        yield f"without {field}", json.dumps(others).encode()
        for wrong in WRONG:
            if wrong != value or type(wrong) is not type(value):
                yield f"{field} {wrong}", json.dumps({**row, field: wrong}).encode()


async def test_whatever_stands_in_a_line_there_is_no_traceback(lines: dict[str, bytes]) -> None:
    assert len(lines) > 25
    head, end = lines["head"], lines["end"]
    for kind, line in lines.items():
        for what, spoiled in _spoiled(line):
            told = await _check([head, spoiled, end])
            assert told == "" or told.startswith("bad_record: line 2 is no record of an export ("), (kind, what, told)


async def test_whatever_stands_beside_a_history_there_is_no_traceback() -> None:
    """The first line of each kind, in its place."""
    lines = [line async for line in Exporter().lines(given(stream("undone_by_hand")))]
    seen: set[str] = set()
    for at, line in enumerate(lines):
        if (kind := json.loads(line)["record"]) not in seen:
            seen.add(kind)
            for what, spoiled in _spoiled(line):
                told = await _check([*lines[:at], spoiled, *lines[at + 1 :]])
                bad = told.startswith((f"bad_record: line {at + 1} is no record", "bad_record: the record was cut off"))
                assert told == "" or bad, (kind, what, told)


async def test_whatever_stands_in_a_history_there_is_no_traceback() -> None:
    """The first event of each kind, with every field changed."""
    lines = [line async for line in Exporter().lines(given(stream("run_replanned")))]
    seen: set[str] = set()
    for at, line in enumerate(lines):
        row = json.loads(line)
        for entry in row.get("entries", ()):
            if entry["event"]["type"] not in seen:
                seen.add(entry["event"]["type"])
                for part in (entry, entry["event"], *entry["grants"][:1]):
                    for _ in _spoil(part):
                        told = await _check([*lines[:at], json.dumps(row).encode(), *lines[at + 1 :]])
                        assert told == "" or told.startswith(f"bad_record: line {at + 1} is no record"), (entry, told)
    assert len(seen) > 5


def _spoil(part: dict[str, Any]) -> Iterator[None]:
    """Changes it in each way, and then back."""
    whole = dict(part)
    for field in whole:
        for wrong in WRONG:
            part[field] = wrong
            yield
        del part[field]
        yield
        part.clear()
        part.update(whole)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "Input data was truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "it has no `record`"),
        (b'{"record":"nonsense"}', "there is no record 'nonsense'"),
        (b'{"record":"page","at":"now"}', "Expected `int`, got `str` - at `$.at`"),
        (b'{"record":"mail","id":"m","execution":"x","received_at":1,"body":null,"verdict":null}', "`body` is null"),
        (b'{"record":"events","execution":"x","seq":1,"count":1,"entries":[{"seq":1}]}', "it has no `event`"),
        (b'{"record":"events","execution":"x","seq":1,"count":1}', "it has no `entries`"),
        (b'{"record":"page","at":' + b"[" * 100_000, "it is nested too deeply"),
        (b'{"record":"\xff"}', "it is no UTF-8"),
    ],
)
def test_the_command_says_which_line_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: bytes, why: str
) -> None:
    record = tmp_path / "record.ndjson"
    record.write_bytes(b'{"record":"head","format":2,"at":1,"tenuto":"1"}\n\n' + line + b"\n")
    assert main(["check", "--file", str(record)]) == 7
    told = capsys.readouterr().err
    assert f"tenuto: line 3 is no record of an export ({why}" in told
    assert "[bad_record]" in told
