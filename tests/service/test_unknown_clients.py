"""What strangers may ask: so much, and nothing goes round the gate."""

import pytest

from tenuto.service.http.request_limits import is_stream
from tenuto.settings import Settings
from tests.service.conftest import MakeSite


@pytest.mark.parametrize(
    ("path", "query", "attended"),
    [
        ("/v1/executions/x", "wait=settled", True),
        ("/v1/executions/x", "seconds=5&w%61it=terminal", True),
        ("/v1/executions/x", "xwait=settled", False),
        ("/v1/executions/x", "wait=", False),
        ("/v1/executions/x", "wait=for+ever", False),
        ("/v1/executions/x", "", False),
        ("/v1/executions/x/events", "", True),
        ("/v1/executions/x/events", "follow=1", True),
        ("/v1/executions/x/events", "follow=YES", True),
        ("/v1/executions/x/events", "follow=true&follow=false", False),
        ("/v1/executions/x/events", "xfollow=true&follow=0", False),
    ],
)
def test_only_those_stay_on_the_line_who_ask_for_it(path: str, query: str, attended: bool) -> None:
    assert is_stream({"type": "http", "method": "GET", "path": path, "query_string": query.encode()}) is attended


async def test_a_stranger_has_no_more_tries_than_his_address(make_site: MakeSite) -> None:
    """What comes after them is not looked up: not even a key that is good, unless it was seen before."""
    site = await make_site(settings=Settings(rate_per_second=0.001, rate_burst=3))
    known = await site.client("acme")
    assert (await known.get("/v1/executions")).status_code == 200
    good = await site.engine.keys.create(tenant="acme", roles=("viewer",), name="good")
    unknown = await site.engine.keys.create(tenant="acme", roles=("viewer",), name="unknown")
    await site.engine.keys.revoke(unknown.row.id)
    stranger = await site.bare(unknown.token)
    found = [(await stranger.get("/v1/executions")).status_code for _ in range(4)]
    assert found == [401, 401, 401, 429]
    assert (await (await site.bare(good.token)).get("/v1/executions")).status_code == 429
    assert (await known.get("/v1/executions")).status_code == 200


async def test_a_key_that_is_good_takes_nothing_from_strangers(make_site: MakeSite) -> None:
    site = await make_site(settings=Settings(rate_per_second=0.001, rate_burst=2))
    for name in ("one", "two", "three", "four"):
        assert (await (await site.client(name)).get("/v1/executions")).status_code == 200
