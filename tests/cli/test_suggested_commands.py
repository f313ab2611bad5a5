"""Commands that are offered work when they are copied: where the one that offered them worked."""

import asyncio
import re
import shlex
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tenuto import Engine
from tenuto.cli.connection import Connection

from . import shop
from .conftest import Done, Run, service_on
from .test_executions import atlantis, expenses, invoice


@pytest.fixture
def elsewhere(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database that nothing but an option names, with a name that a shell would take apart."""
    monkeypatch.delenv("TENUTO_URL")
    return f"sqlite:///{tmp_path}/the shop.db"


def work_at(url: str, job: Callable[[Engine], Coroutine[Any, Any, str]], tenant: str = "default") -> str:
    async def with_engine() -> str:
        async with Engine(url) as engine:
            engine.register(*shop.ALL)
            return await job(engine.scoped(tenant=tenant, actor="ada", roles=["admin"]))

    return asyncio.run(with_engine())


def offered(done: Done) -> list[str]:
    return [line.strip() for line in done.out.splitlines() if line.startswith("    tenuto ")]


def copied(line: str) -> list[str]:
    """As a shell reads it, with a reason filled in."""
    return shlex.split(line.replace("TEXT", "because"))[1:]


@pytest.mark.parametrize("tenant", ["default", "acme"])
@pytest.mark.parametrize("command", [["show"], ["watch", "--until", "settled"]])
def test_the_options_for_a_database_are_repeated(elsewhere: str, tenuto: Run, tenant: str, command: list[str]) -> None:
    id = work_at(elsewhere, expenses, tenant)
    options = ["--url", elsewhere, *(["--tenant", tenant] if tenant != "default" else [])]
    approve, *_ = offered(tenuto(*options, *command, id))
    assert copied(approve) == [*options, "approve", id, "consent"]
    done = tenuto(*copied(approve))
    assert (done.code, done.out, done.err) == (0, f"approved: expenses {id}\n", "")


def test_the_options_for_a_server_are_repeated_and_the_key_is_not(
    elsewhere: str, tenuto: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = work_at(elsewhere, atlantis)
    with service_on(elsewhere) as (address, key):
        monkeypatch.setenv("TENUTO_API_KEY", key)
        shown = tenuto("--server", address, "dlq", "show", id)
        lines = offered(shown)
        assert [copied(line)[:2] for line in lines] == [["--server", address]] * 3
        assert key not in shown.out
        assert tenuto(*copied(next(line for line in lines if " discard " in line))).code == 0


def test_what_a_line_of_watch_offers_has_them_too(elsewhere: str, tenuto: Run) -> None:
    id = work_at(elsewhere, invoice)
    done = tenuto("--url", elsewhere, "watch", id, "--timeout", "1ms")
    assert f". tenuto --url '{elsewhere}' signal {id} paid --payload JSON\n" in done.out


@pytest.mark.parametrize("json", [(), ("--json",)])
def test_what_to_do_about_an_error_has_them_too(elsewhere: str, tenuto: Run, json: tuple[str, ...]) -> None:
    tenuto("--url", elsewhere, "migrate")
    done = tenuto("--url", elsewhere, "show", "nothing", *json)
    found = re.search("`(tenuto [^`]* ls)` lists executions", done.err)
    assert found is not None
    assert tenuto(*copied(found[1])) == (0, "", "")


def test_a_worker_is_started_on_a_database_and_for_all_tenants() -> None:
    assert (
        Connection(url="sqlite:///a.db", tenant="acme").command_line("worker") == "tenuto --url sqlite:///a.db worker"
    )
    assert Connection(server="http://here:1").command_line("worker") == "tenuto --url URL worker"
    assert (
        Connection(server="http://here:1").with_options("that `tenuto serve` runs there")
        == "that `tenuto serve` runs there"
    )


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://ada:canary@db/shop", "postgresql://ada:PASSWORD@db/shop"),
        ("postgresql://:c@n:ary@db/shop", "postgresql://:PASSWORD@db/shop"),
        ("postgresql://db/shop?user=ada&password=canary", "'postgresql://db/shop?user=ada&password=PASSWORD'"),
        ("postgresql://ada@db/shop", "postgresql://ada@db/shop"),
    ],
)
def test_a_password_is_to_be_filled_in(url: str, told: str) -> None:
    assert Connection(url=url).command_line("show 1") == f"tenuto --url {told} show 1"
