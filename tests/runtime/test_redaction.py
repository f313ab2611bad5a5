"""What must not be stored is masked, and what people need to read is left."""

from typing import Any

import pytest

from tenuto.values.redaction import (
    MAX_BYTES,
    MAX_DEPTH,
    bounded,
    is_secret,
    redact,
    redact_headers,
    redact_url,
    redact_value,
)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Authorization: Bearer abc.def-123", "abc.def-123"),
        ("authorization=Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("{'Authorization': 'Bearer s3cr3t-value'}", "s3cr3t-value"),
        ("header was Bearer tok_9f8e7d6c", "tok_9f8e7d6c"),
        ("password=hunter2 was refused", "hunter2"),
        ('{"password": "hunter2"}', "hunter2"),
        ("DB_PASSWORD=hunter2", "hunter2"),
        ("api_key: k-12", "k-12"),
        ("client_secret='x y z'", "x y z"),
        ("postgresql://app:hunter2@db/orders", "hunter2"),
        ("postgresql://app:p@hunter2@db/orders", "hunter2"),
        ("Set-Cookie: sid=31d4d96e407aad42; Path=/", "31d4d96e407aad42"),
        ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc_-9", "eyJzdWIiOiIxIn0"),
        ("key sk_live_4eC39HqLyjWDarjtT1", "sk_live_4eC39HqLyjWDarjtT1"),
        ("digest 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b"),
        ("blob QWxhZGRpbjpvcGVuIHNlc2FtZTEyMzQ1Njc4OTA=", "QWxhZGRpbjpvcGVuIHNlc2FtZTEyMzQ1Njc4OTA"),
        ("user ann.lee+x@example.co.uk unknown", "ann.lee"),
        ("card 4111 1111 1111 1111 declined", "1111 1111"),
        ("card 4111111111111111", "4111111111111111"),
        ("card 2223000048400011", "2223000048400011"),
        (
            "Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/s3, SignedHeaders=a;b, Signature=hunter2",
            "hunter2",
        ),
        ('Authorization: Digest username="ann", realm="x", response="hunter2"', "hunter2"),
        ("[(b'host', b'x'), (b'x-api-key', b'hunter2')]", "hunter2"),
        ("[('set-cookie', 'sid=hunter2; Path=/')]", "hunter2"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEhunter2\nhunter2\n-----END RSA PRIVATE KEY-----", "hunter2"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\\nb3Blhunter2\\nb3Bl, which is cut off", "hunter2"),
        ("Server=db;User Id=sa;Password=hunter2;Encrypt=yes", "hunter2"),
        ("AccountName=x;AccountKey=hunter2==;EndpointSuffix=y", "hunter2"),
        ("PGPASSWORD=hunter2 psql", "hunter2"),
        ("encryption_key: hunter2", "hunter2"),
        ("api key: hunter2", "hunter2"),
        ("https://host/c?sv=2020&sig=hunter2&se=1", "hunter2"),
        ("https://host/c?X-Amz-Signature=hunter2", "hunter2"),
        ("https://host/cb?code=hunter2hunter2hunter2&state=x", "hunter2"),
        ("X-Hub-Signature-256: sha256=hunter2", "hunter2"),
        ("user[password]=hunter2&user[name]=ann", "hunter2"),
        ('body was "{\\"password\\": \\"hunter2\\", \\"n\\": 1}"', "hunter2"),
        ('{"password": "a\\"hunter2"}', "hunter2"),
        ('the answer began {"token": "hunter2', "hunter2"),
        ("{'password': b'hunter2'}", "hunter2"),
        ("Settings(password=Secret('hunter2'))", "hunter2"),
        ("passwords: ['hunter2', 'hunter3']", "hunter"),
        ("secrets={'bank': 'hunter2'}", "hunter2"),
        ("login failed for ann with password 'hunter2'", "hunter2"),
        ("Command '['psql', '--password', 'hunter2']' returned 1", "hunter2"),
        ("mysqldump --password hunter2 orders", "hunter2"),
        ("<wsse:Password>hunter2</wsse:Password>", "hunter2"),
        ("cvv=737", "737"),
        ("glpat-hunter2hunter2hunter2", "hunter2"),
        ("SG.hunter2hunter2.hunter2hunter2", "hunter2"),
    ],
)
def test_secrets_are_masked(text: str, secret: str) -> None:
    assert secret not in redact(text)
    assert "[" in redact(text)
    assert redact(redact(text)) == redact(text)  # what is stored masked is masked again where it is logged


