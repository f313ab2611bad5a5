"""Runs written as classes: `@run`, `@agent`, `task` and `@planner`, and what they are given.

Decorators only add attributes. A run is checked as a whole when it is registered.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack, overload

import msgspec

from tenuto.kernel.definition import FailureMode
from tenuto.values.credits import Amount
from tenuto.values.durations import Duration

from .markers import StepRef
from .settings import Declared, GroupSettings, Retry, several

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])
I = TypeVar("I")  # noqa: E741  (the input of an agent)
O = TypeVar("O")  # noqa: E741  (its output)

AgentMode = Literal["sequential", "parallel", "dag"]
TaskMode = Literal["sequential", "parallel"]
RunFailureMode = Literal["fail_fast", "fail-fast", "continue", "retry"]

AGENT = "__tenuto_agent__"
RUN = "__tenuto_run__"
PLANNER = "__tenuto_planner__"


class Agent(Generic[I, O]):
    """The base class of agents with typed input and output: `class Shop(Agent[str, int])`."""


class Run(Generic[I, O]):
    """The base class of runs with typed input and output: `class PriceSurvey(Run[list[str], list[int]])`.

    A method `conclude(self, results: AgentResults)` runs as the last step, and returns the output. Without it, the
    output is the list of the agents' outputs.
    """


# -- Options -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalation:
    """When a run pauses and asks a person. None switches a trigger off."""

    error_count: int | None = 5
    window: Duration = "5m"
    error_rate: float | None = 0.5
    min_events: int = 10
    on_spent: bool = True
    severity: str = "high"


class AgentOptions(TypedDict, total=False):
    """The options of `@agent`. `timeout` limits the whole agent, `max_rounds` its rounds in failure mode `retry`."""

    mode: AgentMode
    max_concurrent_tasks: int
    timeout: Duration | None
    failure_mode: RunFailureMode
    max_rounds: int
    fail_if_empty: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    name: str
    mode: AgentMode = "sequential"
    max_concurrent_tasks: int = 5
    timeout: Duration | None = "6h"
    failure_mode: RunFailureMode = "fail_fast"
    max_rounds: int = 3
    fail_if_empty: bool = False


class RunOptions(TypedDict, total=False):
    """The options of `@run`. `timeout` limits the time in RUNNING, without pauses, and the others their states."""

    version: int
    planner: Callable[..., Any] | None
    max_agents: int
    failure_mode: RunFailureMode
    fail_if_empty: bool
    max_attempts: int
    max_replans: int
    retry_budget: int
    escalation: Escalation | None
    pending_timeout: Duration
    timeout: Duration
    pause_limit: Duration
    resume_timeout: Duration
    retry_timeout: Duration
    heartbeat_timeout: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    name: str
    agents: tuple[type, ...]
    version: int = 1
    planner: Callable[..., Any] | None = None
    max_agents: int = 10
    failure_mode: RunFailureMode = "fail_fast"
    fail_if_empty: bool = False
    max_attempts: int = 3
    max_replans: int = 2
    retry_budget: int = 20
    escalation: Escalation | None = None
    pending_timeout: Duration = "24h"
    timeout: Duration = "24h"
    pause_limit: Duration = "7d"
    resume_timeout: Duration = "5m"
    retry_timeout: Duration = "24h"
    heartbeat_timeout: Duration = "60s"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    timeout: Duration = "30s"
    retry: Retry | int | None = None
    estimate: Amount = "0"


def kernel_mode(mode: RunFailureMode) -> FailureMode:
    return "fail_fast" if mode == "fail-fast" else mode


# -- Decorators --------------------------------------------------------------------------------------------------------


def agent(name: str, **options: Unpack[AgentOptions]) -> Callable[[type[C]], type[C]]:
    """Makes a class of `@step` methods an agent. `task` groups its steps; a step in no task is a task of its own."""
    settings = AgentSettings(name=name, **options)

    def decorate(cls: type[C]) -> type[C]:
        setattr(cls, AGENT, settings)
        return cls

    return decorate


def task(
    *steps: StepRef,
    mode: TaskMode = "sequential",
    max_concurrent_steps: int = 3,
    timeout: Duration | None = "1h",
    failure_mode: RunFailureMode = "fail_fast",
    max_rounds: int = 3,
    fail_if_empty: bool = False,
    depends_on: Iterable[StepRef] = (),
) -> Declared[None]:
    """Groups steps of an agent in a task."""
    return Declared(
        GroupSettings(
            members=steps,
            depends_on=several(depends_on),
            mode="sequence" if mode == "sequential" else "parallel",
            max_concurrency=max_concurrent_steps,
            failure_mode=kernel_mode(failure_mode),
            max_rounds=max_rounds,
            fail_if_empty=fail_if_empty,
            deadline=timeout,
        )
    )


@overload
def planner(function: F, /) -> F: ...
@overload
def planner(
    *, timeout: Duration = "30s", retry: Retry | int | None = None, estimate: Amount = "0"
) -> Callable[[F], F]: ...
def planner(
    function: F | None = None,
    /,
    *,
    timeout: Duration = "30s",
    retry: Retry | int | None = None,
    estimate: Amount = "0",
) -> F | Callable[[F], F]:
    """Makes a function a planner: it takes the run's input and a `PlanContext`, and returns subtasks."""
    settings = PlannerSettings(timeout=timeout, retry=retry, estimate=estimate)

    def decorate(function: F) -> F:
        setattr(function, PLANNER, settings)
        return function

    return decorate if function is None else decorate(function)


