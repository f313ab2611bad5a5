"""A plan together with the callables of its handlers.

`authoring` binds a user's function to its parameters and types; what is left here is opaque: something that takes a
`Call` and gives a value. Runtimes fetch the payloads that `Needs` names, make a `Call` of them, and run it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from msgspec import Raw

from tenuto.kernel.definition import JSON, Definition
from tenuto.kernel.events import Failure
from tenuto.kernel.plan import Plan

from .input_encoder import InputEncoder
from .input_schemas import InputSchemas

EVERY_TENANT: Final = "*"

HandlerKind = Literal["step", "compensation", "probe", "planner"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The data that a handler's parameters read. Nothing else is loaded.

    `results` and the compensations are step ids, or `id#index` for one clone of a fan-out.
    """

    input: bool = True
    own_result: bool = False
    results: tuple[str, ...] = ()
    agents: bool = False  # of a run: the outputs of all agents
    compensation_results: tuple[str, ...] = ()
    compensation_errors: tuple[str, ...] = ()
    context: bool = True  # and with it any result, by name


class AgentOutput(NamedTuple):
    """An agent of a run: the name of its class, and its output; None if it was skipped."""

    agent: str
    output: Raw | None


class PlannedAgent(NamedTuple):
    """An agent that was planned before. `failure`: why it failed, if it did."""

    id: str
    agent: str
    input: JSON
    status: Literal["completed", "failed", "open"]
    failure: Failure | None
    plan: int


class Planning(NamedTuple):
    """What a planner is told. `left`: the millionths that are left of the reserve; None without one."""

    replan: int
    agents: tuple[PlannedAgent, ...]
    agents_left: int
    left: int | None


class Call(Protocol):
    """Everything one call of a handler may read, as raw JSON. Implemented by `runtime.executor`."""

    @property
    def context(self) -> object:
        """The `SagaContext` of this attempt."""

    @property
    def input(self) -> Raw | None:
        """The step's own input: its rendered `with`, its item, its entry of StepInputs, or the execution's."""

    @property
    def own_result(self) -> Raw | None:
        """For compensations: the result of the compensated step, if there is one."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def variables(self) -> Mapping[str, Raw]: ...

    def result_of(self, step: str) -> Raw | list[Raw | None] | None:
        """The result of another step; of a fan-out, its clones' results in item order, None where one was skipped."""

    def agent_outputs(self) -> Sequence[AgentOutput]:
        """Of a run: its agents with their outputs."""

    def planning(self) -> Planning:
        """Of a planner: what it is told."""

    def compensation_result(self, step: str) -> Raw | None: ...

    def compensation_error(self, step: str) -> Failure | None: ...


def _reads_nothing(call: Call) -> object:
    return None


def _needs_nothing() -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """One callable. `invoke` may raise anything; `encode` makes canonical JSON of what it returns (`PayloadError`).

    `read` reads what the parameters take, and calls nothing. `tenants` are those whose own documents may name it; `*`
    is all of them. A worker calls `prepare` when it learns of a definition that names the handler: what the first call
    alone needs, such as imports, is not taken from an attempt's time.
    """

    name: str
    kind: HandlerKind
    is_async: bool
    needs: Needs
    invoke: Callable[[Call], object]
    encode: Callable[[object], Raw | None]
    read: Callable[[Call], object] = _reads_nothing
    tenants: tuple[str, ...] = ()
    prepare: Callable[[], None] = _needs_nothing

    def serves(self, owner: str | None) -> bool:
        """Returns whether a definition of this owner may use the handler. The deployment (None) always may."""
        return owner is None or owner in self.tenants or EVERY_TENANT in self.tenants


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A plan and those of its handlers that this process has."""

    plan: Plan
    handlers: Mapping[str, Handler]
    encode_input: InputEncoder
    decode_output: Callable[[Raw | None], object]
    # step id -> decoder of its result, for result_of() and SagaResult.steps
    decode_result: Mapping[str, Callable[[Raw | None], object]] = field(default_factory=dict)
    decode_compensation: Mapping[str, Callable[[Raw | None], object]] = field(default_factory=dict)
    # what `@saga(output=...)` names, when the output is one step's result
    output_step: str | None = None

    @property
    def name(self) -> str:
        return self.plan.definition.name

    @property
    def version(self) -> int:
        return self.plan.definition.version

    def local_handlers(self) -> tuple[str, ...]:
        """Returns the handlers that the owner of an execution calls itself: those of steps without a queue."""
        return tuple(dict.fromkeys(name for name, queue in self._named_handlers() if queue is None))

    def handler_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name, _ in self._named_handlers()))

    def _named_handlers(self) -> Iterator[tuple[str, str | None]]:
        """Yields each handler with the queue of its step, if it has one."""
        for node in self.plan.root.walk():
            if node.is_scope:
                names: tuple[str | None, ...] = (node.scope.planner,)
            else:
                step = node.step
                names = (step.handler, step.guard_handler, step.reconcile_handler, step.compensation_handler)
            for name in names:
                if name is not None:
                    yield name, node.queue

    def missing_handlers(self) -> tuple[str, ...]:
        """Returns the local handlers that this process does not have."""
        return tuple(name for name in self.local_handlers() if name not in self.handlers)


# Compiles a stored definition with the schemas of its input. The process need not have its code.
CompileStored: TypeAlias = Callable[[Definition, InputSchemas | None], Program]
