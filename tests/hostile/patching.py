"""Puts the engine into a world: its stores, its clock and its chance are the world's, for the length of a run."""

import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import tenuto.api.connection
import tenuto.storage.sqlite.reader  # else it is imported when somebody reads, and knows the wrong time
from tenuto.runtime.durable import committer
from tenuto.runtime.durable.claimer import Claimer
from tenuto.storage import Store
from tenuto.storage.port import MAIL_AT_ONCE

if TYPE_CHECKING:
    from .world import World


class _Time:
    """What the engine knows of the module `time`."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.loop.time()

    def monotonic_ns(self) -> int:
        return int(self._world.loop.time() * 1_000_000_000)

    def time_ns(self) -> int:
        return self._world.database_now() * 1_000_000


@contextmanager
def in_world(world: "World") -> Iterator[None]:
    from .simulated import SimulatedStore

    def make_store(url: str, *, read_only: bool = False, serializable: bool = False) -> Store:
        store: Any = SimulatedStore(world)
        return store  # type: ignore[no-any-return]  # to the engine it is a store

    others = _Time(world)
    state = random.getstate()
    random.seed(world.seed)
    with ExitStack() as stack:
        stack.callback(random.setstate, state)
        for module, name in everywhere("time", time):
            _set(stack, module, name, others)
        for module, name in everywhere("monotonic", time.monotonic):
            _set(stack, module, name, others.monotonic)
        for module, name in everywhere("MAIL_AT_ONCE", MAIL_AT_ONCE):
            _set(stack, module, name, world.mail_at_once)
        _set(stack, committer, "ENOUGH", world.told_at_once)
        _set(stack, committer, "TELL_AT_ONCE", world.told_at_once)
        _set(stack, tenuto.api.connection, "make_store", make_store)
        _set(stack, Claimer, "_report_found", lambda _, number: world.fail("the net stays empty", str(number)))
        yield


def everywhere(name: str, value: object) -> list[tuple[Any, str]]:
    """The modules of the durable runtime and of storage that know this under this name, wherever it is used."""
    found = [(module, name) for module in _modules() if vars(module).get(name) is value]
    assert found, f"nobody knows {name}"
    return found


def _modules() -> list[Any]:
    parts = ("tenuto.runtime", "tenuto.storage", "tenuto.api.engine")
    return [module for name, module in sorted(sys.modules.items()) if name.startswith(parts)]


def _set(stack: ExitStack, module: Any, name: str, value: object) -> None:
    stack.callback(setattr, module, name, getattr(module, name))
    setattr(module, name, value)
