"""Whether a live worker can run a program, as the sessions state in the database.

The answer is cached for a second, so many starts in that second cost one query. If the database does not answer, a
worker is assumed to exist.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from time import monotonic

from tenuto.authoring.program import Program
from tenuto.errors import StorageError
from tenuto.runtime.shared.single_flight import SingleFlight
from tenuto.storage.tasks import Serving, serving_names

KNOWN_SECONDS = 1.0
PATIENCE_SECONDS = 1.0  # the start is committed, and its caller waits for the response


class Workers:
    def __init__(self, serving: Callable[[], Awaitable[list[Serving]]]) -> None:
        self._serving = SingleFlight(serving)
        self._handlers: list[frozenset[str]] | None = None  # of each session that works; None if it is not known
        self._found: dict[tuple[str, int], bool] = {}
        self._good_until = 0.0

    async def can_run(self, program: Program) -> bool:
        if monotonic() >= self._good_until:
            await self._ask()
        if self._handlers is None:
            return True
        at = (program.name, program.version)
        found = self._found.get(at)
        if found is None:
            found = self._found[at] = _is_run(program, self._handlers)
        return found

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                found = await self._serving.call()
        except (StorageError, TimeoutError):
            self._handlers = None
            return
        self._handlers, self._found = [frozenset(session.handlers) for session in found], {}
        self._good_until = monotonic() + KNOWN_SECONDS


def _is_run(program: Program, sessions: Iterable[frozenset[str]]) -> bool:
    plan = f"{program.name}/{program.version}"
    needed = [serving_names(plan, name) for name in program.local_handlers()]
    return any(all(not handlers.isdisjoint(names) for names in needed) for handlers in sessions)
