"""What happens, as it happens: the engine tells a `Reporter`, and the reporter tells whoever shows it."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from tenuto import EventContext, SagaEvents, SagaResult

Mark = Literal["waits", "runs", "again", "done", "failed", "undone", "asks"]


@dataclass(frozen=True)
class News:
    """One line of the story. `row` says whose, `step` and `mark` what became of a step, if it is about one."""

    row: str
    text: str
    step: str = ""
    mark: Mark = "waits"
    execution: str = ""
    process: int = 0

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str | bytes) -> "News":
        return cls(**json.loads(line))


class Reporter(SagaEvents):
    """Listens to an engine. Executions are told apart by their correlation id, which the demo makes readable."""

    def __init__(self, tell: Callable[[News], None]) -> None:
        self.tell = tell

    def _say(self, ctx: EventContext, text: str, step: str = "", mark: Mark = "waits") -> None:
        self.tell(News(ctx.correlation_id, text, step, mark, ctx.execution_id, os.getpid()))

    def on_step_started(self, ctx: EventContext, step_id: str, attempt: int) -> None:
        again = "" if attempt == 1 else f", attempt {attempt}"
        self._say(ctx, f"{step_id} begins{again}", step_id, "runs")

    def on_step_success(self, ctx: EventContext, step_id: str, result: Any, attempts: int, latency_ms: int) -> None:
        self._say(ctx, f"{step_id} is done", step_id, "done")

    def on_step_retrying(
        self, ctx: EventContext, step_id: str, error: str, error_class: str, attempt: int, retry_at: datetime | None
    ) -> None:
        self._say(ctx, f"{step_id} will be tried again: {error} ({error_class})", step_id, "again")

    def on_step_failed(self, ctx: EventContext, step_id: str, error: str, error_class: str, attempts: int) -> None:
        self._say(ctx, f"{step_id} failed: {error} ({error_class})", step_id, "failed")

    def on_compensated(self, ctx: EventContext, step_id: str, result: Any) -> None:
        self._say(ctx, f"{step_id} is undone", step_id, "undone")

    def on_compensation_failed(self, ctx: EventContext, step_id: str, error: str) -> None:
        self._say(ctx, f"{step_id} could not be undone: {error}", step_id, "failed")

    def on_circuit_open(self, ctx: EventContext, step_id: str, skipped: Sequence[str]) -> None:
        self._say(ctx, f"nothing more is undone: {', '.join(skipped)} stay as they are")

    def on_completed(self, ctx: EventContext, result: SagaResult[Any]) -> None:
        self._say(ctx, f"over: {result.status}")
