"""The programs and handlers that a process has, by name and version."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from tenuto.authoring.program import Handler, Program
from tenuto.kernel.definition import to_document
from tenuto.runtime.publication import changed_plan, unknown_definition

from . import Performer

Override: TypeAlias = Callable[[Program], Program]


def unchanged(program: Program) -> Program:
    return program


class ProgramRegistry:
    """`prepares`: handlers are prepared when they are registered, because they run in this process.

    `override` applies what the settings of the deployment change of the steps.
    """

    def __init__(self, *, prepares: bool, override: Override) -> None:
        self._prepares = prepares
        self.override = override
        self.handlers: dict[str, Handler] = {}
        self.performers: dict[tuple[str, int], Performer] = {}
        self.newest: dict[str, Performer] = {}
        self.on_replaced: list[Callable[[], None]] = []  # parked attempts may have what they need
        self.on_change: list[Callable[[], None]] = []  # what this process can run has changed

    def provide(self, program: Program) -> None:
        program = self.override(program)
        known = self.performers.get((program.name, program.version))
        if known is None:
            self.add(program)
        elif known.program.plan.hash != program.plan.hash:
            raise changed_plan(program, to_document(known.program.plan.definition))
        else:
            known.replace(program)
            _call(self.on_replaced)
        _call(self.on_change)

    def provided(self, name: str, version: int) -> Program | None:
        performer = self.performers.get((name, version))
        return None if performer is None else performer.program

    def provide_handler(self, handler: Handler) -> None:
        """From now on definitions call this handler by that name, also those that came after an earlier one of it."""
        earlier = self.handlers.get(handler.name)
        self.handlers[handler.name] = handler
        for performer in self.performers.values():
            program = performer.program
            if earlier is not None and program.handlers.get(handler.name) is earlier:
                program = replace(program, handlers={**program.handlers, handler.name: handler})
            performer.replace(program)
        _call(self.on_replaced)
        _call(self.on_change)

    def add(self, program: Program) -> Performer:
        """Adds an unknown program without calling the listeners."""
        performer = self.performers[program.name, program.version] = Performer(program, self.handlers)
        newest = self.newest.get(program.name)
        if newest is None or newest.program.version < program.version:
            self.newest[program.name] = performer
        for name in program.handler_names() if self._prepares else ():
            if (handler := performer.handler(name)) is not None:
                handler.prepare()
        return performer

    def remove(self, program: Program) -> None:
        removed = self.performers.pop((program.name, program.version), None)
        if self.newest.get(program.name) is removed:
            others = [known for (name, _), known in self.performers.items() if name == program.name]
            self.newest.pop(program.name, None)
            if others:
                self.newest[program.name] = max(others, key=lambda known: known.program.version)
        _call(self.on_change)

    def knows(self, name: str) -> bool:
        return name in self.newest

    def performer(self, name: str, version: int | None) -> Performer:
        performer = self.newest.get(name) if version is None else self.performers.get((name, version))
        if performer is None:
            raise unknown_definition(name, version, self.performers)
        return performer


def _call(listeners: list[Callable[[], None]]) -> None:
    for listener in listeners:
        listener()
