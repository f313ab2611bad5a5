"""The kernel inside a real Temporal workflow, with the sandbox on: it stays fit to be run there."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from importlib import import_module

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle, WorkflowHistory
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from tenuto.kernel.codec import decode_entry, encode_snapshot
from tenuto.kernel.definition import JSON, from_document
from tenuto.kernel.events import AttemptFailed, Entry
from tenuto.kernel.evolve import fold, step_at
from tenuto.kernel.plan import Plan
from tenuto.kernel.state import Execution

from .server import temporal_server
from .workflow import Attempt, Order, Record, Reply, Saga, Word

DEFINITION: dict[str, JSON] = {
    "name": "order",
    "mode": "sequence",
    "steps": [
        {
            "step_id": "reserve",
            "handler": "reserve",
            "compensation_handler": "release",
            "retry_policy": {"initial_delay_ms": 50},
        },
        {
            "step_id": "pay",
            "handler": "pay",
            "idempotency_strategy": "NOT_SAFE_TO_RETRY",
            "reconcile_handler": "find_payment",
            "compensation_handler": "refund",
            "retry_policy": {"timeout_ms": 300},
        },
        {
            "step_id": "approve",
            "type": "human_approval",
            "when": "input.amount > 100 && timestamp(input.placed_at).getFullYear() >= 2026",
        },
        {"step_id": "confirm", "handler": "confirm"},
    ],
}
INPUT: JSON = {"amount": 250, "placed_at": "2026-11-15T12:00:00Z"}

# `cel` cannot be loaded twice: its Rust part panics. The rest may be passed through, which saves loading and keeping
# a copy of it for every workflow; that it need not be shows that it does nothing which the sandbox forbids.
NEEDED = ("cel",)
FAST = ("cel", "msgspec", "tenuto.kernel")


class Shop:
    """The handlers: the first reservation fails, the payment never answers, the confirmation is refused."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.keys: dict[str, set[str]] = {}

    @activity.defn
    async def attempt(self, attempt: Attempt) -> Reply:
        self.calls.append((attempt.handler, attempt.number))
        self.keys.setdefault(attempt.handler, set()).add(attempt.key)
        match attempt.handler, attempt.number:
            case "reserve", 1:
                raise ApplicationError("the warehouse is busy", type="TRANSIENT")
            case "pay", _:
                await asyncio.Event().wait()
            case "find_payment", 1:
                return Reply(verdict="pending", retry_after_ms=50)
            case "find_payment", _:
                return Reply(verdict="done", result={"payment": "p-1"})
            case "confirm", _:
                raise ApplicationError("the customer is gone", type="NON_RETRYABLE")
        return Reply(result={"done": attempt.handler})


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with temporal_server() as address:
        yield address


@pytest.mark.parametrize("passed_through", [NEEDED, FAST], ids=["all_in_the_sandbox", "kernel_passed_through"])
async def test_a_saga_runs_and_replays_on_temporal(
    address: str, passed_through: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    for module in passed_through:
        import_module(module)  # before the first workflow task, which would have to wait for it
    runner = SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*passed_through))
    client = await Client.connect(address)
    queue = request.node.callspec.id
    shop = Shop()

    async with Worker(
        client,
        task_queue=queue,
        workflows=[Saga],
        activities=[shop.attempt],
        workflow_runner=runner,
        debug_mode=True,  # which has no limit for how long a busy machine may take for a workflow task
        workflow_failure_exception_types=[Exception],  # and not tried again for ever
    ):
        saga = await client.start_workflow(
            Saga.run,
            Order("acme", DEFINITION, INPUT),
            id=f"order-{queue}",
            task_queue=queue,
            execution_timeout=timedelta(minutes=4),
        )
        await reached(saga, "waiting_approval")
        await saga.signal(Saga.word, Word("approve", approved=True, actor="ann"))
        record = await saga.result()

    assert shop.calls == [
        ("reserve", 1),
        ("reserve", 2),
        ("pay", 1),
        ("find_payment", 1),
        ("find_payment", 2),
        ("confirm", 1),
        ("refund", 1),
        ("release", 1),
    ]
    assert all(len(keys) == 1 for keys in shop.keys.values()), "one key per step and phase, whatever the attempt"
    assert len({key for keys in shop.keys.values() for key in keys}) == len(shop.keys)
    check_record(record)
    history = await saga.fetch_history()
    check_history(history)

    # A worker that has never seen the workflow knows it from Temporal's history alone.
    async with Worker(client, task_queue=queue, workflows=[Saga], workflow_runner=runner, debug_mode=True):
        assert await saga.query(Saga.record) == record
    recorded = WorkflowHistory.from_json(saga.id, history.to_json())
    await Replayer(workflows=[Saga], workflow_runner=runner, debug_mode=True).replay_workflow(recorded)


async def reached(saga: WorkflowHandle[Saga, Record], status: str) -> None:
    async with asyncio.timeout(240):
        while await saga.query(Saga.status) != status:
            if (await saga.describe()).status != WorkflowExecutionStatus.RUNNING:
                record = await saga.result()  # raises what it failed of
                pytest.fail(f"It ended before it was {status}:\n" + "\n".join(record.entries))


def check_record(record: Record) -> None:
    """Folded out here, the history gives the workflow's state, and tells the story."""
    entries = [decode_entry(line.encode()) for line in record.entries]
    state = fold(Execution(Plan(from_document(DEFINITION))), entries)
    assert encode_snapshot(state).decode() == record.snapshot
    assert state.status == record.status == "failed"
    assert state.agenda == {}
    assert {path: step_at(state, path).status for path in ("reserve", "pay", "approve", "confirm")} == {
        "reserve": "succeeded",
        "pay": "succeeded",
        "approve": "succeeded",
        "confirm": "failed",
    }
    assert [step_at(state, path).undo for path in ("reserve", "pay")] == ["done", "done"]
    assert [entry.actor for entry in entries if entry.actor is not None] == ["ann"]
    check_backoff(entries)


def check_backoff(entries: list[Entry]) -> None:
    failed, retried = entries[1:3]
    assert isinstance(failed.event, AttemptFailed)
    assert [(grant.path, grant.number) for grant in retried.grants] == [("reserve", 2)]
    assert failed.event.retry_at is not None
    assert retried.at >= failed.event.retry_at


def check_history(history: WorkflowHistory) -> None:
    """Temporal tried no activity twice, and its timers rang for the backoff and for the second probe."""
    events = list(history.events)
    tries = [
        event.activity_task_scheduled_event_attributes.retry_policy.maximum_attempts
        for event in events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    assert tries == [1] * 8
    assert sum(event.HasField("timer_fired_event_attributes") for event in events) == 2
