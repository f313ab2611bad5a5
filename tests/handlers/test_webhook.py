"""The built-in handler `webhook`: signed as receivers expect, sent once, and silent about where it went."""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
from typing import Any

import pytest

from tenuto.handlers.settings import Secret
from tests.contract.doubles import until
from tests.contract.test_documents import INVOICE
from tests.servers.web import Web

from .conftest import MakeEngine
from .documents import run

KEYS = [base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2)]
THREE = {"max_attempts": 3, "initial_delay_ms": 1, "max_delay_ms": 1}


def verified(key: str, headers: dict[str, str], body: bytes) -> bool:
    """As a receiver does it who knows the key."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(base64.b64decode(key), signed, hashlib.sha256).digest()).decode()
    return any(hmac.compare_digest(given, f"v1,{expected}") for given in headers["webhook-signature"].split(" "))


async def test_it_is_signed_with_every_key(make_engine: MakeEngine, server: Web) -> None:
    engine = await make_engine(secrets={"ERP": Secret(f"whsec_{KEYS[0]} whsec_{KEYS[1]}")})
    server.answers.append((200, {}, b"what the receiver says is its own affair"))
    given = {"url": f"{server.url}/hook", "type": "invoice.rejected", "data": {"n": "${input.n}"}, "secret": "erp"}
    result = await run(engine, "webhook", given, {"n": 4})

    ((method, _, headers, body),) = server.requests
    assert (method, headers["content-type"]) == ("POST", "application/json")
    assert all(verified(key, headers, body) for key in KEYS)
    assert not verified(KEYS[0], {**headers, "webhook-id": "another"}, body)
    assert headers["webhook-id"] == headers["idempotency-key"]
    assert result.output == {"id": headers["webhook-id"], "status": 200}
    told = json.loads(body)
    assert (told["type"], told["data"]) == ("invoice.rejected", {"n": 4})


async def test_without_data_it_tells_which_execution_it_is(make_engine: MakeEngine, server: Web) -> None:
    engine = await make_engine(secrets={"WEBHOOK": Secret(f"whsec_{KEYS[0]}")})
    await run(engine, "webhook", {"url": server.url})
    (_, _, headers, body) = server.requests[0]
    assert verified(KEYS[0], headers, body)
    told = json.loads(body)
    assert (told["type"], told["data"]["definition"], told["data"]["step_id"]) == ("one.work", "one", "work")


async def test_a_body_of_ones_own_is_sent_as_it_is(make_engine: MakeEngine, server: Web) -> None:
    engine = await make_engine(secrets={"WEBHOOK": Secret(f"whsec_{KEYS[0]}")})
    await run(engine, "webhook", {"url": server.url, "json": {"invoice": "${input.id}"}}, {"id": "A-1"})
    (_, _, headers, body) = server.requests[0]
    assert json.loads(body) == {"invoice": "A-1"}
    assert verified(KEYS[0], headers, body)


async def test_there_is_one_body(make_engine: MakeEngine, server: Web) -> None:
    given = {"url": server.url, "json": 1, "data": 2}
    result = await run(await make_engine(), "webhook", "${input}", given)
    assert (result.status, server.requests) == ("failed", [])


async def test_the_documented_example_runs_with_these_handlers(make_engine: MakeEngine, server: Web) -> None:
    engine = await make_engine()
    text = json.dumps(INVOICE).replace("http://bank.example", server.url).replace("http://erp.example", server.url)
    await engine.apply(text)
    server.answers.append((200, {"content-type": "application/json"}, b'{"paid": true}'))
    paid = await engine.execute("invoice-approval", {"amount": 900})
    handle = await engine.start("invoice-approval", {"amount": 5000})
    async with asyncio.timeout(60):
        await until(handle, lambda document: document["status"] == "waiting_approval")
    await handle.reject("approve", comment="on the phone")
    rejected = await handle.result()
    assert (paid.output["body"], rejected.succeeded) == ({"paid": True}, True)
    assert [(path, json.loads(body)) for _, path, _, body in server.requests] == [
        ("/pay", {"amount": 900}),
        ("/rejected", {"amount": 5000}),
    ]


async def test_without_a_secret_it_is_sent_and_a_warning_is_logged(
    make_engine: MakeEngine, server: Web, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tenuto.handlers"):
        await run(await make_engine(), "webhook", {"url": server.url})
    assert "webhook-signature" not in server.requests[0][2]
    assert [getattr(record, "action", "") for record in caplog.records] == ["webhook_unsigned"]


@pytest.mark.parametrize(("secrets", "code"), [({}, "secret_missing"), ({"ERP": Secret("whsec_?")}, "secret_invalid")])
async def test_a_secret_that_was_asked_for_must_be_there(
    make_engine: MakeEngine, server: Web, secrets: Any, code: str
) -> None:
    work = (await run(await make_engine(secrets=secrets), "webhook", {"url": server.url, "secret": "erp"})).steps[
        "work"
    ]
    assert (work.error_class, work.error_code, server.requests) == ("NON_RETRYABLE", code, [])


async def test_a_receiver_that_fails_is_told_again_with_the_same_id(make_engine: MakeEngine, server: Web) -> None:
    server.answers += [(500, {}, b""), (503, {}, b"")]
    result = await run(await make_engine(), "webhook", {"url": server.url}, retry_policy=THREE)
    assert (result.status, len({headers["webhook-id"] for _, _, headers, _ in server.requests})) == ("succeeded", 1)
    assert len(server.requests) == 3


async def test_errors_do_not_tell_the_path(make_engine: MakeEngine, server: Web) -> None:
    server.answers.append((410, {}, b"gone"))
    given = {"url": f"{server.url}/services/canary-token?key=canary"}
    work = (await run(await make_engine(), "webhook", given)).steps["work"]
    assert (work.error_class, work.error_code) == ("NON_RETRYABLE", "http_410")
    assert "canary" not in str(work.error)
