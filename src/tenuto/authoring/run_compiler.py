"""Compiles a run's class to a program: a scope of agents, each a scope of tasks, and the step that concludes."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec

from tenuto.errors import DefinitionError, NonRetryableError
from tenuto.kernel import validation
from tenuto.kernel.definition import JSON, Definition, Escalation, Node, Policies, RetryPolicy, RunPolicies, Scope, Step
from tenuto.kernel.plan import Plan
from tenuto.values.codec import decoder, encode
from tenuto.values.credits import decimal_text

from .agents import (
    AGENT,
    PLANNER,
    RUN,
    Agent,
    AgentResults,
    AgentSettings,
    FailedSubtask,
    PlanContext,
    PlannerSettings,
    RunSettings,
    Subtask,
    kernel_mode,
)
from .compiler import AgentParts, compile_agent, input_encoder, result_encoder
from .problems import Problems, in_python_terms
from .program import Call, Handler, Needs, Planning, Program
from .saga_source import SagaSource, names_of, step_source, steps_of, types_of
from .settings import GroupMode, GroupSettings, SagaSettings, StepSettings
from .translator import Translator

AGENTS = "agents"
CONCLUDE = "conclude"


def compile_run(instance: object, problems: Problems) -> Program:
    """Returns the program of a run's instance. Raises `DefinitionError` with every problem."""
    settings = getattr(instance, RUN)
    assert isinstance(settings, RunSettings)
    templates = {kind: _template(settings.name, kind, problems) for kind in settings.agents}
    if not templates:
        problems.add("agents", "empty", "a run needs at least one agent class: name them in agents=[…]")
    problems.raise_any(f"Run {settings.name!r}")
    translator = Translator(f"run {settings.name!r}", problems)
    definition = _definition(settings, templates, translator)
    for problem in validation.problems(definition):
        problems.add(*in_python_terms(problem, definition))
    for kind, template in templates.items():
        for problem in validation.problems(_alone(definition, template), are_agents=True):
            if settings.planner is not None:
                problems.add(f"agent {_name_of(kind)!r}", problem.code, problem.message)
    problems.raise_any(f"Run {settings.name!r}")
    input, output = types_of(type(instance))
    handlers = [handler for template in templates.values() for handler in template.handlers]
    handlers.append(_conclude_handler(instance, settings, templates, output))
    if settings.planner is not None:
        handlers.append(_planner_handler(settings, settings.planner, templates, input))
    return Program(
        plan=Plan(definition),
        handlers={handler.name: handler for handler in handlers},
        encode_input=input_encoder(SagaSource(SagaSettings(name=settings.name), [], instance, input=input), problems),
        decode_output=decoder(output, where="output"),
        decode_result={id: decode for template in templates.values() for id, decode in template.results.items()},
    )


def _name_of(kind: type) -> str:
    settings = getattr(kind, AGENT, None)
    return settings.name if isinstance(settings, AgentSettings) else kind.__qualname__


# -- Agents ------------------------------------------------------------------------------------------------------------


def _template(run: str, kind: type, problems: Problems) -> AgentParts:
    """Compiles the class of an agent once. Each agent of the class is a copy of its scope."""
    settings = getattr(kind, AGENT, None)
    if not isinstance(settings, AgentSettings):
        raise DefinitionError(f'{kind.__qualname__} is not an agent: decorate the class with @agent("name")')
    instance = kind()
    names = names_of(kind)
    taken, given = types_of(kind)
    steps = [step_source(instance, name, origin, names) for name, origin in steps_of(kind).items()]
    if not steps:
        problems.add(f"agent {settings.name!r}", "empty", "it has no steps: decorate methods with @step")
    grouped = {
        id(_plain(ref)) for step in steps if isinstance(step.settings, GroupSettings) for ref in step.settings.members
    }
    members = [step.origin for step in steps if id(_plain(step.origin)) not in grouped]
    modes: dict[str, GroupMode] = {"sequential": "sequence", "parallel": "parallel", "dag": "dag"}
    scope = GroupSettings(
        members=tuple(cast(Any, member) for member in members),
        mode=modes.get(settings.mode, "sequence"),
        max_concurrency=settings.max_concurrent_tasks,
        failure_mode=kernel_mode(settings.failure_mode),
        max_rounds=settings.max_rounds,
        deadline=settings.timeout,
        fail_if_empty=settings.fail_if_empty,
    )
    if settings.mode not in modes:
        text = f"{settings.mode!r} is not valid: use one of {', '.join(map(repr, modes))}"
        problems.add(f"agent {settings.name!r}, mode", "unknown_word", text)
    source = SagaSource(SagaSettings(name=f"{run}.{settings.name}"), steps, instance, names, taken, given)
    parts = compile_agent(source, settings.name, scope, problems)
    return replace(parts, scope=msgspec.structs.replace(parts.scope, children=_as_tasks(parts.scope.children)))


