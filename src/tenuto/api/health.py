"""Whether a process does its work: for probes, which want one word, and for people, who want to know what is wrong.

`alive` is about the process alone: restart it if it is not. `ready` is about all that it needs: send it nothing while
it is not. A database that is away makes a process not ready, and restarting it would not help.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from tenuto.errors import StorageError
from tenuto.runtime.port import Runtime, Vitals

PATIENCE_S: Final = 2.0
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


def alive(runtime: Runtime) -> Health:
    """The engine is open, and what it does by itself goes on."""
    vitals = runtime.vitals()
    return Health(
        (
            Check("open", vitals.is_open, "the engine is closed, or not open yet"),
            Check("claims", vitals.claims, "the task that looks for work has ended"),
            Check("queues", vitals.visits, "a task that runs the attempts of queues has ended"),
        )
    )


async def ready(runtime: Runtime) -> Health:
    """It is alive, holds its lease, commits, and its database answers with the right schema."""
    vitals = runtime.vitals()
    lease = f"the lease was last renewed {vitals.renewed_ms / 1_000:.0f} s ago"
    return Health(
        (*alive(runtime).checks, Check("lease", vitals.may_start, lease), _commits(vitals), await _database(runtime))
    )


def _commits(vitals: Vitals) -> Check:
    if vitals.commit_trouble:
        return Check("commits", False, f"{vitals.commit_trouble}; {vitals.uncommitted} decisions wait")
    waits = f"a commit has taken {vitals.committing_ms / 1_000:.0f} s so far, and {vitals.uncommitted} decisions wait"
    return Check("commits", vitals.committing_ms < SLOW_COMMIT_MS, waits)


async def _database(runtime: Runtime) -> Check:
    try:
        async with asyncio.timeout(PATIENCE_S):
            await runtime.check()
    except StorageError as error:
        return Check("database", False, f"{error.code}: {error.message}")
    except TimeoutError:
        return Check("database", False, f"no answer within {PATIENCE_S:g} s")
    return Check("database", True)
