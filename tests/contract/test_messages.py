"""Messages about executions (D5): written with what they tell of, published at least once, in order per execution."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tenuto import Message, SagaBuilder
from tenuto.errors import InvalidInput, NonRetryableError

from .conftest import MakeEngine
from .doubles import Stage


class Inbox:
    """A publisher that keeps what it is given, and may refuse it."""

    def __init__(self, refuses: Callable[[Message], bool] = lambda _: False) -> None:
        self.messages: list[Message] = []
        self.refused = 0
        self._refuses = refuses
        self._arrived = asyncio.Condition()

    async def publish(self, message: Message) -> None:
        async with self._arrived:
            if self._refuses(message):
                self.refused += 1
                self._arrived.notify_all()
                raise ConnectionError("the broker is away: password=hunter2")
            self.messages.append(message)
            self._arrived.notify_all()

    async def until(self, ready: Callable[["Inbox"], bool]) -> None:
        async with self._arrived:
            await self._arrived.wait_for(lambda: ready(self))

    @property
    def kinds(self) -> list[str]:
        return [message.kind for message in self.messages]


def finished(inbox: Inbox) -> bool:
    return "execution.finished" in inbox.kinds


def two_steps(stage: Stage) -> Any:
    builder = SagaBuilder("s").step("a", stage.does("a", "secret result"), compensate=stage.does("undo"))
    return builder.step("b", stage.does("b"), depends_on=["a"]).build()


@pytest.mark.requirement("D5")
async def test_all_that_happens_to_an_execution_is_told_in_order(make_engine: MakeEngine) -> None:
    inbox = Inbox()
    engine = await make_engine(two_steps(Stage()), messages=["*"], publish=inbox.publish)
    handle = await engine.start("s", {"card": "secret"}, correlation_id="root", target=("order", "7"), tenant="acme")
    await inbox.until(finished)

    assert inbox.kinds == ["execution.started", "step.completed", "step.completed", "execution.finished"]
    first, a, b, last = inbox.messages
    assert (first.execution_id, first.tenant, first.correlation_id) == (handle.id, "acme", "root")
    assert (first.definition, first.version, first.data) == ("s", 1, {"target": {"type": "order", "id": "7"}})
    assert [a.data["step"], b.data["step"], last.data["status"]] == ["a", "b", "succeeded"]
    assert [message.seq for message in inbox.messages] == sorted(message.seq for message in inbox.messages)
    assert len({message.id for message in inbox.messages}) == 4
    assert "secret" not in repr(inbox.messages), "messages name things, and never carry payloads"


@pytest.mark.requirement("D5")
async def test_a_failure_and_its_undo_are_told(make_engine: MakeEngine) -> None:
    inbox, stage = Inbox(), Stage()
    builder = SagaBuilder("s").step("a", stage.does("a"), compensate=stage.does("undo"))
    builder = builder.step("b", stage.fails("b", NonRetryableError("no")), depends_on=["a"])
    engine = await make_engine(builder, messages=["step.*", "execution.finished"], publish=inbox.publish)
    await engine.execute("s")
    await inbox.until(finished)
    assert inbox.kinds == ["step.completed", "step.failed", "step.compensated", "execution.finished"]
    error = {"error_class": "NON_RETRYABLE", "code": "non_retryable", "step": "b"}
    assert inbox.messages[1].data == {"step": "b", "attempt": 1, "error": error}
    assert inbox.messages[3].data == {"status": "failed", "outcome": "", "error": error}


@pytest.mark.requirement("D5")
async def test_what_people_do_is_told(make_engine: MakeEngine) -> None:
    inbox = Inbox()
    builder = SagaBuilder("s").approval("ok")
    engine = await make_engine(builder, messages=["*"], publish=inbox.publish)
    handle = await engine.start("s")
    await inbox.until(lambda i: "review.opened" in i.kinds)
    await handle.pause(reason="lunch")
    await handle.resume()
    await handle.approve("ok")
    await inbox.until(finished)
    assert inbox.kinds == [
        "execution.started",
        "review.opened",
        "execution.paused",
        "execution.resumed",
        "review.resolved",
        "execution.finished",
    ]
    assert inbox.messages[4].data == {"review": inbox.messages[1].data["review"], "resolution": "approved"}


@pytest.mark.requirement("D5")
async def test_a_publisher_that_fails_is_asked_again_and_nothing_overtakes(make_engine: MakeEngine) -> None:
    away = True
    inbox = Inbox(lambda message: message.kind == "execution.started" and away)
    engine = await make_engine(two_steps(Stage()), messages=["*"], publish=inbox.publish)
    await engine.execute("s")
    await inbox.until(lambda i: i.refused >= 2)
    status = await engine.outbox()
    assert status.waiting == 4
    assert status.oldest_at is not None
    away = False
    await inbox.until(finished)
    assert inbox.kinds == ["execution.started", "step.completed", "step.completed", "execution.finished"]


@pytest.mark.requirement("D5")
async def test_what_cannot_be_published_is_seen_and_holds_up_nobody_else(make_engine: MakeEngine) -> None:
    bad: list[str] = []
    inbox = Inbox(lambda message: message.execution_id in bad)
    engine = await make_engine(two_steps(Stage()), messages=["execution.finished"], publish=inbox.publish)
    bad.append((await engine.start("s", idempotency_key="bad")).id)
    good = await engine.start("s")
    await inbox.until(lambda i: i.refused > 0 and len(i.messages) == 1)
    assert [message.execution_id for message in inbox.messages] == [good.id]
    while ((status := await engine.outbox()).waiting, status.failing) != (1, 1):
        await asyncio.to_thread(lambda: None)  # both are noted when the publisher has returned
    assert status.last_error is not None
    assert "the broker is away" in status.last_error
    assert "hunter2" not in status.last_error


@pytest.mark.requirement("D5")
async def test_without_messages_nothing_is_written(make_engine: MakeEngine) -> None:
    inbox = Inbox()
    engine = await make_engine(two_steps(Stage()), publish=inbox.publish)
    await engine.execute("s")
    assert (await engine.outbox()).waiting == 0
    assert inbox.messages == []


@pytest.mark.requirement("D5")
async def test_messages_wait_until_somebody_publishes_them(make_engine: MakeEngine) -> None:
    engine = await make_engine(two_steps(Stage()), messages=["execution.*"])
    await engine.execute("s")
    assert (await engine.outbox()).waiting == 2


@pytest.mark.requirement("D5")
def test_an_unknown_kind_is_refused(url: str) -> None:
    from tenuto import Engine

    with pytest.raises(InvalidInput, match=r"execution\.finished"):
        Engine(url, messages=["execution.ended"])