def _plain(ref: object) -> object:
    return getattr(ref, "__func__", ref)


def _as_tasks(children: Sequence[Node]) -> tuple[Node, ...]:
    """Makes a task of each step that is in none."""
    return tuple(child if isinstance(child, Scope) else _task_of(child) for child in children)


def _task_of(step: Step) -> Scope:
    return Scope(
        id=step.id,
        max_concurrency=3,
        timeout_ms=3_600_000,
        depends_on=step.depends_on,
        children=(msgspec.structs.replace(step, depends_on=()),),
    )


# -- The definition ----------------------------------------------------------------------------------------------------


def _definition(settings: RunSettings, templates: dict[type, AgentParts], translator: Translator) -> Definition:
    mode = kernel_mode(settings.failure_mode)
    agents: tuple[Node, ...] = ()
    if settings.planner is None:
        agents = tuple(
            msgspec.structs.replace(template.scope, id=f"{template.name}-{number}", name=template.name)
            for number, template in enumerate(templates.values(), start=1)
        )
    scope = Scope(
        id=AGENTS,
        mode="parallel",
        children=agents,
        max_concurrency=settings.max_agents,
        failure_mode="fail_fast" if mode == "retry" else mode,
        fail_if_empty=settings.fail_if_empty,
        planner=None if settings.planner is None else f"{settings.name}.planner",
        max_children=settings.max_agents,
        max_replans=settings.max_replans,
    )
    return Definition(
        name=settings.name,
        version=settings.version,
        mode="sequence",
        steps=(scope, Step(id=CONCLUDE, handler=f"{settings.name}.{CONCLUDE}")),
        policies=_policies(settings, mode == "retry", translator),
    )


def _policies(settings: RunSettings, retries: bool, translator: Translator) -> Policies:
    planner = getattr(settings.planner, PLANNER, None) or PlannerSettings()
    retry = translator.retry_policy(StepSettings(retry=planner.retry, timeout=planner.timeout), None)
    time = translator.time
    return Policies(
        timeout_ms=time("timeout", settings.timeout),
        pending_timeout_ms=time("pending_timeout", settings.pending_timeout),
        pause_limit_ms=time("pause_limit", settings.pause_limit),
        cancel="terminate",
        failure_mode="retry" if retries else "fail_fast",
        max_rounds=settings.max_attempts,
        retry_budget=settings.retry_budget,
        escalation=_escalation(settings, translator),
        classify={"PayloadError": "RETRYABLE"},  # an agent may give a better answer when it is asked again
        run=RunPolicies(
            max_attempts=settings.max_attempts,
            resume_timeout_ms=time("resume_timeout", settings.resume_timeout) or 1,
            retry_timeout_ms=time("retry_timeout", settings.retry_timeout) or 1,
            heartbeat_timeout_ms=time("heartbeat_timeout", settings.heartbeat_timeout) or 1,
            planner_retry=retry if settings.planner is not None else RetryPolicy(),
            planner_estimate=translator.amount("planner, estimate", planner.estimate),
        ),
    )


def _escalation(settings: RunSettings, translator: Translator) -> Escalation | None:
    given = settings.escalation
    if given is None:
        return None
    return Escalation(
        errors=given.error_count,
        window_ms=translator.time("escalation, window", given.window) or 1,
        error_rate=given.error_rate,
        min_sample=given.min_events,
        on_spent=given.on_spent,
        severity=given.severity,
    )


