"""One workflow type that runs the kernel: what `runtime/temporal` will be, cut down to what a smoke test needs.

Law 1: facts come in by `mail`; `run` alone decides them, one after another, in the order in which they came.
Law 2: the only time is the workflow's, and ids are the kernel's: a replay decides the same.
Law 3: an attempt is an activity that is tried once. Whether there is another attempt the kernel decides.

Left out: what leaves the agenda while it is under way is not stopped, and history does not continue as new.
Temporal imports this file anew, inside its sandbox, for every workflow: nothing here may act when imported.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import msgspec
from msgspec import Raw
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError

from tenuto.kernel.address import Ref, idempotency_key
from tenuto.kernel.codec import encode_entry, encode_snapshot
from tenuto.kernel.compensation import rollback, undo_policy
from tenuto.kernel.decide import decide
from tenuto.kernel.definition import ERROR_CLASSES, JSON, Step, from_document
from tenuto.kernel.effects import RunAttempt
from tenuto.kernel.evolve import step_at
from tenuto.kernel.facts import (
    Begun,
    Decide,
    Done,
    Fact,
    Failed,
    NotDone,
    Outcome,
    Pending,
    Reported,
    Start,
    Succeeded,
    Tick,
    TimedOut,
)
from tenuto.kernel.plan import Plan
from tenuto.kernel.retry import needs_begin
from tenuto.kernel.state import Execution

WORKER = "temporal"
ONE_TRY = RetryPolicy(maximum_attempts=1)


@dataclass
class Order:
    """The workflow's input: a definition as a document, and what to start it with."""

    tenant: str
    definition: dict[str, JSON]
    input: JSON


@dataclass
class Attempt:
    """An activity's input."""

    handler: str
    number: int
    key: str


@dataclass
class Reply:
    """An activity's result. Probes give a verdict."""

    result: JSON = None
    verdict: Literal["done", "not_done", "pending"] | None = None
    retry_after_ms: int | None = None


@dataclass
class Word:
    """What a person says to the step that waits for approval."""

    path: str
    approved: bool
    actor: str


@dataclass
class Record:
    """What the workflow knows of its execution: the history, as stored lines, and what it folds to."""

    status: str
    entries: list[str]
    snapshot: str


@workflow.defn
class Saga:
    @workflow.init
    def __init__(self, order: Order) -> None:
        self.state = Execution(Plan(from_document(order.definition)))
        self.entries: list[str] = []
        self.mail: deque[Fact] = deque()
        self.attempts: dict[Ref, asyncio.Task[None]] = {}
        self.alarm: asyncio.TimerHandle | None = None
        self.alarm_at: int | None = None

    @workflow.run
    async def run(self, order: Order) -> Record:
        id = workflow.info().workflow_id
        self.decide(Start(at=now_ms(), execution=id, tenant=order.tenant, input=raw(order.input)))
        while self.state.finished is None:
            self.set_alarm()
            await workflow.wait_condition(lambda: len(self.mail) > 0)
            while self.mail:
                self.decide(self.mail.popleft())
        return self.record()

    @workflow.signal
    def word(self, word: Word) -> None:
        resolution: Literal["approved", "rejected"] = "approved" if word.approved else "rejected"
        self.mail.append(Decide(at=now_ms(), path=word.path, resolution=resolution, actor=word.actor))

    @workflow.query
    def status(self) -> str:
        return self.state.status

    @workflow.query
    def record(self) -> Record:
        return Record(self.state.status, self.entries, encode_snapshot(self.state).decode())

    def decide(self, fact: Fact) -> None:
        decision = decide(self.state, fact, now_ms())
        self.entries.extend(encode_entry(entry).decode() for entry in decision.entries)
        changed, self.state.changed = self.state.changed, []
        for key in changed:
            effect = self.state.agenda.get(key)
            if effect is not None:
                assert isinstance(effect, RunAttempt), "this saga has neither queues nor keys nor credits"
                self.start(effect.ref)

    def start(self, ref: Ref) -> None:
        if ref in self.attempts:
            return
        self.attempts[ref] = asyncio.create_task(self.perform(ref))
        if needs_begin(step_at(self.state, ref.path).node, ref):
            # Temporal schedules the activity in the commit that records this: it cannot have begun before.
            self.decide(Begun(at=now_ms(), ref=ref, worker=WORKER))

    async def perform(self, ref: Ref) -> None:
        step = step_at(self.state, ref.path)
        handler, timeout_ms = self.handler_of(step.node.step, ref)
        key = idempotency_key(self.state.tenant, self.state.id, ref.path, ref.phase, step.generation)
        started_at = now_ms()
        try:
            reply: Reply = await workflow.execute_activity(
                "attempt",
                Attempt(handler, ref.number, key),
                activity_id=f"{ref.path} {ref.phase} {ref.number}",
                result_type=Reply,
                start_to_close_timeout=timedelta(milliseconds=timeout_ms),
                retry_policy=ONE_TRY,
            )
            outcome = outcome_of(reply)
        except ActivityError as error:
            outcome = failure_of(error)
        self.mail.append(Reported(at=now_ms(), ref=ref, outcome=outcome, started_at=started_at, worker=WORKER))

    def handler_of(self, step: Step, ref: Ref) -> tuple[str, int]:
        if ref.phase == "compensate":
            handler, timeout_ms = (
                step.compensation_handler,
                undo_policy(step, rollback(self.state).max_attempts).timeout_ms,
            )
        elif ref.phase == "reconcile":
            handler, timeout_ms = step.reconcile_handler, step.reconcile_timeout_ms
        else:
            handler, timeout_ms = step.handler, step.retry_policy.timeout_ms
        assert handler is not None
        return handler, timeout_ms

    def set_alarm(self) -> None:
        """Keeps one timer, at the kernel's earliest. It is left alone while it is right: each costs history."""
        wake_at = self.state.wake_at
        if wake_at == self.alarm_at:
            return
        if self.alarm is not None:
            self.alarm.cancel()
        self.alarm, self.alarm_at = None, wake_at
        if wake_at is not None:
            delay_ms = max(wake_at - now_ms(), 1)
            self.alarm = asyncio.get_running_loop().call_later(delay_ms / 1_000, self.ring)

    def ring(self) -> None:
        self.alarm = self.alarm_at = None
        self.mail.append(Tick(at=now_ms()))


def now_ms() -> int:
    return workflow.time_ns() // 1_000_000


def raw(value: JSON) -> Raw:
    return Raw(msgspec.json.encode(value))


def outcome_of(reply: Reply) -> Outcome:
    match reply.verdict:
        case None:
            return Succeeded(result=raw(reply.result))
        case "done":
            return Done(result=raw(reply.result))
        case "not_done":
            return NotDone()
        case "pending":
            return Pending(retry_after_ms=reply.retry_after_ms)


def failure_of(error: ActivityError) -> Outcome:
    """Handlers say the error class in the type of the error that they raise."""
    cause = error.cause
    if isinstance(cause, TimeoutError):
        return TimedOut()
    assert isinstance(cause, ApplicationError)
    error_class = next(name for name in ERROR_CLASSES if name == cause.type)
    return Failed(error_class=error_class, code=error_class.lower(), summary=cause.message)
