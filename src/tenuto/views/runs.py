"""The documents of runs: what people and programs are shown."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Literal, TypedDict

import msgspec
from msgspec import Struct

from tenuto.kernel import events as e
from tenuto.kernel.definition import Policies, plain_name
from tenuto.kernel.events import Entry, Failure
from tenuto.kernel.plan import Node, Plan
from tenuto.kernel.run_states import RunState, run_status
from tenuto.kernel.state import Execution, ScopeState, StepState
from tenuto.values.credits import decimal_text

from .agents import AGENTS_CLOSED, AgentView, agents_of, agents_scope
from .blocking import blocked
from .execution import stored_output
from .finding import result_of
from .shapes import NOTHING_UNDER_WAY, Activity, Blocked, decoded, rfc3339, time_text

ErrorSource = Literal["agent", "planner", "conclude", "run"]
TERMINAL_CODES = ("pending_timeout", "deadline", "resume_timeout", "retry_timeout", "heartbeat_timeout", "unstuck")


class RunError(TypedDict):
    """Why a run failed. `class` is the error class, `source` the part of the run that failed."""

    code: str
    error_class: str
    message: str
    source: ErrorSource
    step: str | None


class RunContextDocument(TypedDict):
    replan_count: int
    decomposition: list[dict[str, Any]]


class RunStatus(Struct, frozen=True, kw_only=True):
    """One run: the fields of `GET /api/v1/runs/{id}`. Credits and counts are those of the current attempt."""

    id: str
    org_id: str
    definition: str
    version: int
    name: str
    task: Any
    output: Any
    status: RunState
    outcome: str
    priority: str
    queue: str
    failure_mode: str
    attempt_number: int
    max_attempts: int
    max_agents: int
    agent_count: int
    task_count: int
    step_count: int
    max_tokens: int
    tokens_used: int
    credits_estimated: Decimal
    credits_reserved: Decimal
    credits_charged: Decimal
    credits_refunded: Decimal
    credits_unpaid: Decimal
    context: RunContextDocument
    last_error: RunError | None
    blocked: Blocked | None
    pause_reason: str | None
    escalation_ticket_id: str | None
    created_at: str
    started_at: str | None
    running_at: str | None
    last_heartbeat: str | None
    completed_at: str | None
    cancelled_at: str | None
    deleted_at: str | None
    deadline_at: str | None
    duration_ms: int | None


class CreatedRun(Struct, frozen=True, kw_only=True):
    """What is known of a run from its creation on."""

    id: str
    org_id: str
    definition: str
    version: int
    name: str
    task: bytes
    priority: str
    max_tokens: int
    max_attempts: int
    estimate: int
    created_at: int
    cancelled_at: int | None
    deleted_at: int | None


def credits(amount: int) -> Decimal:
    return Decimal(decimal_text(amount))


def created_document(run: CreatedRun, plan: Plan | None) -> RunStatus:
    """Returns the document of a run that has not started, or was cancelled before."""
    cancelled = run.cancelled_at
    return RunStatus(
        **_from_creation(run, plan),
        output=None,
        status="created" if cancelled is None else "cancelled",
        outcome="",
        attempt_number=1,
        agent_count=0,
        task_count=0,
        step_count=0,
        tokens_used=0,
        credits_reserved=credits(0),
        credits_charged=credits(0),
        credits_refunded=credits(0),
        credits_unpaid=credits(0),
        context={"replan_count": 0, "decomposition": []},
        last_error=None,
        blocked=None,
        pause_reason=None,
        escalation_ticket_id=None,
        started_at=None,
        running_at=None,
        last_heartbeat=None,
        completed_at=None,
        cancelled_at=time_text(cancelled),
        deadline_at=None,
        duration_ms=None if cancelled is None else 0,
    )


def _from_creation(run: CreatedRun, plan: Plan | None) -> dict[str, Any]:
    return {
        "id": run.id,
        "org_id": run.org_id,
        "definition": plain_name(run.definition),
        "version": run.version,
        "name": run.name,
        "task": msgspec.json.decode(run.task),
        "priority": run.priority,
        "queue": "runs.high_priority" if run.priority == "high" else "runs.normal",
        "failure_mode": "" if plan is None else failure_mode(plan),
        "max_attempts": run.max_attempts,
        "max_agents": 0 if plan is None else plan.root.children[0].scope.max_children,
        "max_tokens": run.max_tokens,
        "credits_estimated": credits(run.estimate),
        "created_at": rfc3339(run.created_at),
        "deleted_at": time_text(run.deleted_at),
    }


def failure_mode(plan: Plan) -> str:
    policies: Policies = plan.definition.policies
    return "retry" if policies.failure_mode == "retry" else plan.root.children[0].scope.failure_mode


def run_document(
    run: CreatedRun, state: Execution, history: Sequence[Entry], activity: Activity = NOTHING_UNDER_WAY
) -> RunStatus:
    """Returns the document of a run that was started."""
    status = run_status(state)
    started_at = history[0].at
    ended_at = state.at if status in ("completed", "failed", "cancelled") else None
    if ended_at is not None:
        ended_at = next((x.at for x in reversed(history) if isinstance(x.event, e.ExecutionFinished)), ended_at)
    began = status not in ("pending", "retrying")
    agents = agents_of(state) if began else []
    scope = agents_scope(state)
    return RunStatus(
        **_from_creation(run, state.plan),
        output=decoded(stored_output(state, history)) if status == "completed" else None,
        status=status,
        outcome=(state.outcome or "succeeded") if status == "completed" else "",
        attempt_number=state.run,
        agent_count=len(agents),
        task_count=sum(len(agent.node.children) for agent in agents),
        step_count=sum(_steps_in(agent.node) for agent in agents),
        tokens_used=state.tokens,
        credits_reserved=credits(state.hold),
        credits_charged=credits(state.charged),
        credits_refunded=credits(state.refunded),
        credits_unpaid=credits(state.usage - state.charged if state.hold else 0),
        context={
            "replan_count": 0 if scope is None else scope.replans,
            "decomposition": [{"agent": a.kind, "input": a.input} for a in agents if a.status != "superseded"],
        },
        last_error=run_error(state, state.failure) if status == "failed" else _cancel_error(state),
        blocked=blocked(state, activity),
        pause_reason=None if state.pause is None else state.pause.reason,
        escalation_ticket_id=next((r.id for r in state.reviews.values() if r.kind == "escalation"), None),
        started_at=rfc3339(started_at),
        running_at=time_text(state.running_at),
        last_heartbeat=rfc3339(state.at),
        completed_at=time_text(ended_at) if status in ("completed", "failed") else None,
        cancelled_at=time_text(ended_at) if status == "cancelled" else None,
        deadline_at=time_text(_deadline(state, status)),
        duration_ms=None if ended_at is None else ended_at - started_at,
    )


def _deadline(state: Execution, status: RunState) -> int | None:
    match status:
        case "pending":
            return state.timers.get(("pending", ""))
        case "running":
            return state.timers.get(("execution", ""))
        case "resuming":
            return state.timers.get(("resuming", ""))
        case "retrying":
            return state.timers.get(("retrying", ""))
        case "paused":
            return None if state.pause is None else state.pause.limit_at
    return None


def _steps_in(node: Node) -> int:
    return sum(not inner.is_scope for inner in node.walk())


def _cancel_error(state: Execution) -> RunError | None:
    if state.finished != "canceled" or state.cancel is None or state.cancel.reason != "pause_limit":
        return None
    text = "the run was paused for longer than its limit"
    return {"code": "pause_limit", "error_class": "NON_RETRYABLE", "message": text, "source": "run", "step": None}


def run_error(state: Execution, failure: Failure | None) -> RunError | None:
    if failure is None:
        return None
    step = without_agents(failure.path) or None
    return {
        "code": failure.code,
        "error_class": failure.error_class,
        "message": failure.summary,
        "source": _source(state, failure),
        "step": step,
    }


def _source(state: Execution, failure: Failure) -> ErrorSource:
    if failure.code in TERMINAL_CODES or not failure.path:
        return "run"
    agents = state.plan.root.children[0].id
    if failure.path == agents:
        return "planner"
    return "agent" if failure.path.startswith(f"{agents}/") else "conclude"


def without_agents(path: str) -> str:
    """Returns a path without the scope of a run's agents."""
    return path.partition("/")[2] if path.startswith("agents/") else path


