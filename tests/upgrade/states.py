"""Executions in every state that one can be left in, and what their handlers do: before the upgrade, and after it."""

import asyncio
from collections import Counter
from typing import Any

from tenuto import Engine, NotDone, Outcome, Pending, SagaContext
from tenuto.errors import IndeterminateError, NonRetryableError, TransientError
from tests.crash.scenario import UNSAFE, Document

QUEUE = "elsewhere"
FAR = "far"  # the queue that somebody served
LIMIT = "bank"
CENTURY_MS = 100 * 365 * 24 * 3_600_000  # fixtures are kept for long
ITEMS = 200  # of a fan-out that is long enough for a snapshot


def task(id: str, does: str = "ok", *, undo: str | None = None, **fields: Any) -> Document:
    """`does` is for the first time: after the upgrade everything goes well."""
    step: Document = {
        "step_id": id,
        "type": "task",
        "handler": "act",
        "with": {"does": does, "gives": fields.pop("gives", None)},
        "idempotency_strategy": "SAFE_TO_RETRY",
        "retry_policy": {"max_attempts": 5, "initial_delay_ms": fields.pop("delay_ms", 10), "jitter": 0},
        **fields,
    }
    if undo is not None:
        step |= {"compensation_handler": "undo", "compensation_with": {"does": undo}}
    return step


def payment(id: str, does: str, *, finds: bool, **fields: Any) -> Document:
    how = {"reconcile_handler": "find"} if finds else {"compensation_policy": "manual"}
    return task(id, does, idempotency_strategy=UNSAFE, **how, **fields)


APPROVAL: Document = {"step_id": "ok", "type": "human_approval"}
SIGNAL: Document = {"step_id": "w", "type": "wait", "with": {"signal": "go"}}
TIMER: Document = {"step_id": "w", "type": "wait", "with": {"duration_ms": 60_000}}
CALLBACK: Document = {
    "step_id": "r",
    "type": "external_call",
    "handler": "act",
    "with": {"does": "ok", "gives": None},
    "completion": "callback",
    "idempotency_strategy": "SAFE_TO_RETRY",
    "ack_timeout_ms": CENTURY_MS,
    "result_timeout_ms": CENTURY_MS,
}
EACH = {"foreach": "steps.a.result"}

STATES: dict[str, tuple[list[Document], str]] = {
    "succeeded": ([task("a"), task("b")], "succeeded"),
    "failed": ([task("a", undo="ok"), task("b", "refuses")], "failed"),
    "canceled": ([task("a", undo="ok"), SIGNAL], "canceled"),
    "paused": ([task("a"), APPROVAL, task("b")], "succeeded"),
    "approval": ([task("a"), APPROVAL, task("b")], "succeeded"),
    "signal": ([task("a"), SIGNAL, task("b")], "succeeded"),
    "timer": ([task("a"), TIMER, task("b")], "succeeded"),
    "running": ([task("a"), task("b", "hangs"), task("c")], "succeeded"),
    "paying": ([task("a"), payment("pay", "hangs", finds=True), task("c")], "succeeded"),
    "retrying": ([task("a", "stumbles", delay_ms=60_000), task("b")], "succeeded"),
    "unknown": ([payment("pay", "is unknown", finds=False), task("b")], "succeeded"),
    "undoing": ([task("a", undo="hangs"), task("b", "refuses")], "failed"),
    "draining": ([task("a", "hangs"), task("b")], "canceled"),
    "fan-out": ([task("a", gives=[1, 2, 3]), task("each", "hangs at 2", **EACH), task("c")], "succeeded"),
    "long": ([task("a", gives=[f"{n:0128}" for n in range(ITEMS)]), task("each", **EACH), APPROVAL], "succeeded"),
    "callback": ([CALLBACK, task("b")], "succeeded"),
    "queue": ([task("a"), task("b", queue=QUEUE)], "succeeded"),
    "limit": ([task("a", "hangs", limits=[LIMIT])], "succeeded"),
    "behind-the-limit": ([task("a", limits=[LIMIT])], "succeeded"),
    "key": ([task("a", "hangs")], "succeeded"),
    "second-run": ([task("a"), task("b", "refuses once"), task("c")], "succeeded"),
    "mail": ([task("a"), SIGNAL, task("b")], "succeeded"),
    "not-taken": ([task("a"), task("b")], "succeeded"),
}
"""By name: the steps, and how it ends. These are in every fixture; `later.py` has what came afterwards."""


class Handlers:
    """`mended`: after the upgrade everything goes well. `calls` counts them, by execution and step."""

    def __init__(self, *, mended: bool) -> None:
        self._mended = mended
        self.calls: Counter[tuple[str, str]] = Counter()

    def provide(self, engine: Engine) -> None:
        for name in ("act", "undo", "find", "guard", "plan", "think"):
            engine.handler(name, getattr(self, name))

    async def act(self, given: Any, ctx: SagaContext) -> Any:
        self.calls[ctx.saga, ctx.path] += 1
        does = "ok" if self._mended else given["does"]
        if does == "refuses once":
            does = "refuses" if self.calls[ctx.saga, ctx.path] == 1 else "hangs"
        if does == "stumbles, then hangs":
            does = "stumbles" if self.calls[ctx.saga, ctx.path] == 1 else "hangs"
        if does == "goes, then hangs":
            does = "ok" if ctx.path.startswith("again@1/") else "hangs"
        if does == "hangs" or (does == "hangs at 2" and ctx.path.endswith("#2")):
            await ctx.heartbeat({"hangs": True})
            await asyncio.Event().wait()
        if does == "stumbles":
            raise TransientError("stumbled")
        if does == "refuses":
            raise NonRetryableError("refused")
        if does == "is unknown":
            raise IndeterminateError("no answer")
        return given["gives"]

    async def undo(self, given: Any, ctx: SagaContext) -> None:
        self.calls[ctx.saga, f"undo {ctx.path}"] += 1
        does = "ok" if self._mended else given["does"]
        if does == "hangs":
            await asyncio.Event().wait()
        if does == "refuses":
            raise NonRetryableError("refused")

    async def guard(self, ctx: SagaContext) -> Outcome[Any]:
        self.calls[ctx.saga, f"guard {ctx.path}"] += 1
        if not self._mended:
            await asyncio.Event().wait()
        return NotDone()

    async def find(self, ctx: SagaContext) -> Outcome[Any]:
        self.calls[ctx.saga, f"find {ctx.path}"] += 1
        return Pending(retry_after="1m") if ctx.saga == "looked-for" and not self._mended else NotDone()

    async def plan(self, ctx: SagaContext) -> Any:
        self.calls[ctx.saga, f"plan {ctx.path}"] += 1
        return [task("m"), task("n", "hangs")]

    async def think(self, ctx: SagaContext) -> Any:
        if not self._mended:
            await asyncio.Event().wait()
        return await self.plan(ctx)
