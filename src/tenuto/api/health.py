"""Health checks of a process, for probes and for people.

`alive` checks the process alone: if it fails, restart the process. `ready` also checks what the process depends on: if
it fails, send it no work. An unreachable database makes a process not ready, and a restart would not help.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from tenuto.errors import StorageError
from tenuto.runtime.port import Lifecycle
from tenuto.runtime.vitals import Vitals

CHECK_SECONDS: Final = 2.0
SLOW_COMMIT_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def __str__(self) -> str:
        return "\n".join(f"{check.name}: {'ok' if check.ok else check.detail}" for check in self.checks)


def alive(process: Lifecycle) -> Health:
    """Checks that the engine is open and its loops are running."""
    vitals = process.vitals()
    return Health(
        (
            Check("open", vitals.is_open, "the engine is closed or not open yet"),
            Check("claims", vitals.is_claiming, "the loop that claims executions has ended"),
            Check("queues", vitals.is_taking_tasks, "a loop that runs the tasks of queues has ended"),
        )
    )


async def ready(process: Lifecycle) -> Health:
    """Checks also that it holds its lease, commits, and that its database is available with the right schema."""
    vitals = process.vitals()
    lease = f"the lease was last renewed {vitals.renewed_ms / 1_000:.0f} s ago"
    return Health(
        (*alive(process).checks, Check("lease", vitals.may_start, lease), _commits(vitals), await _database(process))
    )


def _commits(vitals: Vitals) -> Check:
    if vitals.commit_trouble:
        return Check("commits", False, f"{vitals.commit_trouble}; {vitals.uncommitted} decisions wait")
    detail = f"a commit has taken {vitals.committing_ms / 1_000:.0f} s so far, and {vitals.uncommitted} decisions wait"
    return Check("commits", vitals.committing_ms < SLOW_COMMIT_MS, detail)


async def _database(process: Lifecycle) -> Check:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await process.check()
    except StorageError as error:
        return Check("database", False, f"{error.code}: {error.message}")
    except TimeoutError:
        return Check("database", False, f"no answer within {CHECK_SECONDS:g} s")
    return Check("database", True)