def _alone(definition: Definition, template: AgentParts) -> Definition:
    """Returns a definition with one agent of a class, to validate the class before a planner uses it."""
    return Definition(name=definition.name, mode="parallel", steps=(template.scope,))


# -- Handlers ----------------------------------------------------------------------------------------------------------


def _conclude_handler(
    instance: object, settings: RunSettings, templates: dict[type, AgentParts], output: Any
) -> Handler:
    conclude = getattr(instance, CONCLUDE, None)
    kinds = {template.name: (kind, template) for kind, template in templates.items()}

    def read(call: Call) -> AgentResults:
        found = []
        for agent, raw in call.agent_outputs():
            kind, template = kinds[agent]
            found.append((cast("type[Agent[Any, Any]]", kind), None if raw is None else template.decode_output(raw)))
        return AgentResults(found)

    def invoke(call: Call) -> object:
        results = read(call)
        return results.all() if conclude is None else conclude(results)

    return Handler(
        name=f"{settings.name}.{CONCLUDE}",
        kind="step",
        is_async=_is_async(conclude),
        needs=Needs(input=False, agents=True, context=False),
        invoke=invoke,
        encode=result_encoder(Any if conclude is None else output, "the output of `conclude`"),
        read=read,
    )


def _is_async(function: object) -> bool:
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and bool(code.co_flags & 0x80)


def _planner_handler(
    settings: RunSettings, function: Callable[..., Any], templates: dict[type, AgentParts], input: Any
) -> Handler:
    read_input = decoder(input, where="input")
    kinds = {template.name: kind for kind, template in templates.items()}

    def read(call: Call) -> tuple[object, PlanContext]:
        return read_input(call.input), _plan_context(call.planning(), kinds, templates)

    def invoke(call: Call) -> object:
        first = len(call.planning().agents) + 1
        planned = function(*read(call))
        if _is_async(function):
            return _planned_later(planned, templates, first)
        return _planned(planned, templates, first)

    return Handler(
        name=f"{settings.name}.planner",
        kind="planner",
        is_async=_is_async(function),
        needs=Needs(),
        invoke=invoke,
        encode=lambda value: None,
        read=read,
    )


async def _planned_later(planned: Awaitable[object], templates: dict[type, AgentParts], first: int) -> list[Scope]:
    return _planned(await planned, templates, first)


def _planned(subtasks: object, templates: dict[type, AgentParts], first: int) -> list[Scope]:
    """Makes an agent of each subtask. Their numbers continue those of earlier plans."""
    if not isinstance(subtasks, list | tuple) or not all(isinstance(subtask, Subtask) for subtask in subtasks):
        raise NonRetryableError("A planner returns a list of Subtask(AgentClass, input).", code="bad_plan")
    agents = []
    for number, subtask in enumerate(subtasks, start=first):
        template = templates.get(subtask.agent)
        if template is None:
            name = subtask.agent.__qualname__
            raise NonRetryableError(f"The plan uses {name}, which the run does not list in `agents`.", code="bad_plan")
        input: JSON = msgspec.json.decode(encode(subtask.input, where=f"input of agent {template.name}-{number}"))
        agents.append(
            msgspec.structs.replace(template.scope, id=f"{template.name}-{number}", name=template.name, input=input)
        )
    return agents


def _plan_context(planning: Planning, kinds: dict[str, type], templates: dict[type, AgentParts]) -> PlanContext:
    subtasks = {}
    for each in planning.agents:
        kind = kinds[each.agent]
        input = templates[kind].decode_input(encode(each.input))
        subtasks[each.id] = Subtask(cast("type[Agent[Any, Any]]", kind), input)
    plans = range(1, 1 + max((each.plan for each in planning.agents), default=0))
    return PlanContext(
        replan=planning.replan,
        earlier=tuple(tuple(subtasks[e.id] for e in planning.agents if e.plan == plan) for plan in plans),
        completed=tuple(subtasks[e.id] for e in planning.agents if e.status == "completed"),
        failed=tuple(
            FailedSubtask(subtasks[e.id], e.failure.error_class, e.failure.code, e.failure.summary)
            for e in planning.agents
            if e.status == "failed" and e.failure is not None
        ),
        agents_left=planning.agents_left,
        credits_left=None if planning.left is None else decimal_text(planning.left),
    )
