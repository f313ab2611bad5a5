"""`reference/python.md`: every public name."""

import inspect
import re
from dataclasses import MISSING, fields
from typing import Any

import tenuto
from tenuto import runs
from tenuto.authoring.agents import AgentOptions, AgentSettings, RunOptions, RunSettings
from tenuto.authoring.settings import SagaOptions, SagaSettings, StepOptions, StepSettings
from tenuto.runtime.start_request import StartOptions
from tenuto.testing import Harness

from .source import NOTE, attributes, construction, first_line, members, signature

CHAPTERS = {
    "Writing sagas": [
        *("Saga", "saga", "step", "Retry", "approval", "wait", "signal", "group"),
        *("external_step", "compensation_step", "SagaBuilder", "handler"),
    ],
    "What a parameter is": [
        *("Input", "Result", "FromStep", "FromCompensationResult", "FromCompensationError"),
        *("Header", "Headers", "Variable", "Variables", "Required"),
    ],
    "Inputs by step": ["StepInputs", "ExpandEach"],
    "Inside a handler": ["SagaContext", "HttpCall"],
    "What a guard or a reconcile answers": ["Outcome", "Done", "NotDone", "Pending", "Unknown"],
    "Running": ["Engine", "Handle", "Batch", "Progress"],
    "What came of it": ["SagaResult", "StepResult", "SagaReport"],
    "Being told": ["SagaEvents", "EventContext", "Message"],
    "Errors": ["TenutoError"],
}

GIVEN = {  # never made by hand: the engine gives them
    *("Account", "AgentResults", "LedgerEntry", "PlanContext", "RunContext", "RunHandle", "RunStatus"),
    *("SagaContext", "Handle", "Batch", "Progress", "SagaResult", "StepResult", "SagaReport", "EventContext"),
}

ALIASES = {
    "Outcome": (
        "Outcome[T] = Done[T] | NotDone | Pending | Unknown",
        "What became of an effect that may have been made.",
    )
}

STEP_OPTIONS = {
    "depends_on": "Steps that must be over first. Taking a result with `FromStep` implies it.",
    "type": "`task`; `external_call` and `notify` say what it is to people.",
    "timeout": "Bounds one attempt. 30 s if left out.",
    "deadline": "Bounds the step, with all its attempts and the waits between them.",
    "retry": "A `Retry`, or a number of retries. 3 attempts if left out.",
    "safety": "What a repetition would do: harmless, harmless after asking `guard`, or not to be repeated blindly.",
    "guard": "Asked before another attempt whether the effect is there already.",
    "reconcile": "Asked what became of an attempt whose outcome is unknown.",
    "compensate": "Undoes the completed step when the saga cannot succeed.",
    "compensation_policy": "`manual`: a person decides before it is undone.",
    "compensation_retry": "As `retry`, for the undo. One attempt if left out; five under `retry_with_backoff`.",
    "compensation_backoff": "The first delay between attempts at the undo.",
    "compensation_timeout": "Bounds one attempt at the undo.",
    "compensation_critical": "Under `circuit_breaker`: if this undo fails, nothing more is undone.",
    "partial_effect": "A failed attempt may have left something: undo the step though it did not complete.",
    "when": "An expression; where it does not hold the step is skipped.",
    "foreach": "An expression for a list, or `ExpandEach.from_step(…)`: the step runs once for each item.",
    "suffix": "An expression over `item` that names the clones.",
    "max_concurrency": "How many clones run at once. 0 is 1,000.",
    "failure_mode": "`continue`: if it, or one of its clones, fails, that is passed over, and dependents get None.",
    "limits": "Names of limits (`engine.limit`) that an attempt must get before it starts.",
    "queue": "Only workers that serve this queue run it.",
    "classify": "Which error class an exception type means.",
    "idempotency_key": "A template, `mail-${input.to}`. Skipped if a completed step of this run had the same.",
    "set_variable": "The result becomes this variable of the execution.",
    "estimate": "In a run: at most so many credits, set aside before an attempt starts.",
    "reusable": "In a run: its result is kept when its task or agent is repeated.",
}

AGENT_OPTIONS = {
    "mode": "`sequential`, `parallel` or `dag`: how its tasks follow one another.",
    "max_concurrent_tasks": "How many tasks run at once.",
    "timeout": "Limits the whole agent.",
    "failure_mode": "What a failed task means: `fail_fast`, `continue` or `retry`.",
    "max_rounds": "In failure mode `retry`: how often the agent runs in all.",
    "fail_if_empty": "An agent whose tasks were all skipped fails.",
}

RUN_OPTIONS = {
    "version": "Of the definition. Another definition under the same version is refused.",
    "planner": "The `@planner` that splits the input into subtasks. Without one, each class has one agent.",
    "max_agents": "The most agents of a plan, and how many work at once.",
    "failure_mode": "What a failed agent means: `fail_fast`, `continue` or `retry`.",
    "fail_if_empty": "A run whose agents were all skipped fails.",
    "max_attempts": "How many attempts the run has in all.",
    "max_replans": "How often the planner is asked again after failures. May be 0.",
    "retry_budget": "How many rounds of tasks and agents an attempt may repeat in all.",
    "escalation": "When the run pauses and asks a person.",
    "pending_timeout": "Limits the time until a worker claims the run.",
    "timeout": "Limits the time from the first claim, without pauses.",
    "pause_limit": "Limits a pause. After it, the run is cancelled.",
    "resume_timeout": "Limits the time until a worker claims a resumed run.",
    "retry_timeout": "Limits the time until a retry is queued.",
    "heartbeat_timeout": "How long a run may be without a sign of a worker.",
}

