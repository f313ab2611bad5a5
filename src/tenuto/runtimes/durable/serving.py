"""Whether anybody who is alive can run a program: what the sessions say of themselves, asked for once a second.

What is known is a second old at most, so that a hundred who start something in that second ask nothing. Where the
database does not tell, it is not known, and nobody is told that there is no worker.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from time import monotonic

from tenuto.errors import StorageError
from tenuto.program import Program
from tenuto.storage.tasks import Serving, work_names

KNOWN_SECONDS = 1.0
PATIENCE_SECONDS = 1.0  # of somebody whose execution is started already, and who is to hear of it


class Workers:
    def __init__(self, serving: Callable[[], Awaitable[list[Serving]]]) -> None:
        self._serving = serving
        self._handlers: list[frozenset[str]] | None = None  # of each session that works; None if it is not known
        self._found: dict[tuple[str, int], bool] = {}
        self._good_until = 0.0
        self._asking: asyncio.Task[None] | None = None

    async def can_run(self, program: Program) -> bool:
        if monotonic() >= self._good_until:
            await self._ask()
        at = (program.name, program.version)
        found = self._found.get(at)
        if found is None:
            found = self._found[at] = self._is_run(program)
        return found

    def _is_run(self, program: Program) -> bool:
        if self._handlers is None:
            return True
        plan = f"{program.name}/{program.version}"
        needed = [work_names(plan, name) for name in program.local_handlers()]
        return any(_has_all(handlers, needed) for handlers in self._handlers)

    async def _ask(self) -> None:
        if self._asking is None:
            self._asking = asyncio.create_task(self._read(), name="tenuto-workers")
        await asyncio.wait([self._asking], timeout=PATIENCE_SECONDS)

    async def _read(self) -> None:
        self._handlers, self._found = None, {}
        try:
            with suppress(StorageError):
                self._handlers = [frozenset(session.handlers) for session in await self._serving()]
                self._good_until = monotonic() + KNOWN_SECONDS
        finally:
            self._found = {}  # whoever did not wait may have noted what was not known yet
            self._asking = None


def _has_all(handlers: frozenset[str], needed: Iterable[tuple[str, str]]) -> bool:
    return all(own in handlers or named in handlers for own, named in needed)
