"""Approvals, signals, timers, callbacks."""

from contextlib import suppress

from tenuto.errors import InvalidTransition, NotFound, ResultTimeout
from tests.crash.client import TERMINAL, Client
from tests.crash.scenario import Document, scenario, task


def approval(id: str, **fields: object) -> Document:
    return {"step_id": id, "type": "human_approval", **fields}


def wait(id: str, **given: object) -> Document:
    fields = {name: given.pop(name) for name in ("timeout_ms",) if name in given}
    return {"step_id": id, "type": "wait", "with": given, **fields}


async def _reject(client: Client) -> None:
    handle = await client.start()
    await client.blocked(handle, "approval")
    with suppress(InvalidTransition):
        await handle.reject("ok")
    await client.finish(handle)


async def _never_decide(client: Client) -> None:
    handle = await client.start()
    await handle.result(return_when="terminal")


scenario("approved", task("a", undo="ok"), approval("ok"), task("b"))
scenario("rejected", task("a", undo="ok"), approval("ok"), task("b"), ends="failed", script=_reject)
scenario(
    "nobody decides",
    task("a", undo="ok"),
    approval("ok", timeout_ms=150),
    task("b"),
    ends="failed",
    script=_never_decide,
)


async def _signal(client: Client) -> None:
    handle = await client.start()
    await client.blocked(handle, "signal")
    await client.command(handle.signal("go", {"n": 1}, id="s1"))
    await client.finish(handle)


async def _early_signal(client: Client) -> None:
    handle = await client.start()
    await client.command(handle.signal("go", {"n": 1}, id="s1"))
    await client.finish(handle)


scenario("signal", task("a"), wait("w", signal="go"), task("b"), script=_signal)
scenario("early signal", task("a"), task("b"), wait("w", signal="go"), task("c"), script=_early_signal)
scenario("signal that never comes", task("a", undo="ok"), wait("w", signal="go", timeout_ms=150), ends="failed")
scenario("timer", task("a"), wait("w", duration_ms=120), task("b"))


def remote(id: str, **fields: object) -> Document:
    call = {"step_id": id, "type": "external_call", "handler": "send", "completion": "callback"}
    times = {"ack_timeout_ms": 20_000, "result_timeout_ms": 20_000}
    retry = {"max_attempts": 3, "initial_delay_ms": 5, "jitter": 0}
    return {**call, "idempotency_strategy": "SAFE_TO_RETRY", "retry_policy": retry, **times, **fields}


async def _answer(client: Client) -> None:
    """Somebody outside has the directive, and answers the last one, however often it was sent."""
    handle = await client.start()
    while (await client.blocked(handle, "callback"))["status"] not in TERMINAL:
        sent = [line for line in client.world.lines("sent") if line["x"] == handle.id]
        given = {"attempt": sent[-1]["number"], "lease": sent[-1]["lease"]} if sent else {}
        with suppress(InvalidTransition, NotFound, ResultTimeout):
            if sent:
                await handle.acknowledge("r", **given)
                await handle.answer("r", **given, result=1)
            await handle.result(timeout="20ms", return_when="terminal")


async def _answer_late(client: Client) -> None:
    """The first directive gets lost on its way."""
    handle = await client.start()
    await client.until(handle, lambda _: len(client.world.lines("sent")) > 1)
    await _answer(client)


scenario("callback", task("a"), remote("r"), task("b"), script=_answer)
scenario(
    "callback that comes late",
    remote("r", ack_timeout_ms=100, retry_policy={"max_attempts": 20, "initial_delay_ms": 5, "jitter": 0}),
    task("b"),
    script=_answer_late,
)