# -- Agents, tasks, steps, attempts ------------------------------------------------------------------------------------


class AgentDocument(TypedDict):
    id: str
    run_id: str
    attempt_number: int
    sequence_number: int
    subtask: Any
    status: str
    parallelism_mode: str
    failure_mode: str
    task_count: int
    last_error: RunError | None


class TaskDocument(TypedDict):
    id: str
    agent_id: str
    status: str
    dependencies: list[str]
    step_count: int


class StepRowDocument(TypedDict):
    id: str
    task_id: str
    status: str
    attempts: int
    output: Any
    error: RunError | None


class RunAttemptDocument(TypedDict):
    attempt_number: int
    status: str
    credits_reserved: str
    credits_charged: str
    credits_refunded: str
    tokens_used: int
    started_at: str
    ended_at: str | None


_MODES = {"sequence": "sequential"}


def agent_documents(state: Execution) -> list[AgentDocument]:
    return [_agent(state, agent) for agent in agents_of(state)]


def _agent(state: Execution, agent: AgentView) -> AgentDocument:
    spec = agent.node.scope
    return {
        "id": agent.id,
        "run_id": state.id,
        "attempt_number": state.run,
        "sequence_number": agent.number,
        "subtask": agent.input,
        "status": agent.status,
        "parallelism_mode": _MODES.get(spec.mode, spec.mode),
        "failure_mode": spec.failure_mode,
        "task_count": len(agent.node.children),
        "last_error": run_error(state, agent.state.failure if agent.state is not None else None),
    }


