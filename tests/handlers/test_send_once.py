"""Notifications once: what was sent is not sent again, and what may have been is asked about."""

from typing import Any

import pytest

from tenuto import Engine
from tenuto.storage.notices import Notice
from tests.seams import built_in_handler, runtime_of
from tests.servers import smtp

from .conftest import MakeEngine
from .documents import document

MESSAGE = {"to": "ann@example.org", "subject": "Paid", "text": "Thanks."}


def settings(mail: smtp.Mail) -> dict[str, str]:
    return {"smtp_url": f"smtp://127.0.0.1:{mail.port}", "mail_from": "shop@example.org"}


def guarded() -> dict[str, Any]:
    strategy = {"idempotency_strategy": "SAFE_TO_RETRY_WITH_GUARD", "guard_handler": "sent"}
    policy = {"max_attempts": 3, "initial_delay_ms": 1, "max_delay_ms": 1}
    return document("email", MESSAGE, **strategy, retry_policy=policy)


async def test_what_was_taken_is_not_sent_again(make_engine: MakeEngine, mail: smtp.Mail) -> None:
    """The attempt that sent it was lost before its success was recorded: the next one finds the receipt."""
    engine = await make_engine(**settings(mail))
    handler = built_in_handler(engine, "email")
    calls: list[object] = []

    async def twice(given: Any, ctx: Any) -> Any:
        calls.append(await handler(given, ctx))
        if len(calls) == 1:
            raise ConnectionError("lost")
        return calls[-1]

    twice.__annotations__["ctx"] = handler.__annotations__["ctx"]
    engine.handler("email", twice)
    await engine.apply(document("email", MESSAGE, retry_policy={"max_attempts": 2, "initial_delay_ms": 1}))
    result = await engine.execute("one", {})
    assert (result.status, len(calls), len(mail.taken)) == ("succeeded", 2, 1)
    assert calls[0] == calls[1] == result.output


async def test_what_may_have_been_sent_is_left_to_a_person(make_engine: MakeEngine, mail: smtp.Mail) -> None:
    """The server hung up before it said whether it took the message. A person looks, and it is sent."""
    engine = await make_engine(**settings(mail))
    mail.answers["."] = ""
    await engine.apply(guarded())
    result = await engine.execute("one", {})
    assert (result.status, result.blocked and result.blocked["reason"]) == ("waiting_approval", "review")
    (review,) = [review async for review in engine.reviews()]
    assert (review["kind"], mail.taken) == ("indeterminate", [])
    await engine.resolve(review["id"], "not_completed", reason="the server's log has it not")
    again = await engine.get(review["execution_id"]).result()
    assert (again.status, len(mail.taken)) == ("succeeded", 1)


async def test_a_guard_lets_it_be_sent_if_it_was_not(make_engine: MakeEngine, mail: smtp.Mail) -> None:
    engine = await make_engine(**settings(mail))
    await engine.apply(guarded())
    result = await engine.execute("one", {})
    assert (result.status, len(mail.taken)) == ("succeeded", 1)


@pytest.fixture
async def engine(make_engine: MakeEngine) -> Engine:
    return await make_engine()


@pytest.mark.unchecked("its notice is of an execution that is not there")
async def test_a_key_is_begun_once_and_its_first_receipt_stays(engine: Engine) -> None:
    notices = runtime_of(engine).notices
    notice = Notice(key="k", tenant="t", execution="x", path="work", channel="email")
    begun = await notices.begin_notice(notice)
    assert (begun.key, begun.receipt, begun.sent_at, begun.begun_at > 0) == ("k", None, None, True)
    await notices.end_notice("k", b'"one"')
    await notices.end_notice("k", b'"two"')
    again = await notices.begin_notice(Notice(key="k", tenant="t", execution="y", path="other", channel="webhook"))
    assert (again.execution, again.receipt, again.begun_at) == ("x", b'"one"', begun.begun_at)
    assert await notices.notice("k") == again
    assert await notices.notice("other") is None
