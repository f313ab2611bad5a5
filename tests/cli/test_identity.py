"""Who commands act as, and the sign-in sessions of the console."""

import json
from collections.abc import Iterator

import httpx2
import pytest

from .conftest import Run, Work, service_on
from .test_executions import oslo

SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def service(url: str, work: Work) -> Iterator[tuple[str, str]]:
    work(oslo)  # so that there is a database
    with service_on(url) as found:
        yield found


def test_whoami_tells_the_user_of_a_database_and_the_holder_of_a_key(
    service: tuple[str, str], tenuto: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = json.loads(tenuto("whoami", "--json").out)
    assert (local["actor"], local["tenant"], local["roles"], local["method"]) == (
        "cli:ada",
        "default",
        ["admin"],
        "none",
    )
    address, key = service
    monkeypatch.setenv("TENUTO_API_KEY", key)
    there = json.loads(tenuto("--server", address, "whoami", "--json").out)
    assert (there["actor"].startswith("key:ada:"), there["method"]) == (True, "key")
    assert there["permissions"] == local["permissions"]
    assert "executions:write" in tenuto("--server", address, "whoami").out


def test_the_link_of_console_signs_in_once_and_its_session_can_be_revoked(
    service: tuple[str, str], tenuto: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, key = service
    monkeypatch.setenv("TENUTO_PUBLIC_URL", address)
    at, _, token = tenuto("console").out.strip().partition("/#token=")
    assert at == address
    with httpx2.Client(base_url=address, headers=SAME_ORIGIN, trust_env=False) as browser:
        opened = browser.post("/v1/session", json={"token": token})
        assert (opened.status_code, opened.json()["actor"], opened.json()["roles"]) == (201, "cli:ada", ["admin"])
        assert browser.post("/v1/session", json={"token": token}).status_code == 401
        (row,) = json.loads(tenuto("sessions", "ls", "--json").out)
        monkeypatch.setenv("TENUTO_API_KEY", key)
        assert json.loads(tenuto("--server", address, "sessions", "ls", "--json").out) == [row]
        assert (row["actor"], row["current"]) == ("cli:ada", False)
        assert browser.get("/v1/me").status_code == 200
        revoked = tenuto("--server", address, "sessions", "revoke", row["id"])
        assert revoked == (0, f"revoked: {row['id']}\n", "")
        assert browser.get("/v1/me").status_code == 401
    assert tenuto("sessions", "ls") == (0, "", "")
    assert tenuto("sessions", "revoke", row["id"]).code == 3


def test_console_at_a_service_names_its_address(
    service: tuple[str, str], tenuto: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, key = service
    monkeypatch.setenv("TENUTO_API_KEY", key)
    assert tenuto("--server", address, "console").out == f"{address}/ (sign in with your API key)\n"
