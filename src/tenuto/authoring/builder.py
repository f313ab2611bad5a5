"""Builds sagas without a class: for definitions made at run time, and for test doubles."""

from collections.abc import Iterable
from typing import Any, Self, Unpack

from tenuto.kernel.definition import MAX_VISITS, FailureMode
from tenuto.values.durations import Duration

from . import decorators
from .compiler import compile_source
from .known_options import refuse_unknown_options
from .markers import StepRef
from .problems import Problems
from .program import Program
from .saga_source import SagaSource, StepSource
from .settings import Declared, GroupMode, SagaOptions, SagaSettings, StepOptions, StepSettings
from .signature import Function


class SagaBuilder:
    """Builds a saga step by step.

    `SagaBuilder("book-trip").step("flight", book_flight, compensate=cancel_flight).build()`
    """

    @refuse_unknown_options("SagaBuilder", SagaOptions)
    def __init__(self, name: str, **options: Unpack[SagaOptions]) -> None:
        self.settings = SagaSettings(name=name, **options)
        self._steps: list[StepSource] = []

    @property
    def name(self) -> str:
        return self.settings.name

    @refuse_unknown_options("SagaBuilder.step", StepOptions)
    def step(self, id: str, function: Function, **options: Unpack[StepOptions]) -> Self:
        """Adds a function as a step. Takes the options of `@step`."""
        origin = getattr(function, "__func__", function)
        self._steps.append(StepSource(id, StepSettings(**options), origin, function))
        return self

    @refuse_unknown_options("SagaBuilder.approval")
    def approval(
        self,
        id: str,
        *,
        data: Any = Any,
        deadline: Duration | None = None,
        permission: str | None = None,
        depends_on: Iterable[StepRef] = (),
        when: str | None = None,
    ) -> Self:
        """Adds an approval: a step that waits for a person's decision."""
        return self._declare(
            id,
            decorators.approval(data=data, deadline=deadline, permission=permission, depends_on=depends_on, when=when),
        )

    @refuse_unknown_options("SagaBuilder.wait")
    def wait(
        self,
        id: str,
        duration: Duration | None = None,
        *,
        until: str | None = None,
        depends_on: Iterable[StepRef] = (),
        when: str | None = None,
    ) -> Self:
        """Adds a wait: a step that ends after a duration, or at a time."""
        return self._declare(id, decorators.wait(duration, until=until, depends_on=depends_on, when=when))

    @refuse_unknown_options("SagaBuilder.signal")
    def signal(
        self,
        id: str,
        name: str,
        payload: Any = Any,
        *,
        deadline: Duration | None = None,
        depends_on: Iterable[StepRef] = (),
        when: str | None = None,
    ) -> Self:
        """Adds a step that waits for a signal."""
        return self._declare(id, decorators.signal(name, payload, deadline=deadline, depends_on=depends_on, when=when))

    @refuse_unknown_options("SagaBuilder.group")
    def group(
        self,
        id: str,
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
    ) -> Self:
        """Groups steps in a scope of their own. They may be added before or after."""
        scope = decorators.group(
            *steps,
            mode=mode,
            max_concurrency=max_concurrency,
            failure_mode=failure_mode,
            max_rounds=max_rounds,
            repeat_until=repeat_until,
            max_visits=max_visits,
            deadline=deadline,
            depends_on=depends_on,
            when=when,
        )
        return self._declare(id, scope)

    def build(self) -> Program:
        """Returns the program for `register`. Raises `DefinitionError` with every problem."""
        return compile_source(self.material(), Problems())

    def material(self) -> SagaSource:
        """Returns the source that the compiler reads."""
        return SagaSource(self.settings, list(self._steps))

    def _declare(self, id: str, declared: Declared[Any]) -> Self:
        declared.id = id
        self._steps.append(StepSource(id, declared.settings, declared))
        return self