def task_documents(state: Execution) -> Iterator[TaskDocument]:
    for agent, task, path in _tasks(state):
        known = state.nodes.get(path)
        yield {
            "id": f"{agent.id}/{task.id}",
            "agent_id": agent.id,
            "status": _node_status(state, agent, known if isinstance(known, ScopeState) else None),
            "dependencies": [f"{agent.id}/{id}" for id in _dependencies(agent, task)],
            "step_count": len(task.children),
        }


def _tasks(state: Execution) -> Iterator[tuple[AgentView, Node, str]]:
    for agent in agents_of(state):
        for task in agent.node.children:
            yield agent, task, f"{agent.path}/{task.id}"


def _dependencies(agent: AgentView, task: Node) -> list[str]:
    if agent.node.scope.mode == "sequence" and task.index:
        return [agent.node.children[task.index - 1].id]
    return list(task.spec.depends_on)


def _node_status(state: Execution, agent: AgentView, scope: ScopeState | None) -> str:
    if scope is not None and scope.status == "closed" and scope.outcome is not None:
        return AGENTS_CLOSED[scope.outcome]
    if state.finished is not None or agent.status in ("failed", "cancelled", "superseded", "skipped"):
        return "cancelled"
    return "pending" if scope is None else "running"


_STEPS = {
    "pending": "pending",
    "running": "running",
    "retrying": "running",
    "awaiting_approval": "running",
    "succeeded": "completed",
    "failed": "failed",
    "timed_out": "failed",
    "skipped": "skipped",
    "canceled": "cancelled",
}


def step_rows(state: Execution, history: Sequence[Entry]) -> Iterator[StepRowDocument]:
    for agent, task, path in _tasks(state):
        for node in task.children:
            step = state.nodes.get(f"{path}/{node.id}")
            known = step if isinstance(step, StepState) else None
            status = "pending" if known is None else _STEPS[known.status]
            if status == "pending" and (state.finished is not None or agent.status in ("failed", "superseded")):
                status = "cancelled"
            seq = known.done_seq if known is not None and known.status == "succeeded" else 0
            yield {
                "id": f"{agent.id}/{task.id}/{node.id}",
                "task_id": f"{agent.id}/{task.id}",
                "status": status,
                "attempts": 0 if known is None else known.number,
                "output": decoded(result_of(history[seq - 1].event)) if seq else None,
                "error": run_error(state, known.failure if known is not None else None),
            }


def attempt_documents(history: Sequence[Entry]) -> list[RunAttemptDocument]:
    """Returns each attempt of a run, with its credits."""
    found: list[RunAttemptDocument] = []
    for entry in history:
        event = entry.event
        match event:
            case e.ExecutionStarted() | e.RunOpened():
                number = event.run if isinstance(event, e.RunOpened) else 1
                found.append(
                    {
                        "attempt_number": number,
                        "status": "open",
                        "credits_reserved": decimal_text(event.hold),
                        "credits_charged": "0",
                        "credits_refunded": "0",
                        "tokens_used": 0,
                        "started_at": rfc3339(entry.at),
                        "ended_at": None,
                    }
                )
            case e.AttemptSucceeded() | e.AttemptFailed() | e.AttemptTimedOut() | e.ChildrenAdded():
                found[-1]["tokens_used"] += event.tokens
            case e.ExecutionFinished():
                found[-1]["status"] = {"succeeded": "completed", "canceled": "cancelled"}.get(event.status, "failed")
                found[-1]["credits_charged"] = decimal_text(event.charged)
                found[-1]["credits_refunded"] = decimal_text(event.refunded)
                found[-1]["ended_at"] = rfc3339(entry.at)
    return found
