"""The result of an execution, for programs and as a report."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar, overload

from tenuto.authoring.context import step_name
from tenuto.errors import ExecutionFailed, NotFound
from tenuto.kernel.definition import plain_name
from tenuto.kernel.evolve import last_completed
from tenuto.kernel.state import TERMINAL, ExecutionStatus
from tenuto.views import (
    Blocked,
    ErrorDocument,
    blocked,
    error_document,
    finished_at,
    result_of,
    result_seqs,
    rfc3339,
    stored_output,
)
from tenuto.views.reading import Reading

from .steps import Decode, FanResult, StepResult, Steps, plain

O_co = TypeVar("O_co", covariant=True)
R = TypeVar("R")


class SagaResult(Generic[O_co]):
    """The result of an execution that has finished or waits for a person."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._steps: Steps | None = None
        state = reading.state
        self.execution_id: str = state.id
        self.status: ExecutionStatus = state.status
        self.blocked: Blocked | None = blocked(state, reading.activity)

    @property
    def saga(self) -> str:
        return plain_name(self._reading.program.name)

    @property
    def correlation_id(self) -> str:
        return self._reading.state.correlation_id

    @property
    def succeeded(self) -> bool:
        return self.status == "succeeded"

    @property
    def done(self) -> bool:
        """Whether the execution has finished. An execution that waits for a person is settled, but not done."""
        return self.status in TERMINAL

    @property
    def outcome(self) -> str:
        """Detail of a success: `partial` if a failure was tolerated, `skipped` if there was nothing to do."""
        return self._reading.state.outcome

    @property
    def error(self) -> ErrorDocument | None:
        """Why the execution failed: class, code, summary and step."""
        return error_document(self._reading.state, self._reading.state.failure)

    @property
    def output(self) -> O_co:
        """The saga's output. Raises `ExecutionFailed` if the execution did not succeed."""
        self.raise_for_status()
        reading = self._reading
        program = reading.program
        if reading.state.plan.output is None:
            return _last_result(self)  # type: ignore[no-any-return]  # a definition without an output has no type for it
        return program.decode_output(stored_output(reading.state, reading.history))  # type: ignore[return-value]

    def raise_for_status(self) -> Self:
        """Returns itself if the execution succeeded; otherwise raises `ExecutionFailed` with step and reason."""
        if self.succeeded:
            return self
        error = self.error
        raise ExecutionFailed(
            self._why_not(),
            execution_id=self.execution_id,
            status=self.status,
            error_class=error["error_class"] if error is not None else None,
            blocked=self.blocked,
        )

    def _why_not(self) -> str:
        text = f"Execution {self.execution_id} of {self.saga!r} {_STANDING[self.status]}"
        if self.blocked is not None:
            waiting_for = f" for {self.blocked['waiting_for']!r}" if self.blocked["waiting_for"] else ""
            return f"{text}: it waits{waiting_for} ({self.blocked['reason']})."
        error = self.error
        if error is None:
            return f"{text}."
        step = f" in step {error['step_id']!r}" if error["step_id"] else ""
        return f"{text}{step}: {error['error_class']} ({error['code']}): {error['summary']}"

    @property
    def steps(self) -> Steps:
        """The result of each step, by its id."""
        if self._steps is None:
            self._steps = Steps(self._reading)
        return self._steps

    @overload
    def result_of(self, step: Callable[..., Awaitable[R]]) -> R: ...
    @overload
    def result_of(self, step: Callable[..., R]) -> R: ...
    @overload
    def result_of(self, step: str) -> Any: ...
    def result_of(self, step: str | Callable[..., Any]) -> Any:
        """Returns a step's decoded result; None if the step was skipped or did not succeed."""
        return self._find(step).result

    @overload
    def results_of(self, step: Callable[..., Awaitable[R]]) -> Sequence[R | None]: ...
    @overload
    def results_of(self, step: Callable[..., R]) -> Sequence[R | None]: ...
    @overload
    def results_of(self, step: str) -> Sequence[Any]: ...
    def results_of(self, step: str | Callable[..., Any]) -> Sequence[Any]:
        """Returns the results of a fan-out in the order of its items, with None for clones without a result."""
        found = self._find(step)
        if isinstance(found, FanResult):
            return found.result
        return [] if found.status == "skipped" else [found.result]

    def _find(self, step: str | Callable[..., Any]) -> StepResult:
        try:
            return self.steps[step]
        except KeyError:
            id = step if isinstance(step, str) else step_name(step)
            names = ", ".join(self.steps)
            raise NotFound(f"{self.saga!r} has no step {id!r}.", hint=f"it has {names}") from None

    @property
    def failed_steps(self) -> Sequence[str]:
        return [step.id for step in self._leaves() if step.status in ("failed", "timed_out")]

    @property
    def compensated_steps(self) -> Sequence[str]:
        """The compensated steps, in the order of their compensation."""
        undone = [step for step in self._leaves() if step.compensated]
        return [step.id for step in sorted(undone, key=lambda step: step._undo_seq())]

    def _leaves(self) -> Iterator[StepResult]:
        for step in self.steps.values():
            yield from step.clones if isinstance(step, FanResult) else (step,)

    def report(self) -> "SagaReport":
        """Returns a readable report: `print(result.report())`."""
        return SagaReport(self)

    def __repr__(self) -> str:
        return f"<SagaResult {self.saga} {self.execution_id} {self.status}>"


