"""The egress guard: which addresses may be connected to, and that it is asked when a connection is made."""

import ipaddress
from pathlib import Path

import pytest

from tenuto.errors import InvalidInput, NonRetryableError
from tenuto.handlers.egress import Egress
from tenuto.handlers.settings import LOOPBACK, HandlerSettings
from tenuto.settings import load
from tests.servers.web import Web

from .conftest import MakeEngine
from .documents import run

REFUSED = [
    "127.0.0.1",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.169.254",
    "0.0.0.0",  # noqa: S104  (an address that must be refused)
    "224.0.0.1",
    "240.0.0.1",
    "198.18.0.1",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::a00:1",
    "::ffff:0:7f00:1",
    "fec0::1",
    "2002:7f00:1::",
    "fe80::1",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
]


@pytest.mark.parametrize("address", REFUSED)
def test_what_is_not_public_is_refused(address: str) -> None:
    assert not Egress().permits(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8"])
def test_what_is_public_is_permitted(address: str) -> None:
    assert Egress().permits(ipaddress.ip_address(address))


def test_a_range_can_be_allowed() -> None:
    egress = Egress(["10.1.0.0/16", "::1/128"])
    allowed = ["10.1.2.3", "::ffff:10.1.2.3", "::1"]
    assert [address for address in REFUSED if egress.permits(ipaddress.ip_address(address))] == ["::1"]
    assert all(egress.permits(ipaddress.ip_address(address)) for address in allowed)


async def test_a_name_is_judged_by_its_addresses() -> None:
    with pytest.raises(NonRetryableError) as refused:
        await Egress().resolve("localhost", 80)
    assert refused.value.code == "egress_denied"
    assert "127.0.0.1" in await Egress(LOOPBACK).resolve("localhost", 80)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f.1", "2130706433", "127.1"])
async def test_a_refused_address_is_never_called(make_engine: MakeEngine, server: Web, host: str) -> None:
    engine = await make_engine(egress_allow=())
    url = server.url.replace("127.0.0.1", host)
    work = (await run(engine, "http", {"url": f"{url}/secret-path"})).steps["work"]
    assert (work.error_class, work.error_code, server.requests) == ("NON_RETRYABLE", "egress_denied", [])


async def test_a_webhook_is_guarded_too(make_engine: MakeEngine, server: Web) -> None:
    work = (await run(await make_engine(egress_allow=()), "webhook", {"url": server.url})).steps["work"]
    assert (work.error_code, server.requests) == ("egress_denied", [])


async def test_a_name_that_nobody_knows_is_a_passing_fault(make_engine: MakeEngine) -> None:
    work = (await run(await make_engine(), "http", {"method": "POST", "url": "http://nobody.invalid/"})).steps["work"]
    assert (work.error_class, work.error_code) == ("TRANSIENT", "http_connection")
    assert str(work.error).endswith("POST http://nobody.invalid/: ConnectError, the name could not be resolved")


async def test_a_server_that_is_not_there_is_a_passing_fault(make_engine: MakeEngine) -> None:
    work = (await run(await make_engine(), "http", {"method": "POST", "url": "http://127.0.0.1:9/"})).steps["work"]
    assert (work.error_class, work.error_code) == ("TRANSIENT", "http_connection")
    assert str(work.error).endswith("POST http://127.0.0.1:9/: ConnectError, the connection was refused")


async def test_a_redirect_is_not_followed(make_engine: MakeEngine, server: Web) -> None:
    server.answers.append((307, {"location": f"{server.url}/elsewhere"}, b""))
    work = (await run(await make_engine(), "http", {"url": server.url})).steps["work"]
    assert (work.error_code, len(server.requests)) == ("http_307", 1)


def test_a_range_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(InvalidInput, match="no range of addresses"):
        HandlerSettings(egress_allow=("10.0.0.1/8",))


def test_settings_come_from_the_environment() -> None:
    variables = {
        "TENUTO_EGRESS_ALLOW": "10.0.0.0/8, ::1/128",
        "TENUTO_SMTP_URL": "smtp://user:canary@mail.example",
        "TENUTO_MAIL_FROM": "us@example.org",
        "TENUTO_SECRET_BANK_KEY": "canary",
        "TENUTO_SECRET_BANK_KEY_HOSTS": "Bank.example",
    }
    settings = HandlerSettings.from_environment(variables)
    assert settings.egress_allow == ("10.0.0.0/8", "::1/128")
    assert settings.secret("bank-key", "bank.EXAMPLE", None) == "canary"
    assert settings.mail_from == "us@example.org"
    assert HandlerSettings.from_settings(load(variables, Path("/dev/null")), variables) == settings
    assert "canary" not in repr(settings)
    assert "canary" not in repr(settings.secrets)