@pytest.mark.parametrize(
    "text",
    [
        "",
        "connection to 10.0.0.7:5432 refused after 3 attempts",
        "order 1234567890123456 not found",  # sixteen digits, but no card number
        "basic plan, token expired, bearer of bad news",
        "invalid literal for int() with base 10: 'x'",
        "KeyError: 'customer_id'",
        "no such file: /var/lib/tenuto/orders/2026-11-15.json",
        'duplicate key value violates unique constraint "pk_orders_customer_id"',
        "no module has MyVeryLongClassNameWithNumber42AndMore",
        "s3://bucket/Prefix/2026/01/15/Part7/orders-of-the-day/Report.parquet",
        "invalid token: expected ',' at line 3",
        "password: too short, session: closed, 'token': None",
        "secretary: bob, tokenizer: bert, passport=valid, bypass=1",
        "at 1768469400007, or 1768469400000000007 ns, of 20260115093000122",  # times that would pass for card numbers
        "trace_id=4bf92f3577b34da6a3ce929d0e0e4736",
        "image sha256:9f2c1d64a7b80e35f1c4d2937ae6b05849c3e1f7206d8ab45e9173c0f2d86b1a",
        "https://host/x?code=404&page=2",
        "Unable to locate credentials: no such file",
    ],
)
def test_what_is_no_secret_is_left(text: str) -> None:
    assert redact(text) == text


def test_the_host_of_an_address_with_a_user_is_no_part_of_an_email_address() -> None:
    told = redact("cannot reach postgresql://postgres@10.0.0.7:5432/orders, ask ada@example.org")
    assert told == "cannot reach postgresql://[secret]@10.0.0.7:5432/orders, ask [email]"
    assert redact("https://example.org?to=ada@example.org") == "https://example.org?to=[email]"


def test_texts_are_bounded_in_bytes() -> None:
    assert bounded("a" * 10_000).endswith(" […]")
    assert len(bounded("ä€😀" * 10_000).encode()) <= MAX_BYTES
    assert bounded("short") == "short"


def test_what_no_database_takes_is_left_out() -> None:
    assert bounded("a\0b") == "ab"
    assert bounded("a\ud800b").encode()


HOSTILE = (
    "=", "a", "_", "0", "1 ", "@.", "x@", "a.", "1-", "a://", "a://b:", "password", "pass_", "token ", "eyJa.", "sk-",
    "token:[", "token={", "token='", 'token="\\', 'token:\\"', "password '", "--", "--token ", "<token>", "<",
    "('a', '",
    "-----BEGIN PRIVATE KEY-----", "Aa1/", "&sig=", "authorization=a,b=", "\\",
)  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_texts_take_time_in_proportion_to_their_length(hostile: str) -> None:
    """Such a text is a moment's work. In proportion to the square of its length, nobody would live to see its end."""
    redact(hostile * (1_000_000 // len(hostile)))


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://app:hunter2@db:5432/orders", "postgresql://[secret]@db:5432/orders"),
        ("postgresql://app:p@ss@db/orders", "postgresql://[secret]@db/orders"),
        ("postgresql://postgres@127.0.0.1:25726/postgres",) * 2,
        (
            "postgresql://db/orders?user=app&password=hunter2&x=1",
            "postgresql://db/orders?user=app&password=[secret]&x=1",
        ),
        ("postgresql://db/orders?sslpassword=hunter2", "postgresql://db/orders?sslpassword=[secret]"),
        ("sqlite:////srv/Data2026/a-very-long-name-of-a-folder/orders.db",) * 2,
    ],
)
def test_an_address_is_told_without_its_password(url: str, told: str) -> None:
    assert redact_url(url) == told


SECRET_HEADERS = (
    "Authorization", "Proxy-Authorization", "X-Auth", "X-Auth-Key", "X-Signature", "X-Hub-Signature-256", "Cookie",
    "Ocp-Apim-Subscription-Key", "x-functions-key", "X-Api-Key", "apikey", "X-Access-Key-Id", "X-Password",
    "X-Passcode", "X-Amz-Security-Token", "X-Session-Id", "X-Credential",
)  # fmt: skip
PLAIN_HEADERS = (
    "Idempotency-Key", "X-Idempotency-Key", "X-Passenger-Id", "X-Author", "X-Compass", "X-Monkey", "traceparent",
)  # fmt: skip


