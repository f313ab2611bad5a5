"""What a compiled expression is made of: closures that compute a value, given the run they are part of."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from tenuto.kernel.definition import JSON

from .kinds import MAPS, Fault, a_kind, need_bool, need_map, need_string

MAX_LOOPS = 3  # inside one another: each multiplies
MAX_WORK = 800_000  # of one budget: some 50 ms (benchmarks/bounds.py)


class Exhausted(Exception):
    """Too much work. Not a `Fault`, because nothing may absorb it."""


class TooLarge(Exception):
    """Too large a value. Not a `Fault`, because nothing may absorb it."""


class Budget:
    """The work that is left to all the expressions of one decision. A unit is about as much as reading a variable.

    It is counted, not timed, so that a decision comes out the same on every machine.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_WORK

    def spend(self, work: int) -> None:
        self.left -= work
        if self.left < 0:
            self.left = 0
            raise Exhausted

    @property
    def is_low(self) -> bool:
        return self.left < MAX_WORK // 2


class Run:
    """One evaluation: the scope, the variables of the loops, and the work that is left."""

    __slots__ = ("limit", "scope", "slots", "work")

    def __init__(self, scope: Mapping[str, JSON], work: int, limit: int) -> None:
        self.scope = scope
        self.slots: list[object] = [None] * MAX_LOOPS
        self.work = work
        self.limit = limit  # of the size of any value that it makes

    def spend(self, work: int) -> None:
        self.work -= work
        if self.work < 0:
            raise Exhausted

    def make(self, size: int) -> None:
        """Something of so many characters or items is about to be made."""
        if size > self.limit:
            raise TooLarge


Compute: TypeAlias = Callable[[Run], object]
Unary: TypeAlias = Callable[[Run, object], object]
Operator: TypeAlias = Callable[[Run, object, object], object]
Loop: TypeAlias = Callable[[Run, Iterable[object], Compute, Compute | None], object]


def constant(value: object) -> Compute:
    return lambda run: value


def root(name: str) -> Compute:
    def read(run: Run) -> object:
        if name in run.scope:
            return run.scope[name]
        raise Fault(f"there is no {name!r} here")

    return read


def variable(slot: int) -> Compute:
    return lambda run: run.slots[slot]


def new_list(items: list[Compute]) -> Compute:
    return lambda run: [item(run) for item in items]


def new_map(entries: list[tuple[Compute, Compute]]) -> Compute:
    return lambda run: {need_string(key(run)): value(run) for key, value in entries}


def path(value: Compute, keys: list[str | int]) -> Compute:
    named = [(key, repr(key)) for key in keys]  # they stand in the source, so a message may name them

    def follow(run: Run) -> object:
        current = value(run)
        for key, name in named:
            current = _at(current, key, name)
        return current

    return follow


def index(run: Run, value: object, key: object) -> object:
    return _at(value, key, f"that {'index' if isinstance(value, list) else 'key'}")


def _at(value: object, key: object, named: str) -> object:
    if isinstance(value, MAPS) and isinstance(key, str):
        if key in value:
            return value[key]
        raise Fault(f"{named} is missing")
    if isinstance(value, list) and isinstance(key, int) and not isinstance(key, bool):
        if 0 <= key < len(value):
            return value[key]
        raise Fault(f"{named} is outside of the list")
    raise Fault(f"{a_kind(value)} has nothing at {named}")


def has(holder: Compute, key: str | int) -> Compute:
    return lambda run: key in need_map(holder(run))


def choice(condition: Compute, then: Compute, otherwise: Compute) -> Compute:
    return lambda run: then(run) if need_bool(condition(run)) else otherwise(run)


def unary(operation: Unary, operand: Compute) -> Compute:
    return lambda run: operation(run, operand(run))


def chain(first: Compute, rest: list[tuple[Operator, Compute]]) -> Compute:
    def fold(run: Run) -> object:
        value = first(run)
        for operation, operand in rest:
            value = operation(run, value, operand(run))
        return value

    return fold


def call(function: Operator, first: Compute, second: Compute) -> Compute:
    return lambda run: function(run, first(run), second(run))


def logic(operands: list[Compute], *, decisive: bool) -> Compute:
    return lambda run: _decide(run, operands, decisive=decisive)


def _decide(run: Run, operands: Iterable[Compute], *, decisive: bool) -> bool:
    """`||` and `exists` (true decides), `&&` and `all` (false does). As in CEL, a decisive operand outweighs errors."""
    fault: Fault | None = None
    for operand in operands:
        try:
            if need_bool(operand(run)) is decisive:
                return decisive
        except Fault as error:
            fault = fault or error
    if fault is not None:
        raise fault
    return not decisive


def loop(each: Loop, items: Compute, slot: int, body: Compute, mapped: Compute | None, work: int) -> Compute:
    """`work` is what one round takes."""

    def turns(run: Run) -> Iterator[object]:
        found = items(run)
        if not isinstance(found, list):
            found = need_map(found, "a list or a map")
            run.spend(len(found))
            found = sorted(found)
        for item in found:
            run.work -= work
            if run.work < 0:
                raise Exhausted
            run.slots[slot] = item
            yield item

    return lambda run: each(run, turns(run), body, mapped)


def _map_loop(run: Run, turns: Iterable[object], body: Compute, mapped: Compute | None) -> list[object]:
    return [body(run) for _ in turns] if mapped is None else [mapped(run) for _ in turns if need_bool(body(run))]


LOOPS: dict[str, Loop] = {
    "all": lambda run, turns, body, _: _decide(run, (body for _ in turns), decisive=False),
    "exists": lambda run, turns, body, _: _decide(run, (body for _ in turns), decisive=True),
    "exists_one": lambda run, turns, body, _: sum(need_bool(body(run)) for _ in turns) == 1,
    "filter": lambda run, turns, body, _: [item for item in turns if need_bool(body(run))],
    "map": _map_loop,
}
