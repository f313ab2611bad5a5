"""The client's address behind proxies: `X-Forwarded-For` counts only where a trusted proxy wrote it."""

import pytest

from tenuto.service.http.client_address import TrustedProxies
from tenuto.settings import Settings
from tests.service.conftest import MakeSite

PROXY = "10.0.0.1"


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.9", ["198.51.100.1"], "192.0.2.9"),  # not a proxy: anybody can send this header
        (PROXY, [], PROXY),
        (PROXY, ["198.51.100.1"], "198.51.100.1"),
        (PROXY, ["203.0.113.7, 198.51.100.1"], "198.51.100.1"),  # the left one is what the client made up
        (PROXY, ["203.0.113.7", "198.51.100.1, 10.0.0.2"], "198.51.100.1"),  # two proxies, two headers
        (PROXY, ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),  # nothing but proxies: the outermost
        (PROXY, ["198.51.100.1:4711"], "198.51.100.1"),
        (PROXY, ["[2001:db8::1]:4711"], "2001:db8::/64"),
        (PROXY, ["2001:db8::1"], "2001:db8::/64"),
        (PROXY, ["::ffff:198.51.100.1"], "198.51.100.1"),
        (PROXY, ["198.51.100.1, unknown"], PROXY),
        (PROXY, ["198.51.100.1,"], PROXY),
        ("::ffff:10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
    ],
)
def test_the_client_is_the_first_address_from_the_right_that_is_no_proxy(
    peer: str, forwarded: list[str], client: str
) -> None:
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    assert TrustedProxies(["10.0.0.0/8"]).client_of({"client": (peer, 1), "headers": headers}) == client


def test_without_trusted_proxies_the_header_says_nothing() -> None:
    scope = {"client": (PROXY, 1), "headers": [(b"x-forwarded-for", b"198.51.100.1")]}
    assert TrustedProxies().client_of(scope) == PROXY
    assert TrustedProxies().client_of({"client": None, "headers": []}) == ""


async def test_strangers_behind_a_trusted_proxy_have_a_rate_each(make_site: MakeSite) -> None:
    settings = Settings(rate_per_second=0.001, rate_burst=2, trusted_proxies=("127.0.0.1",))
    site = await make_site(settings=settings)
    for address in ("198.51.100.1", "198.51.100.2"):
        stranger = await site.bare(None, **{"X-Forwarded-For": address})
        assert [(await stranger.get("/v1/executions")).status_code for _ in range(3)] == [401, 401, 429]


async def test_a_stranger_does_not_choose_his_address(make_site: MakeSite) -> None:
    site = await make_site(settings=Settings(rate_per_second=0.001, rate_burst=2))
    answers = [
        (await (await site.bare(None, **{"X-Forwarded-For": f"198.51.100.{n}"})).get("/v1/executions")).status_code
        for n in range(3)
    ]
    assert answers == [401, 401, 429]