def test_headers_are_masked_by_what_they_are_called() -> None:
    shown = redact_headers(dict.fromkeys((*SECRET_HEADERS, *PLAIN_HEADERS), "value"))
    assert [name for name, value in shown.items() if value == "value"] == list(PLAIN_HEADERS)


def test_a_passenger_is_no_password() -> None:
    assert redact("passenger: 12, passcode=77, pass: x") == "passenger: 12, passcode=[secret], pass: [secret]"


SECRET_NAMES = (
    "token", "tokens", "token2", "access_token", "accessToken", "access_tokens", "refresh_token", "id_token",
    "csrf_token", "reset_token", "new_token", "used_token", "input_token", "session_token", "bot_tokens_list",
    "max_access_tokens", "api_key", "apiKey", "customer_key", "private_key", "signing-key", "authorization", "cookie",
    "set-cookie", "password", "password_limit", "max_password", "secret", "client_secret", "secret_id", "session",
    "sessions", "session_id", "sessionId", "token_id", "sessionid", "session_key", "user_session_id", "credential",
    "signature", "cache_secret_key",
)  # fmt: skip
COUNTS = (
    "max_tokens", "maxTokens", "MAX_TOKENS", "max-tokens", "tokens_used", "tokensUsed", "total_tokens", "prompt_tokens",
    "completion_tokens", "completion_tokens_details", "input_tokens", "cached_tokens", "token_count", "token_limit",
    "token_budget", "tokens_per_second", "num_tokens", "x-ratelimit-remaining-tokens", "session_count", "max_sessions",
    "session_timeout_seconds",
)  # fmt: skip
KEYS = ("idempotency_key", "concurrency_key", "partition-key", "primary_key", "public_key", "X-Idempotency-Key")


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_what_is_called_a_secret_is_masked_whatever_it_is(name: str) -> None:
    assert is_secret(name)
    assert redact_value({name: 512, "n": 1}) == {name: "[secret]", "n": 1}
    assert redact_headers({name: "512"}) == {name: "[secret]"}


@pytest.mark.parametrize("name", [*COUNTS, *KEYS])
def test_what_counts_or_finds_secrets_is_none(name: str) -> None:
    assert not is_secret(name)
    assert redact_value({name: 512}) == {name: 512}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_read_in_texts_and_headers_too(name: str) -> None:
    assert redact(f"{name}: 5000 > 4096, '{name}': 7, token=x") == f"{name}: 5000 > 4096, '{name}': 7, token=[secret]"
    assert redact_headers({name: "5000"}) == {name: "5000"}


@pytest.mark.parametrize("text", ["{'accessToken': 'hunter2'}", "apiKey=hunter2", "dbPassword: hunter2"])
def test_words_of_a_name_begin_with_a_capital_too(text: str) -> None:
    assert "hunter2" not in redact(text)


def nested(kind: type, depth: int = 100_000) -> Any:
    value: Any = "password=hunter2"
    for _ in range(depth):
        value = {"in": value} if kind is dict else kind([value])
    return value


@pytest.mark.parametrize("kind", [dict, list, tuple])
def test_of_a_very_deep_value_the_rest_is_left_out(kind: type) -> None:
    told = redact_value(nested(kind))
    for _ in range(MAX_DEPTH):
        told = told["in"] if isinstance(told, dict) else told[0]  # type: ignore[index]  # a list
    assert told == "[…]"


def test_a_value_that_holds_itself_twice_comes_to_an_end() -> None:
    value: list[Any] = [1]
    value += [value, value, {"again": value}]
    assert len(repr(redact_value(value))) < 1_000_000


def test_of_a_very_large_value_the_rest_is_left_out() -> None:
    told = redact_value({"many": [0] * 1_000_000, "secret": 1})
    assert isinstance(told, dict)
    assert len(told["many"]) < 20_000


def test_what_cannot_say_what_it_is_is_told_by_its_kind() -> None:
    class Mute:
        def __str__(self) -> str:
            raise RecursionError

    assert redact_value([Mute(), 1]) == ["[Mute]", 1]
