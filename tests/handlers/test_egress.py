"""The egress guard: which addresses may be connected to, and that it is asked when a connection is made."""

import ipaddress
from pathlib import Path

import pytest

from tenuto.errors import InvalidInput, NonRetryableError
from tenuto.handlers.egress import Egress
from tenuto.handlers.settings import LOOPBACK, HandlerSettings, Target
from tenuto.settings import load
from tests.servers.web import Web

from .conftest import MakeEngine
from .documents import run

# Of each range its first and last address, and what is known to answer inside.
REFUSED_BY: dict[str, list[str]] = {
    "this network": ["0.0.0.0", "0.255.255.255"],  # noqa: S104  (an address that must be refused)
    "private": ["10.0.0.0", "10.255.255.255", "172.16.0.0", "172.31.255.255", "192.168.0.0", "192.168.255.255"],
    "shared": ["100.64.0.0", "100.100.100.200", "100.127.255.255"],
    "loopback": ["127.0.0.1", "127.255.255.255", "::1"],
    "Azure": ["168.63.129.16"],
    "link-local": ["169.254.0.0", "169.254.169.254", "169.254.255.255", "fe80::1", "febf::1"],
    "protocol assignments": ["192.0.0.0", "192.0.0.9", "192.0.0.10", "192.0.0.170", "192.0.0.192", "192.0.0.255"],
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::", "3fff:fff:ffff::1"],
    "6to4 relays": ["192.88.99.1"],
    "benchmarks": ["198.18.0.0", "198.19.255.255", "2001:2::1"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"],
    "reserved": ["240.0.0.1", "255.255.255.255", "4000::1", "a000::1", "e000::1", "1fff::1"],
    "unspecified": ["::"],
    "IPv4 inside": ["::127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:168.63.129.16"],
    "translated": ["64:ff9b::a00:1", "64:ff9b:1::1", "::ffff:0:7f00:1", "2002:7f00:1::", "2002:808:808::"],
    "discard only": ["100::1"],
    "IETF protocols": ["2001::1", "2001:1::1", "2001:3::1", "2001:4:112::1", "2001:10::1", "2001:20::1", "2001:1ff::1"],
    "segment routing": ["5f00::1", "5f00:ffff::1"],
    "site-local": ["fec0::1"],
    "unique local": ["fc00::1", "fd00:ec2::254", "fd20:ce::254", "fdff::1"],
}
REFUSED = [address for addresses in REFUSED_BY.values() for address in addresses]
# Those right beside what is refused, and a few that everybody knows.
PERMITTED = [
    *(
        "1.0.0.0",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
    ),
    *("168.63.129.15", "168.63.129.17", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.0"),
    *("192.0.3.0", "192.88.98.255", "192.88.100.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0"),
    *("198.51.99.255", "198.51.101.0", "203.0.112.255", "203.0.114.0", "223.255.255.255", "::ffff:8.8.8.8"),
    *("2001:200::1", "2001:db7::1", "2001:db9::1", "2003::1", "2606:4700:4700::1111", "2a00::1", "3ffe::1"),
]


@pytest.mark.parametrize("address", REFUSED)
def test_what_is_not_public_is_refused(address: str) -> None:
    assert not Egress().permits(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", PERMITTED)
def test_what_is_public_is_permitted(address: str) -> None:
    assert Egress().permits(ipaddress.ip_address(address))


class Everywhere(ipaddress.IPv4Address):
    """As a Python release would have it that calls everything global."""

    is_global = True


class Everywhere6(ipaddress.IPv6Address):
    is_global = True


@pytest.mark.parametrize("address", REFUSED)
def test_it_does_not_rest_on_what_a_python_release_calls_global(address: str) -> None:
    kind = Everywhere6 if ":" in address else Everywhere
    assert not Egress().permits(kind(address))


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
    with pytest.raises(InvalidInput, match="not an address range"):
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
    assert settings.secret("bank-key", Target("https", "bank.EXAMPLE", 443), None) == "canary"
    assert settings.mail_from == "us@example.org"
    assert HandlerSettings.from_settings(load(variables, Path("/dev/null")), variables) == settings
    assert "canary" not in repr(settings)
    assert "canary" not in repr(settings.secrets)
