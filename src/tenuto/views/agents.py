"""The agents of a run, read from the state of its execution."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec
from msgspec import UNSET, Raw

from tenuto.authoring.program import PlannedAgent, Planning
from tenuto.kernel.address import child_path, step_id
from tenuto.kernel.definition import JSON, Scope
from tenuto.kernel.events import Failure
from tenuto.kernel.plan import Node
from tenuto.kernel.state import Execution, ScopeState
from tenuto.values.codec import encode

from .finding import result_seqs

AgentStatus = Literal["pending", "running", "paused", "completed", "failed", "skipped", "cancelled", "superseded"]


class AgentView(NamedTuple):
    """An agent of the current attempt. `number` is its place in the run, `plan` the plan that it belongs to."""

    id: str
    kind: str
    number: int
    plan: int
    path: str
    node: Node
    state: ScopeState | None
    status: AgentStatus
    output_seq: int

    @property
    def input(self) -> JSON:
        given = self.node.scope.input
        return None if given is UNSET else given


def agents_scope(state: Execution) -> ScopeState | None:
    """Returns the scope of a run's agents; None if the execution is not a run, or has not opened it."""
    if state.plan.run is None:
        return None
    scope = state.nodes.get(state.plan.root.children[0].id)
    return scope if isinstance(scope, ScopeState) else None


def agents_of(state: Execution) -> list[AgentView]:
    """Returns the agents in the order of their numbers, including those that a new plan replaced."""
    return list(_agents(state))


def _agents(state: Execution) -> Iterator[AgentView]:
    scope = agents_scope(state)
    if scope is None:
        return
    plans = _plan_of_each(scope)
    for number, node in enumerate(scope.children, start=1):
        path = child_path(scope.path, node.id)
        found = state.nodes.get(path)
        known = found if isinstance(found, ScopeState) else None
        yield AgentView(
            id=node.id,
            kind=node.spec.name or node.id,
            number=number,
            plan=plans[number - 1],
            path=path,
            node=node,
            state=known,
            status=_status(state, scope, path, known),
            output_seq=0 if known is None or path in scope.superseded else _output_seq(state, node, path),
        )


def _plan_of_each(scope: ScopeState) -> list[int]:
    """Returns the number of the plan of each agent. Agents of the definition are plan 1."""
    static = len(scope.node.children)
    return [1] * static + [plan for plan, size in enumerate(_plan_sizes(scope), start=1) for _ in range(size)]


def _plan_sizes(scope: ScopeState) -> list[int]:
    return [_size(bytes(specs)) for specs in scope.added]


@lru_cache(maxsize=256)
def _size(specs: bytes) -> int:
    return len(msgspec.json.decode(specs, type=list[Raw]))


AGENTS_CLOSED: dict[str, AgentStatus] = {
    "succeeded": "completed",
    "failed": "failed",
    "timed_out": "failed",
    "skipped": "skipped",
    "canceled": "cancelled",
    "retry": "failed",
}


def _status(state: Execution, scope: ScopeState, path: str, known: ScopeState | None) -> AgentStatus:
    if path in scope.superseded:
        return "superseded"
    closed = None if known is None or known.status != "closed" else known.outcome
    if closed is not None:
        return AGENTS_CLOSED[closed]
    if state.finished is not None:
        return "cancelled"
    if state.pause is not None:
        return "paused"
    is_open = path in scope.active and not state.unclaimed
    return "running" if is_open else "pending"


def _output_seq(state: Execution, node: Node, path: str) -> int:
    """Returns the number of the event with an agent's output: the result of its last step."""
    while node.is_scope and node.children:
        node = node.children[-1]
        path = child_path(path, node.id)
    found = result_seqs(state, path)
    return found if isinstance(found, int) else 0


def given_input(node: Node) -> Raw | None:
    """Returns the input of the agent that contains a step; None if it takes the execution's input."""
    at = node.parent
    while at is not None:
        spec = at.spec
        if isinstance(spec, Scope) and spec.input is not UNSET:
            return encode(spec.input)
        at = at.parent
    return None


def place_of(path: str) -> tuple[str, str]:
    """Returns the ids of the agent and the task of a step."""
    parts = path.split("/")
    agent = step_id(parts[1]) if len(parts) > 2 else ""
    return agent, step_id(parts[2]) if len(parts) > 3 else ""


def planning_of(state: Execution) -> Planning:
    """Returns what the planner of a run is told."""
    scope = agents_scope(state)
    assert scope is not None
    agents = tuple(_planned(agent) for agent in agents_of(state))
    standing = len(scope.children) - len(scope.superseded)
    failed = sum(agent.status == "failed" for agent in agents)
    return Planning(
        replan=scope.replans + (1 if scope.added else 0),
        agents=agents,
        agents_left=scope.node.scope.max_children - standing + failed,
        left=state.hold - state.charged if state.hold else None,
    )


def _planned(agent: AgentView) -> PlannedAgent:
    failure: Failure | None = agent.state.failure if agent.state is not None else None
    status: Literal["completed", "failed", "open"] = "open"
    if agent.status == "completed":
        status = "completed"
    elif agent.status == "failed" or failure is not None:
        status = "failed"
    return PlannedAgent(agent.id, agent.kind, agent.input, status, failure, agent.plan)
