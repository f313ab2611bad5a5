"""Sagas without a class: for definitions made at run time, and for doubles in tests."""

from collections.abc import Iterable
from typing import Any, Self, Unpack

from tenuto.kernel.definition import MAX_VISITS, FailureMode
from tenuto.values.durations import Duration

from . import decorators
from .compile import compile_material
from .gather import Material, Piece
from .markers import StepRef
from .problems import Problems
from .program import Program
from .settings import Declared, GroupMode, SagaOptions, SagaSettings, StepOptions, StepSettings
from .signature import Function


class SagaBuilder:
    """`SagaBuilder("book-trip").step("flight", book_flight, compensate=cancel_flight).build()`."""

    def __init__(self, name: str, **options: Unpack[SagaOptions]) -> None:
        self.settings = SagaSettings(name=name, **options)
        self._pieces: list[Piece] = []

    @property
    def name(self) -> str:
        return self.settings.name

    def step(self, id: str, function: Function, **options: Unpack[StepOptions]) -> Self:
        """A function as a step, with the keywords of `@step`."""
        origin = getattr(function, "__func__", function)
        self._pieces.append(Piece(id, StepSettings(**options), origin, function))
        return self

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
        return self._declare(
            id,
            decorators.approval(data=data, deadline=deadline, permission=permission, depends_on=depends_on, when=when),
        )

    def wait(
        self,
        id: str,
        duration: Duration | None = None,
        *,
        until: str | None = None,
        depends_on: Iterable[StepRef] = (),
        when: str | None = None,
    ) -> Self:
        return self._declare(id, decorators.wait(duration, until=until, depends_on=depends_on, when=when))

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
        return self._declare(id, decorators.signal(name, payload, deadline=deadline, depends_on=depends_on, when=when))

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
        """A scope of its own for steps that were added before or will be after."""
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
        """The program, for `register`. `DefinitionError` with all that is wrong."""
        return compile_material(self.material(), Problems())

    def material(self) -> Material:
        return Material(self.settings, list(self._pieces))

    def _declare(self, id: str, declared: Declared[Any]) -> Self:
        declared.id = id
        self._pieces.append(Piece(id, declared.settings, declared))
        return self