_STANDING: dict[ExecutionStatus, str] = {
    "running": "is running",
    "waiting_approval": "cannot go on without a person",
    "paused": "is paused",
    "succeeded": "succeeded",
    "failed": "failed",
    "canceled": "was canceled",
}


def _last_result(result: SagaResult[Any]) -> Any:
    """Returns the result of the step that was completed last, for definitions without an output template."""
    reading = result._reading
    last = last_completed(reading.state)
    if last is None:
        return None
    decode: Decode = reading.program.decode_result.get(last.node.id, plain)
    seqs = result_seqs(reading.state, last.path)
    results = [
        decode(result_of(reading.history[seq - 1].event)) if seq else None
        for seq in (seqs if isinstance(seqs, list) else [seqs])
    ]
    return results if isinstance(seqs, list) else results[0]


class SagaReport:
    """A readable result: `str()` for people, `to_dict()` for programs."""

    def __init__(self, result: SagaResult[Any]) -> None:
        self._result = result

    @property
    def failed_steps(self) -> Sequence[str]:
        return self._result.failed_steps

    @property
    def compensated_steps(self) -> Sequence[str]:
        return self._result.compensated_steps

    def to_dict(self) -> dict[str, Any]:
        result = self._result
        reading = result._reading
        ended = finished_at(reading.state, reading.history)
        return {
            "saga": result.saga,
            "execution_id": result.execution_id,
            "correlation_id": result.correlation_id,
            "status": result.status,
            "outcome": result.outcome,
            "started_at": rfc3339(reading.history[0].at),
            "completed_at": None if ended is None else rfc3339(ended),
            "error": result.error,
            "blocked": result.blocked,
            "steps": [step.to_dict() for step in result.steps.values()],
            "failed_steps": list(result.failed_steps),
            "compensated_steps": list(result.compensated_steps),
        }

    def __str__(self) -> str:
        result = self._result
        width = max((len(id) for id in result.steps), default=0)
        lines = [f"{result.saga} {result.execution_id}: {result.status}"]
        if not result.succeeded:
            lines.append(f"  {result._why_not()}")
        lines.extend(_line(step, width) for step in result.steps.values())
        return "\n".join(lines)


def _line(step: StepResult, width: int) -> str:
    parts = [f"  {step.id:<{width}}  {step.status}"]
    if step.attempts > max(1, len(step.clones)):
        parts.append(f"{step.attempts} attempts")
    if step.latency_ms is not None:
        parts.append(f"{step.latency_ms} ms")
    if step.clones:
        done = sum(clone.status == "succeeded" for clone in step.clones)
        parts.append(f"{done} of {len(step.clones)} clones")
    if step.error is not None:
        parts.append(f"{step.error_class}: {step.error}")
    if step.compensated:
        parts.append("compensated")
    if step.compensation_error is not None:
        parts.append(f"compensation failed: {step.compensation_error}")
    return ", ".join(parts)
