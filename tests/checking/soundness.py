"""For every test that leaves executions behind."""

from collections.abc import Callable
from typing import Any

from tenuto import Engine
from tenuto.checker import check_database
from tenuto.checker.history import Follower
from tenuto.runtime.memory import MemoryRuntime
from tests.seams import executions_in_memory, runtime_of


async def assert_sound(url: str) -> None:
    """What is stored there obeys every invariant."""
    findings = await check_database(url)
    assert not findings, "\n".join(line for found in findings for line in found.lines())


def assert_histories_sound(engine: Engine) -> int:
    """What an engine in memory has recorded obeys every invariant of a history: there are no rows. How many it was."""
    runtime = runtime_of(engine)
    assert isinstance(runtime, MemoryRuntime)
    for record in executions_in_memory(runtime):
        follower = Follower(record.performer.program.plan, _ask)
        for entry in record.history:
            follower.follow(entry)
    return len(executions_in_memory(runtime))


def _ask(rule: Callable[..., None], *given: Any) -> None:
    rule(*given)