def run(name: str, *, agents: Sequence[type], **options: Unpack[RunOptions]) -> Callable[[type[C]], type[C]]:
    """Makes a class a run of these agents. Without a planner, a run has one agent of each class."""
    settings = RunSettings(name=name, agents=tuple(agents), **options)

    def decorate(cls: type[C]) -> type[C]:
        setattr(cls, RUN, settings)
        return cls

    return decorate


# -- What planners and `conclude` are given ----------------------------------------------------------------------------


class Subtask:
    """One agent of a plan, and its input. Subtasks of the same agent with the same input are equal."""

    __slots__ = ("agent", "input")

    def __init__(self, agent: type[Agent[I, Any]], input: I) -> None:
        self.agent: type[Agent[Any, Any]] = agent
        self.input: Any = input

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Subtask):
            return NotImplemented
        return self.agent is other.agent and _json(self.input) == _json(other.input)

    def __hash__(self) -> int:
        return hash((self.agent, _json(self.input)))

    def __repr__(self) -> str:
        return f"Subtask({self.agent.__name__}, {self.input!r})"


def _json(value: object) -> bytes:
    return msgspec.json.encode(value, order="sorted")


@dataclass(frozen=True, slots=True)
class FailedSubtask:
    """A subtask that failed, with the class, code and redacted summary of its error."""

    subtask: Subtask
    error_class: str
    code: str
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanContext:
    """What a planner knows. `replan` is 0 for the first plan; `earlier` are the plans before this one.

    `credits_left` is what is left of the run's reserve, as decimal text. None: credits are off.
    """

    replan: int
    earlier: tuple[tuple[Subtask, ...], ...]
    completed: tuple[Subtask, ...]
    failed: tuple[FailedSubtask, ...]
    agents_left: int
    credits_left: str | None


class AgentResults:
    """The outputs of a run's agents, in their order. The output of a skipped agent is None."""

    __slots__ = ("_found",)

    def __init__(self, found: Sequence[tuple[type[Agent[Any, Any]], Any]]) -> None:
        self._found = tuple(found)

    def of(self, agent: type[Agent[Any, O]]) -> list[O | None]:
        """Returns the outputs of the agents of this class."""
        return [output for kind, output in self._found if kind is agent]

    def all(self) -> list[Any]:
        """Returns the outputs of all agents."""
        return [output for _, output in self._found]
