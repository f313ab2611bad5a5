"""Decorators for sagas written as classes, and the steps that are not functions.

Decorators only add attributes, so types are preserved and functions can be called and tested directly. A saga is
checked as a whole when it is registered.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar, Unpack, overload

from tenuto.errors import DefinitionError
from tenuto.kernel.definition import MAX_VISITS, FailureMode
from tenuto.values.durations import Duration

from .context import STEP_ID_ATTRIBUTE
from .known_options import refuse_unknown_options
from .markers import StepRef
from .settings import (
    EXTERNAL_COMPENSATIONS,
    EXTERNAL_STEPS,
    HANDLER_NAMES,
    SAGA,
    STEP,
    ApprovalSettings,
    Declared,
    ExternalCompensation,
    ExternalStep,
    GroupMode,
    GroupSettings,
    SagaOptions,
    SagaSettings,
    SignalSettings,
    StepOptions,
    StepSettings,
    WaitSettings,
    attach,
    several,
)

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C")
T = TypeVar("T")
I_contra = TypeVar("I_contra", contravariant=True)
O_co = TypeVar("O_co", covariant=True)


class Saga(Generic[I_contra, O_co]):
    """The base class of sagas with typed input and output: `class BookTrip(Saga[Trip, Charge])`."""


@refuse_unknown_options("@saga", SagaOptions)
def saga(name: str, **options: Unpack[SagaOptions]) -> Callable[[type[C]], type[C]]:
    """Makes a class a saga. `output` names the step whose result is the saga's output."""
    _check_named(name)
    settings = SagaSettings(name=name, **options)

    def decorate(cls: type[C]) -> type[C]:
        setattr(cls, SAGA, settings)
        return cls

    return decorate


def _check_named(name: object) -> None:
    """Refuses `@saga` without a name, which Python calls with the class itself."""
    if isinstance(name, type):
        raise DefinitionError(f'@saga needs a name: @saga("{_dashed(name.__name__)}")')


def _dashed(name: str) -> str:
    """Returns the name of a class as sagas are named: `BookTrip` is `book-trip`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


@overload
def step(function: F, /) -> F: ...
@overload
def step(*, id: str | None = None, **options: Unpack[StepOptions]) -> Callable[[F], F]: ...
@refuse_unknown_options("@step", StepOptions)
def step(
    function: F | None = None, /, *, id: str | None = None, **options: Unpack[StepOptions]
) -> F | Callable[[F], F]:
    """Makes a method a step: `@step`, or `@step(depends_on=[flight], timeout="5s", …)`."""
    settings = StepSettings(**options)

    def decorate(function: F) -> F:
        attach(function, STEP, settings)
        attach(function, STEP_ID_ATTRIBUTE, id or function.__name__)
        return function

    return decorate if function is None else decorate(function)


@refuse_unknown_options("@external_step", StepOptions)
def external_step(*, saga: str | type, id: str | None = None, **options: Unpack[StepOptions]) -> Callable[[F], F]:
    """Makes a function outside of the class a step of a saga. Pass the function or its module to `register`."""
    settings = StepSettings(**options)

    def decorate(function: F) -> F:
        name = id or function.__name__
        attach(function, STEP_ID_ATTRIBUTE, name)
        attach(function, EXTERNAL_STEPS, (*getattr(function, EXTERNAL_STEPS, ()), ExternalStep(saga, name, settings)))
        return function

    return decorate


@refuse_unknown_options("@compensation_step")
def compensation_step(*, saga: str | type, for_step: StepRef) -> Callable[[F], F]:
    """Makes a function outside of the class the compensation of a step. It overrides the one in the class."""

    def decorate(function: F) -> F:
        more = ExternalCompensation(saga, for_step)
        attach(function, EXTERNAL_COMPENSATIONS, (*getattr(function, EXTERNAL_COMPENSATIONS, ()), more))
        return function

    return decorate


@refuse_unknown_options("@handler")
def handler(name: str, *, tenants: Iterable[str] = ()) -> Callable[[F], F]:
    """Makes a function callable by name from JSON definitions. Its input is the rendered `with`.

    Definitions of the deployment may always call it. Definitions published by a tenant may call it if `tenants`
    includes that tenant, or is `["*"]`.
    """
    opened = several(tenants)

    def decorate(function: F) -> F:
        attach(function, HANDLER_NAMES, {**getattr(function, HANDLER_NAMES, {}), name: opened})
        return function

    return decorate


# -- Steps that are not functions --------------------------------------------------------------------------------------


@overload
def approval(
    *,
    deadline: Duration | None = None,
    permission: str | None = None,
    depends_on: Iterable[StepRef] = (),
    when: str | None = None,
) -> Declared[Any]: ...
@overload
def approval(
    *,
    data: type[T],
    deadline: Duration | None = None,
    permission: str | None = None,
    depends_on: Iterable[StepRef] = (),
    when: str | None = None,
) -> Declared[T]: ...
@refuse_unknown_options("approval")
def approval(
    *,
    data: Any = Any,
    deadline: Duration | None = None,
    permission: str | None = None,
    depends_on: Iterable[StepRef] = (),
    when: str | None = None,
) -> Declared[Any]:
    """Declares a step that waits for a person's decision. Its result is the data of the decision."""
    return Declared(
        ApprovalSettings(depends_on=several(depends_on), when=when, deadline=deadline, permission=permission, data=data)
    )


@refuse_unknown_options("wait")
def wait(
    duration: Duration | None = None,
    *,
    until: str | None = None,
    depends_on: Iterable[StepRef] = (),
    when: str | None = None,
) -> Declared[None]:
    """Declares a timer step: `wait("10m")`, or `until` the time of a CEL expression."""
    return Declared(WaitSettings(depends_on=several(depends_on), when=when, duration=duration, until=until))


@overload
def signal(
    name: str,
    *,
    deadline: Duration | None = None,
    depends_on: Iterable[StepRef] = (),
    when: str | None = None,
) -> Declared[Any]: ...
@overload
def signal(
    name: str,
    payload: type[T],
    *,
    deadline: Duration | None = None,
    depends_on: Iterable[StepRef] = (),
    when: str | None = None,
) -> Declared[T]: ...
@refuse_unknown_options("signal")
def signal(
    name: str,
    payload: Any = Any,
    *,
    deadline: Duration | None = None,
    depends_on: Iterable[StepRef] = (),
    when: str | None = None,
) -> Declared[Any]:
    """Declares a step that waits for a signal. Its result is the payload."""
    return Declared(
        SignalSettings(depends_on=several(depends_on), when=when, name=name, payload=payload, deadline=deadline),
    )


@refuse_unknown_options("group")
def group(
    *steps: StepRef,
    mode: GroupMode = "sequence",
    max_concurrency: int = 0,
    failure_mode: FailureMode = "fail_fast",
    max_rounds: int = 3,
    repeat_until: str | None = None,
    max_visits: int = MAX_VISITS,
    deadline: Duration | None = None,
    depends_on: Iterable[StepRef] = (),
    when: str | None = None,
) -> Declared[None]:
    """Groups steps in a scope with its own order, concurrency and failure mode."""
    return Declared(
        GroupSettings(
            members=steps,
            depends_on=several(depends_on),
            when=when,
            mode=mode,
            max_concurrency=max_concurrency,
            failure_mode=failure_mode,
            max_rounds=max_rounds,
            repeat_until=repeat_until,
            max_visits=max_visits,
            deadline=deadline,
        )
    )