SAGA_OPTIONS = {
    "version": "Of the plan. Another plan under the same version is refused where the first is stored.",
    "compensation": "The order in which completed steps are undone.",
    "scheduling": "`layered`: a layer starts when the one before is over. `eager`: a step, when its dependencies are.",
    "layer_concurrency": "How many steps run at once. 0 is no bound.",
    "timeout": "Bounds the whole execution.",
    "output": "The step whose result is the saga's.",
    "concurrency_key": "An expression; of executions with the same key, one runs at a time.",
    "on_conflict": "What becomes of another one meanwhile: it waits, or is refused (`ConcurrencyConflict`).",
    "classify": "As on a step, for all of them.",
}

START_OPTIONS = {
    "tenant": "Whose execution it is.",
    "correlation_id": "Yours, to find it again by. The execution's id if left out.",
    "headers": "Texts that steps can read, and that `HttpCall` passes on.",
    "variables": "Values that steps and expressions can read.",
    "target": "What it is about, as a pair of type and id.",
    "priority": "`high` goes before `normal`.",
    "concurrency_key": "Instead of the one that the definition computes.",
    "version": "Of the definition. The newest if left out.",
}

OPENING = """\
# Python reference

Every name that `tenuto` exports, with its signature as the source has it. A `Duration` is a text (`"200ms"`, `"5s"`,
`"24h"`), a `timedelta` or a number of seconds. A `StepRef` is a step's id or its function. An *expression* is a text in
[CEL](https://cel.dev) over `input`, `steps`, `variables` and `context`.
"""


def page() -> str:
    named = [name for names in CHAPTERS.values() for name in names]
    assert sorted(named) == sorted(tenuto.__all__), set(named) ^ set(tenuto.__all__)
    parts = [NOTE, OPENING]
    for chapter, names in CHAPTERS.items():
        parts.append(f"## {chapter}\n")
        parts.extend(_entry(name) for name in names)
    parts.append("## Runs\n")
    parts.append("From `tenuto.runs`. The guide is [Runs](../guides/runs.md).\n")
    parts.extend(_entry_of_runs(name) for name in runs.__all__)
    parts.append("## Testing\n")
    parts.append("From `tenuto.testing`.\n")
    parts.append(_class("Harness", Harness))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts))


def _entry_of_runs(name: str) -> str:
    value = getattr(runs, name)
    if isinstance(value, type):
        return _class(name, value)
    text = _heading(name, signature(value), first_line(value))
    if name == "agent":
        text += _options("AgentOptions", AgentOptions, AGENT_OPTIONS, AgentSettings)
    if name == "run":
        text += _options("RunOptions", RunOptions, RUN_OPTIONS, RunSettings)
    return text


def _entry(name: str) -> str:
    if name in ALIASES:
        written, line = ALIASES[name]
        return _heading(name, written, line)
    value = getattr(tenuto, name)
    if isinstance(value, type):
        return _class(name, value)
    text = _heading(name, signature(value), first_line(value))
    if name == "saga":
        text += _options("SagaOptions", SagaOptions, SAGA_OPTIONS, SagaSettings)
    if name == "step":
        text += _options("StepOptions", StepOptions, STEP_OPTIONS, StepSettings)
    return text


def _class(name: str, cls: type) -> str:
    written = name if name in GIVEN and not hasattr(cls, "__dataclass_fields__") else construction(cls)
    text = _heading(name, written, first_line(cls))
    if name in GIVEN and (found := attributes(cls)):
        text += "\n".join(f"- `{attribute}`" for attribute in found) + "\n"
    for member in members(cls):
        text += f"- `{member.signature}`{_spaced(member.line)}\n"
    if name == "Engine":
        text += _options("StartOptions", StartOptions, START_OPTIONS, None)
    return text


def _heading(name: str, written: str, line: str) -> str:
    return f"### {name}\n\n```python\n{written}\n```\n\n{line}\n\n"


def _options(title: str, options: Any, lines: dict[str, str], settings: Any) -> str:
    annotations = inspect.get_annotations(options)
    assert lines.keys() == annotations.keys(), lines.keys() ^ annotations.keys()
    defaults = {} if settings is None else {field.name: _default(field) for field in fields(settings)}
    rows = [f"\n`{title}`:\n", "| option | default | what it says |", "|---|---|---|"]
    for option, line in lines.items():
        default = f"`{defaults[option]}`" if defaults.get(option) else ""
        rows.append(f"| `{option}` | {default} | {line} |".replace("|  |", "| |"))
    return "\n".join(rows) + "\n"


def _default(field: Any) -> str:
    if field.default in (MISSING, None, ()):
        return ""
    return f'"{field.default}"' if isinstance(field.default, str) else repr(field.default)


def _spaced(line: str) -> str:
    return f": {line}" if line else ""
