"""Bad surroundings get a clear error, and lose nothing."""

from pathlib import Path

import pytest

from tenuto import Engine
from tenuto.errors import StorageError


async def _open(url: str) -> str:
    with pytest.raises(StorageError) as caught:
        async with Engine(url):
            raise AssertionError("it opened")
    assert caught.value.hint
    return caught.value.code


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database, and long enough not to be taken for an empty one" * 20)
    assert await _open(f"sqlite:///{file}") == "not_a_database"
    assert file.read_text().startswith("not a database")


async def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert await _open(f"sqlite:///{tmp_path}/missing/x.db") == "unreachable"


async def test_a_server_that_is_not_there() -> None:
    assert await _open("postgresql://postgres@127.0.0.1:1/x") == "unreachable"


async def test_a_database_that_is_not_there(postgres_url: str) -> None:
    url = postgres_url.rpartition("/")[0] + "/nowhere"
    assert await _open(url) == "no_database"
