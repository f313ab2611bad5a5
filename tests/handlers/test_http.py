"""The built-in handler `http`: what it sends, what an answer means, and how much of it is kept."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from tenuto.handlers.request import MAX_ANSWER
from tenuto.handlers.settings import Secret
from tests.contract.doubles import until_blocked
from tests.servers.web import Web

from .conftest import MakeEngine
from .documents import document, run

JSON = {"content-type": "application/json; charset=utf-8"}
THREE = {"max_attempts": 3, "initial_delay_ms": 1, "max_delay_ms": 1}


async def test_it_sends_what_the_template_says_and_gives_the_answer(make_engine: MakeEngine, server: Web) -> None:
    engine = await make_engine()
    server.answers.append((201, {**JSON, "x-kept": "yes", "set-cookie": "session=1"}, b'{"id": 7}'))
    given = {
        "method": "post",
        "url": f"{server.url}/pay",
        "query": {"dry": True, "n": 2},
        "headers": {"X-Mine": "${input.who}"},
        "json": {"amount": "${input.amount}"},
    }
    await engine.apply(document("http", given))
    handle = await engine.start(
        "one", {"amount": 12.5, "who": "ann"}, correlation_id="root", headers={"traceparent": "00-ab", "X-Token": "t"}
    )
    result = await handle.result()

    assert result.output == {
        "status": 201,
        "headers": {**JSON, "x-kept": "yes", "content-length": "9", "connection": "close"},
        "body": {"id": 7},
        "cut": False,
    }
    ((method, path, headers, body),) = server.requests
    assert (method, path, body) == ("POST", "/pay?dry=true&n=2", b'{"amount":12.5}')
    assert (headers["content-type"], headers["x-mine"], headers["x-correlation-id"]) == (
        "application/json",
        "ann",
        "root",
    )
    assert headers["traceparent"] == "00-ab"
    assert "x-token" not in headers
    (attempt,) = await handle.history()
    assert headers["idempotency-key"] == attempt["idempotency_key"]


async def test_every_attempt_sends_the_same_key(make_engine: MakeEngine, server: Web) -> None:
    server.answers += [(503, {}, b""), (429, {"Retry-After": "0"}, b"")]
    result = await run(
        await make_engine(), "http", {"method": "PUT", "url": server.url}, retry_policy={**THREE, "max_attempts": 3}
    )
    assert (result.status, result.steps["work"].attempts) == ("succeeded", 3)
    assert len({headers["idempotency-key"] for _, _, headers, _ in server.requests}) == 1


async def test_an_answer_that_says_when_to_come_again_is_obeyed(make_engine: MakeEngine, server: Web) -> None:
    """An hour, though the policy would have said a millisecond: nothing is sent meanwhile."""
    server.answers += [(429, {"Retry-After": "3600"}, b"")]
    engine = await make_engine()
    await engine.apply(document("http", {"url": server.url}, retry_policy=THREE))
    handle = await engine.start("one", {})
    await until_blocked(handle, "retry")
    (row,) = await handle.history()
    assert (row["error_class"], row["error_code"]) == ("RATE_LIMITED", "http_429")
    assert row["retry_after_at"] is not None
    assert row["finished_at"] is not None
    wait = datetime.fromisoformat(row["retry_after_at"]) - datetime.fromisoformat(row["finished_at"])
    assert wait == timedelta(hours=1)
    assert len(server.requests) == 1
    await handle.cancel("terminate")
    assert (await handle.result()).status == "canceled"


async def test_the_undo_has_a_request_and_a_key_of_its_own(make_engine: MakeEngine, server: Web) -> None:
    engine = await make_engine()
    made = document(
        "http",
        {"method": "POST", "url": f"{server.url}/pay"},
        compensation_handler="http",
        compensation_with={"method": "POST", "url": f"{server.url}/refund/${{steps.work.result.body.ok}}"},
        on_success="fail",
    )
    last = {"step_id": "fail", "type": "external_call", "handler": "http", "idempotency_strategy": "SAFE_TO_RETRY"}
    made["steps"].append({**last, "with": {"url": f"{server.url}/no", "classify": {"200": "NON_RETRYABLE"}}})
    made["steps"][1]["with"] = {"url": "${input.where}"}
    await engine.apply(made)
    result = await engine.execute("one", {"where": "nonsense"})
    assert (result.status, result.steps["fail"].error_code, result.compensated_steps) == (
        "failed",
        "bad_with",
        ["work"],
    )
    (_, paid, one, _), (_, refunded, two, _) = server.requests
    assert (paid, refunded) == ("/pay", "/refund/true")
    assert one["idempotency-key"] != two["idempotency-key"]


@pytest.mark.parametrize(
    ("answer", "error_class", "code"),
    [
        ((400, {}, b""), "NON_RETRYABLE", "http_400"),
        ((409, {}, b""), "RETRYABLE", "http_409"),
        ((418, {}, b""), "TRANSIENT", "http_418"),  # by `classify`
        ((429, {}, b""), "RATE_LIMITED", "http_429"),
        ((302, {"location": "http://169.254.169.254/"}, b""), "NON_RETRYABLE", "http_302"),
        ((502, {}, b""), "DEPENDENCY_FAILED", "http_502"),
        (None, "INDETERMINATE", "http_connection"),
    ],
)
async def test_an_answer_that_is_no_success_has_a_class(
    make_engine: MakeEngine, server: Web, answer: Any, error_class: str, code: str
) -> None:
    server.answers.append(answer)
    given = {"method": "POST", "url": f"{server.url}/x", "classify": {"418": "TRANSIENT"}}
    work = (await run(await make_engine(), "http", given)).steps["work"]
    assert (work.error_class, work.error_code) == (error_class, code)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("headers", "content", "body"),
    [
        (JSON, b"[1, 2]", [1, 2]),
        (JSON, b"not json", "not json"),
        ({"content-type": "text/plain"}, "é\0".encode(), "é\N{REPLACEMENT CHARACTER}"),
        ({}, b"\xff\xfe", {"base64": "//4="}),
        (JSON, b"", ""),
    ],
)
async def test_a_success_stays_one_whatever_its_body_is_like(
    make_engine: MakeEngine, server: Web, headers: dict[str, str], content: bytes, body: Any
) -> None:
    server.answers.append((200, headers, content))
    assert (await run(await make_engine(), "http", {"url": server.url})).output["body"] == body


@pytest.mark.parametrize(
    "content",
    [b"x" * (MAX_ANSWER + 1), b"\x01" * (MAX_ANSWER // 4), b"[" * 200 + b"]" * 200],
    ids=["long", "wide", "deep"],
)
async def test_an_answer_that_cannot_be_kept_is_left_out(make_engine: MakeEngine, server: Web, content: bytes) -> None:
    server.answers.append((200, JSON if content[:1] == b"[" else {}, content))
    result = await run(await make_engine(), "http", {"method": "POST", "url": server.url})
    assert (result.status, result.output["body"], result.output["cut"]) == ("succeeded", None, True)


async def test_a_long_answer_is_kept(make_engine: MakeEngine, server: Web) -> None:
    server.answers.append((200, {}, b"x" * MAX_ANSWER))
    assert (await run(await make_engine(), "http", {"url": server.url})).output["body"] == "x" * MAX_ANSWER


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"url": "ftp://example.org/x"},
        {"url": "/path"},
        {"url": "http://[::"},
        {"url": "http://example.org", "json": 1, "text": "x"},
        {"url": "http://example.org", "urll": 1},
        {"url": "http://example.org", "classify": {"4xx": "TRANSIENT"}},
        {"url": "http://example.org", "classify": {"404": "SOMETIMES"}},
    ],
)
async def test_what_is_wrong_with_a_request_is_said(make_engine: MakeEngine, given: dict[str, Any]) -> None:
    work = (await run(await make_engine(), "http", "${input}", given)).steps["work"]
    assert (work.error_class, work.error_code) == ("NON_RETRYABLE", "bad_with")


async def test_a_secret_is_sent_and_kept_nowhere(make_engine: MakeEngine, server: Web) -> None:
    engine = await make_engine(secrets={"BANK": Secret("Bearer canary-7", (server.url.removeprefix("http://"),))})
    server.answers.append((200, {**JSON, "x-echo": "Bearer canary-7"}, b'{"you sent": "Bearer canary-7"}'))
    given = {"url": server.url, "secret_headers": {"Authorization": "bank"}}
    result = await run(engine, "http", given)
    assert server.requests[0][2]["authorization"] == "Bearer canary-7"
    assert result.output["body"] == {"you sent": "[secret]"}
    assert result.output["headers"]["x-echo"] == "[secret]"


@pytest.mark.parametrize(
    ("hosts", "name", "code"), [(("bank.example",), "bank", "secret_denied"), ((), "b2", "secret_missing")]
)
async def test_a_secret_goes_only_where_it_may(
    make_engine: MakeEngine, server: Web, hosts: tuple[str, ...], name: str, code: str
) -> None:
    engine = await make_engine(secrets={"BANK": Secret("canary-7", hosts)})
    work = (await run(engine, "http", {"url": server.url, "secret_headers": {"X-Key": name}})).steps["work"]
    assert (work.error_class, work.error_code, server.requests) == ("NON_RETRYABLE", code, [])
    assert "canary" not in str(work.error)
