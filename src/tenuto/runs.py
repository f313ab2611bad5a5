"""Runs: agents whose work is paid with credits.

A run is planned into agents, each with tasks and steps. Its credits are reserved before it starts and charged with the
results of its steps, in one transaction.
"""

from tenuto.api.credits import Account, LedgerEntry
from tenuto.api.runs import RunHandle
from tenuto.authoring.agents import (
    Agent,
    AgentResults,
    Escalation,
    PlanContext,
    Run,
    Subtask,
    agent,
    planner,
    run,
    task,
)
from tenuto.authoring.run_context import RunContext
from tenuto.views.runs import RunStatus

__all__ = [
    "Account",
    "Agent",
    "AgentResults",
    "Escalation",
    "LedgerEntry",
    "PlanContext",
    "Run",
    "RunContext",
    "RunHandle",
    "RunStatus",
    "Subtask",
    "agent",
    "planner",
    "run",
    "task",
]
