"""A `Call` with what a test puts into it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw

from tenuto.authoring.context import HeartbeatReply, SagaContext
from tenuto.authoring.program import AgentOutput, Handler, Planning, Program
from tenuto.kernel.events import Failure


def raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


class Services:
    """The services of an attempt that nothing is asked of."""

    def is_cancelled(self) -> bool:
        return False

    def heartbeat(self, progress: object) -> HeartbeatReply:
        return HeartbeatReply(paused=False, cancelled=False)

    def result_of(self, step: str) -> object:
        return None

    def once(self, key: str, connection: object) -> Any:
        raise NotImplementedError


def context(**fields: Any) -> SagaContext:
    known: dict[str, Any] = {
        "execution_id": "e1",
        "saga": "s",
        "step_id": "a",
        "path": "a",
        "correlation_id": "c1",
        "tenant": "t",
        "attempt": 1,
        "idempotency_key": "k",
        "forward_key": "f",
        "lease_id": "l",
        "deadline": datetime(2030, 1, 1, tzinfo=UTC),
        "headers": {},
        "variables": {},
        "progress": None,
    }
    return SagaContext(Services(), **{**known, **fields})


@dataclass
class FakeCall:
    input: Raw | None = None
    own_result: Raw | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, Raw] = field(default_factory=dict)
    results: Mapping[str, Raw | list[Raw | None] | None] = field(default_factory=dict)
    undone: Mapping[str, Raw] = field(default_factory=dict)
    undo_errors: Mapping[str, Failure] = field(default_factory=dict)
    context: SagaContext = field(default_factory=context)

    def result_of(self, step: str) -> Raw | list[Raw | None] | None:
        return self.results.get(step)

    def agent_outputs(self) -> Sequence[AgentOutput]:
        return ()

    def planning(self) -> Planning:
        return Planning(replan=0, agents=(), agents_left=10, left=None)

    def compensation_result(self, step: str) -> Raw | None:
        return self.undone.get(step)

    def compensation_error(self, step: str) -> Failure | None:
        return self.undo_errors.get(step)


def call(handler: Handler, **fields: Any) -> Any:
    """Runs a handler to its end, as a runtime would."""
    given: Any = handler.invoke(FakeCall(**fields))
    return asyncio.run(given) if handler.is_async else given


def run(program: Program, name: str, **fields: Any) -> Any:
    return call(program.handlers[f"{program.name}.{name}"], **fields)
