"""Dead letters at a service: commands go to its own addresses, and tell what those tell."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tenuto.cli.exit_codes import Exit
from tests.servers.databases import database

from .conftest import Run, Work, service_on
from .test_executions import atlantis


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "sqlite":
        yield url
        return
    with database(request.getfixturevalue("postgres_server")) as place:
        monkeypatch.setenv("TENUTO_URL", place)
        yield place


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr("tenuto.api.bulk_commands.VERDICT_SECONDS", 60)


ON_LETTERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dlq ls": ("GET", "/v1/dlq", {}),
    "dlq show {letter}": ("GET", "/v1/dlq/{letter}", {}),
    "dlq show nothing.1": ("GET", "/v1/dlq/nothing.1", {}),
    "dlq reprocess {letter} --reason r": ("POST", "/v1/dlq/{letter}:reprocess", {"reason": "r"}),
    "dlq reprocess nothing.1 --reason r": ("POST", "/v1/dlq/nothing.1:reprocess", {"reason": "r"}),
    "dlq reprocess --all --reason r": ("POST", "/v1/dlq:reprocess", {"reason": "r", "limit": 100}),
    "dlq reprocess --definition none --reason r": (
        "POST",
        "/v1/dlq:reprocess",
        {"definition": "none", "reason": "r", "limit": 100},
    ),
    "dlq discard {letter} --reason r": ("POST", "/v1/dlq/{letter}:discard", {"reason": "r"}),
    "dlq discard nothing.1 --reason r": ("POST", "/v1/dlq/nothing.1:discard", {"reason": "r"}),
}


@pytest.mark.parametrize("role", ["viewer", "operator", "approver", "author", "worker"])
def test_who_may_do_what_about_dead_letters_is_as_over_http(
    url: str, tenuto: Run, work: Work, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """The same codes, and the exit code that goes with each; of what is decided already, too."""
    work(atlantis)
    (letter,) = [row["id"] for row in json.loads(tenuto("dlq", "ls", "--json").out)]
    exits = {403: Exit.NOT_PERMITTED, 404: Exit.NOT_FOUND, 409: Exit.REFUSED}
    monkeypatch.delenv("TENUTO_SERVER", raising=False)
    with (
        service_on(url, "default", role) as (address, key),
        httpx2.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}) as client,
    ):
        monkeypatch.setenv("TENUTO_SERVER", address)
        monkeypatch.setenv("TENUTO_API_KEY", key)
        for _ in range(2):
            for line, (method, path, body) in ON_LETTERS.items():
                given = tenuto(*line.format(letter=letter).split(), "--json")
                told = client.request(method, path.format(letter=letter), json=body or None)
                if given.code == Exit.OK:  # then it is done, and HTTP hears that
                    assert told.status_code in (200, 409), line
                    continue
                assert (given.code, json.loads(given.err)["code"]) == (
                    exits[told.status_code],
                    told.json()["code"],
                ), line


def test_all_of_them_are_reached_a_part_at_a_time(
    url: str, tenuto: Run, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        work(atlantis)
    letters = [row["id"] for row in json.loads(tenuto("dlq", "ls", "--json").out)]
    monkeypatch.setattr("tenuto.cli.dlq.AT_ONCE", 1)
    with service_on(url) as (address, key):
        monkeypatch.setenv("TENUTO_SERVER", address)
        monkeypatch.setenv("TENUTO_API_KEY", key)
        done = tenuto("dlq", "reprocess", "--all", "--limit", "2", "--reason", "the bank is back", "--json")
        assert (done.code, json.loads(done.out)) == (0, {"reprocessed": letters[:2], "pending": [], "refused": []})
        rest = tenuto("dlq", "reprocess", "--all", "--reason", "the bank is back")
        assert rest == (0, f"1 execution will be retried\n  {letters[2].rpartition('.')[0]}\n", "")
