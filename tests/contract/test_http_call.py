"""`HttpCall`: what handlers send along, and what an answer means. The other side is a real server."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tenuto import Engine, HttpCall, Retry, SagaContext
from tests.servers.web import Web, running

from .sagas import one_step


@pytest.fixture
async def server() -> AsyncIterator[Web]:
    async with running() as web:
        yield web


@pytest.mark.requirement("E18")
async def test_a_call_carries_correlation_headers_and_key(engine: Engine, server: Web) -> None:
    keys: list[str] = []

    async def call(ctx: SagaContext) -> Any:
        keys.append(ctx.idempotency_key)
        response = await HttpCall(ctx).post(f"{server.url}/pay", json={"cents": 5}, headers={"X-Mine": "1"})
        return response.json()

    engine.register(one_step("s", call).build())
    result = await engine.execute("s", correlation_id="root", headers={"traceparent": "00-abc", "X-User": "ann"})

    assert result.output == {"ok": True}
    ((method, path, headers, body),) = server.requests
    assert (method, path, body.replace(b" ", b"")) == ("POST", "/pay", b'{"cents":5}')
    assert (headers["x-correlation-id"], headers["idempotency-key"]) == ("root", keys[0])
    assert (headers["traceparent"], headers["x-user"], headers["x-mine"]) == ("00-abc", "ann", "1")


STATUSES: list[tuple[int, str]] = [
    (400, "NON_RETRYABLE"),
    (404, "NON_RETRYABLE"),
    (409, "RETRYABLE"),
    (412, "RETRYABLE"),
    (423, "RETRYABLE"),
    (408, "TRANSIENT"),
    (425, "TRANSIENT"),
    (500, "TRANSIENT"),
    (503, "TRANSIENT"),
    (501, "NON_RETRYABLE"),
    (502, "DEPENDENCY_FAILED"),
    (504, "DEPENDENCY_FAILED"),
    (429, "RATE_LIMITED"),
    (302, "NON_RETRYABLE"),
]


@pytest.mark.requirement("E18")
@pytest.mark.parametrize(("status", "error_class"), STATUSES)
async def test_an_answer_that_is_no_success_is_a_classified_error(
    engine: Engine, server: Web, status: int, error_class: str
) -> None:
    seen: list[Any] = []

    async def call(ctx: SagaContext) -> None:
        try:
            await HttpCall(ctx).get(f"{server.url}/x?token=secret")
        except Exception as error:
            seen.append(error)
            raise

    server.answers.append((status, {"Retry-After": "7"}, b"the body"))
    engine.register(one_step("s", call, retry=0).build())
    work = (await engine.execute("s")).steps["work"]

    assert (work.error_class, work.error_code) == (error_class, f"http_{status}")
    assert "secret" not in str(work.error)
    (error,) = seen
    assert (error.status, error.body, error.retry_after) == (status, "the body", 7.0)


@pytest.mark.requirement("E18")
async def test_a_call_says_what_a_status_means_to_it(engine: Engine, server: Web) -> None:
    async def call(ctx: SagaContext) -> Any:
        return (await HttpCall(ctx, classify={404: "TRANSIENT"}).get(f"{server.url}/soon")).json()

    server.answers.append((404, {}, b""))
    engine.register(one_step("s", call, retry=Retry(2, initial="1ms")).build())
    result = await engine.execute("s")
    assert (result.output, result.steps["work"].attempts) == ({"ok": True}, 2)


@pytest.mark.requirement("E18")
@pytest.mark.parametrize(("method", "error_class"), [("GET", "TRANSIENT"), ("POST", "INDETERMINATE")])
async def test_no_answer_leaves_the_outcome_unknown_where_there_may_be_an_effect(
    engine: Engine, server: Web, method: str, error_class: str
) -> None:
    async def call(ctx: SagaContext) -> None:
        await HttpCall(ctx).request(method, server.url)

    server.answers.append(None)  # it hangs up
    engine.register(one_step("s", call, retry=0).build())
    assert (await engine.execute("s")).steps["work"].error_class == error_class


@pytest.mark.requirement("E18")
async def test_a_server_that_is_not_there_is_a_passing_fault(engine: Engine) -> None:
    async def call(ctx: SagaContext) -> None:
        await HttpCall(ctx).post("http://127.0.0.1:9/nobody")

    engine.register(one_step("s", call, retry=0).build())
    assert (await engine.execute("s")).steps["work"].error_class == "TRANSIENT"


@pytest.mark.requirement("E18")
async def test_the_headers_can_be_had_alone(engine: Engine) -> None:
    async def call(ctx: SagaContext) -> Any:
        return HttpCall.propagate(ctx, {"x-user": "bob"})

    engine.register(one_step("s", call).build())
    headers = (await engine.execute("s", correlation_id="root", headers={"X-User": "ann"})).output
    assert (headers["X-Correlation-ID"], headers["x-user"], "X-User" in headers) == ("root", "bob", False)
