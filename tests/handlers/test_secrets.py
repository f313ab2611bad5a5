"""Secrets go to the named host and port only, and only where nobody on the way can read them."""

import pytest

from tenuto.errors import DefinitionError, InvalidInput, NonRetryableError
from tenuto.handlers.settings import HandlerSettings, Secret, Target
from tests.servers.web import Web

from .conftest import MakeEngine
from .documents import document, run

BANK = ("bank.example",)
OTHER_PORT = ("bank.example:8443",)
LITERALS = ("127.0.0.1:8080", "::1", "[::1]:9000", "10.1.2.3")


@pytest.mark.parametrize(
    ("hosts", "target", "is_permitted"),
    [
        (BANK, Target("https", "bank.example", 443), True),
        (BANK, Target("https", "BANK.example", 443), True),
        (BANK, Target("https", "bank.example", 8443), False),
        (BANK, Target("https", "bank.example", 80), False),
        (BANK, Target("http", "bank.example", 80), False),
        (BANK, Target("http", "bank.example", 443), False),
        (BANK, Target("https", "evil.example", 443), False),
        (BANK, Target("https", "bank.example.evil.example", 443), False),
        (BANK, Target("https", "bank.example.", 443), False),
        (OTHER_PORT, Target("https", "bank.example", 8443), True),
        (OTHER_PORT, Target("https", "bank.example", 443), False),
        (OTHER_PORT, Target("http", "bank.example", 8443), False),
        ((), Target("https", "anywhere.example", 8443), True),
        ((), Target("http", "anywhere.example", 80), False),
        ((), Target("http", "10.1.2.3", 80), False),
        ((), Target("http", "localhost.evil.example", 80), False),
        ((), Target("http", "127.0.0.1.evil.example", 80), False),
        ((), Target("http", "localhost", 8080), True),
        ((), Target("http", "127.0.0.1", 8080), True),
        (LITERALS, Target("http", "127.0.0.1", 8080), True),
        (LITERALS, Target("http", "127.0.0.1", 8081), False),
        (LITERALS, Target("http", "::1", 80), True),
        (LITERALS, Target("https", "::1", 9000), True),
        (LITERALS, Target("https", "10.1.2.3", 443), True),
        (LITERALS, Target("http", "10.1.2.3", 80), False),
    ],
)
def test_where_a_secret_may_be_sent(hosts: tuple[str, ...], target: Target, is_permitted: bool) -> None:
    settings = HandlerSettings(secrets={"BANK": Secret("canary-7", hosts)})
    if is_permitted:
        assert settings.secret("bank", target, None) == "canary-7"
        return
    with pytest.raises(NonRetryableError) as refused:
        settings.secret("bank", target, None)
    assert refused.value.code == "secret_denied"
    assert "canary" not in str(refused.value)


def test_a_secret_that_signs_is_not_sent() -> None:
    """So it may sign what goes over plain HTTP; the host and the port are looked at all the same."""
    settings = HandlerSettings(secrets={"HOOK": Secret("canary-7", BANK)})
    assert settings.secret("hook", Target("http", "bank.example", 80), None, is_sent=False) == "canary-7"
    with pytest.raises(NonRetryableError):
        settings.secret("hook", Target("http", "bank.example", 8080), None, is_sent=False)


@pytest.mark.parametrize("text", ["https://bank.example", "bank.example/path", "user@bank.example", "a:b", "", ":443"])
def test_what_is_no_host_is_refused_at_once(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a host"):
        Secret("canary-7", (text,))


async def test_another_port_of_the_same_host_gets_nothing(make_engine: MakeEngine, server: Web) -> None:
    engine = await make_engine(secrets={"BANK": Secret("canary-7", ("127.0.0.1",))})
    work = (await run(engine, "http", {"url": server.url, "secret_headers": {"X-Key": "bank"}})).steps["work"]
    assert (work.error_class, work.error_code, server.requests) == ("NON_RETRYABLE", "secret_denied", [])


async def test_plain_http_is_refused_before_anything_is_sent(make_engine: MakeEngine, server: Web) -> None:
    """Also where the guard would allow the address: that it may be called does not make the way private."""
    engine = await make_engine(secrets={"BANK": Secret("canary-7")}, egress_allow=("0.0.0.0/0",))
    given = {"url": "${input.url}", "secret_headers": {"X-Key": "bank"}}
    url = server.url.replace("127.0.0.1", "2130706433")  # the same machine, not written as loopback
    work = (await run(engine, "http", given, {"url": url})).steps["work"]
    assert (work.error_class, work.error_code, server.requests) == ("NON_RETRYABLE", "secret_denied", [])


async def test_plain_http_with_a_secret_is_refused_when_it_is_published(make_engine: MakeEngine) -> None:
    engine = await make_engine()
    given = {"url": "http://bank.example/pay", "secret_headers": {"X-Key": "bank"}}
    with pytest.raises(DefinitionError) as refused:
        await engine.apply(document("http", given))
    assert [(found.path, found.code) for found in refused.value.problems] == [("/steps/0/with/url", "bad_with")]


RESERVED = ["Host", "host", "Content-Length", "Transfer-Encoding", "TRANSFER-ENCODING", "Connection", "Upgrade", "TE"]


@pytest.mark.parametrize("name", RESERVED)
@pytest.mark.parametrize(
    ("handler", "field"), [("http", "headers"), ("http", "secret_headers"), ("webhook", "headers")]
)
async def test_a_definition_does_not_set_what_belongs_to_the_connection(
    make_engine: MakeEngine, server: Web, handler: str, field: str, name: str
) -> None:
    engine = await make_engine(secrets={"BANK": Secret("canary-7")})
    given = {"url": server.url, field: {name: "bank"}}
    with pytest.raises(DefinitionError) as refused:
        await engine.apply(document(handler, given))
    assert [(found.path, found.code) for found in refused.value.problems] == [
        (f"/steps/0/with/{field}/{name}", "bad_with")
    ]
    work = (await run(engine, handler, "${input}", given)).steps["work"]
    assert (work.error_class, work.error_code, server.requests) == ("NON_RETRYABLE", "bad_with", [])
