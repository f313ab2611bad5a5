"""What came of an execution: `SagaResult`, its steps, and the report. Values are decoded when they are asked for."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeAlias, TypeVar, overload

import msgspec
from msgspec import Raw

from .context import step_name
from .errors import ExecutionFailed, NotFound
from .kernel import events as e
from .kernel.address import clone_path, step_id
from .kernel.definition import plain_name
from .kernel.evolve import find_step, last_completed
from .kernel.plan import Node
from .kernel.state import (
    CLONE_SUCCEEDED,
    CLONE_UNDONE,
    ExecutionStatus,
    FanState,
    StepState,
    StepStatus,
)
from .runtime import Reading
from .view import (
    Blocked,
    ErrorDocument,
    blocked,
    clone_status,
    error_document,
    finished_at,
    labels_of,
    leaf_nodes,
    path_of,
    result_of,
    result_seqs,
    rfc3339,
    step_status,
    stored_output,
)

O_co = TypeVar("O_co", covariant=True)
R = TypeVar("R")

Decode: TypeAlias = Callable[[Raw | None], object]


class StepResult:
    """What came of one step, or of one clone of a fan-out."""

    __slots__ = ("_path", "_reading", "id", "status")

    def __init__(self, reading: Reading, id: str, path: str, status: StepStatus) -> None:
        self._reading = reading
        self._path = path
        self.id = id
        self.status = status

    @property
    def result(self) -> Any:
        """The step's result as the type that its handler is annotated with; None where there is none."""
        decode: Decode = self._reading.program.decode_result.get(step_id(self._path), _plain)
        entry = self._entry(self._done_seq())
        return decode(result_of(entry.event)) if entry is not None else None

    @property
    def error(self) -> str | None:
        failure = self._failure()
        return failure.summary if failure is not None else None

    @property
    def error_class(self) -> str | None:
        failure = self._failure()
        return failure.error_class if failure is not None else None

    @property
    def error_code(self) -> str | None:
        failure = self._failure()
        return failure.code if failure is not None else None

    @property
    def attempts(self) -> int:
        """How often it was tried, over all rounds and runs."""
        step = self._step()
        return step.number if step is not None else 0

    @property
    def latency_ms(self) -> int | None:
        """How long the attempt took that settled it."""
        entry = self._entry(self._done_seq()) or self._last_failure()
        if entry is None:
            return None
        started_at = getattr(entry.event, "started_at", 0)
        step = self._step()
        since = started_at or (step.opened_at if step is not None else 0)
        return entry.at - since if since else None

    @property
    def compensated(self) -> bool:
        step = self._step()
        return step is not None and step.undo == "done"

    @property
    def compensation_result(self) -> Any:
        decode: Decode = self._reading.program.decode_compensation.get(step_id(self._path), _plain)
        entry = self._entry(self._undo_seq())
        return decode(result_of(entry.event)) if entry is not None else None

    @property
    def compensation_error(self) -> str | None:
        step = self._step()
        if step is None or step.undo_failure is None or step.undo == "done":
            return None
        return step.undo_failure.summary

    @property
    def clones(self) -> Sequence["StepResult"]:
        """Of a fan-out: one per item, in the order of the items."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "step_id": self.id,
            "status": self.status,
            "attempts": self.attempts,
            "latency_ms": self.latency_ms,
            "error_class": self.error_class,
            "error": self.error,
            "result": self._told(self._done_seq()),
            "compensated": self.compensated,
            "compensation_result": self._told(self._undo_seq()),
            "compensation_error": self.compensation_error,
        }

    def _told(self, seq: int) -> Any:
        """A result as plain JSON, for those who do not know its type."""
        entry = self._entry(seq)
        return None if entry is None else _plain(result_of(entry.event))

    def __repr__(self) -> str:
        return f"<StepResult {self.id} {self.status}>"

    def _step(self) -> StepState | None:
        return find_step(self._reading.state, self._path)

    def _failure(self) -> e.Failure | None:
        step = self._step()
        return step.failure if step is not None else None

    def _done_seq(self) -> int:
        step = self._step()
        return step.done_seq if step is not None and step.status == "succeeded" else 0

    def _undo_seq(self) -> int:
        step = self._step()
        return step.undo_seq if step is not None else 0

    def _entry(self, seq: int) -> e.Entry | None:
        return self._reading.history[seq - 1] if seq else None

    def _last_failure(self) -> e.Entry | None:
        if self._failure() is None:
            return None
        ends = (e.AttemptFailed, e.AttemptTimedOut)
        path = self._path
        for entry in reversed(self._reading.history):
            event = entry.event
            if isinstance(event, ends) and event.path == path and event.phase == "forward":
                return entry
        return None


class _CloneResult(StepResult):
    """A clone that needs no object of its own any more: its fan-out keeps one byte and one number for it."""

    __slots__ = ("_fan", "_index")

    def __init__(self, reading: Reading, fan: FanState, index: int, label: str) -> None:
        path = clone_path(fan.path, index)
        super().__init__(reading, f"{step_id(fan.path)}#{label}", path, clone_status(reading.state, fan, index))
        self._fan = fan
        self._index = index

    @property
    def attempts(self) -> int:
        found = self._fan.numbers.get(self._index, 0) or super().attempts
        return found or int(self._fan.done_seq[self._index] > 0)

    @property
    def compensated(self) -> bool:
        return self._fan.marks[self._index] == CLONE_UNDONE or super().compensated

    def _done_seq(self) -> int:
        done = self._fan.marks[self._index] in (CLONE_SUCCEEDED, CLONE_UNDONE)
        return self._fan.done_seq[self._index] if done else super()._done_seq()

    def _undo_seq(self) -> int:
        found = super()._undo_seq()
        if found or self._fan.marks[self._index] != CLONE_UNDONE:
            return found
        for entry in reversed(self._reading.history):
            event = entry.event
            if isinstance(event, e.AttemptSucceeded) and event.phase == "compensate" and event.path == self._path:
                return entry.seq
        return 0


class _Clones(Sequence[StepResult]):
    def __init__(self, reading: Reading, fan: FanState) -> None:
        self._reading = reading
        self._fan = fan
        self.labels = labels_of(reading.history, reading.state, fan.path)

    def __len__(self) -> int:
        return self._fan.count

    @overload
    def __getitem__(self, index: int) -> StepResult: ...
    @overload
    def __getitem__(self, index: slice) -> list[StepResult]: ...
    def __getitem__(self, index: int | slice) -> StepResult | list[StepResult]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(index)
        label = self.labels[position] if position < len(self.labels) else str(position)
        return _CloneResult(self._reading, self._fan, position, label)


class _FanResult(StepResult):
    """A fan-out as a whole: its result is the list of its clones' results."""

    __slots__ = ("_fan",)

    def __init__(self, reading: Reading, id: str, fan: FanState) -> None:
        super().__init__(reading, id, fan.path, step_status(reading.state, fan))
        self._fan = fan

    @property
    def result(self) -> list[Any]:
        return [clone.result for clone in self.clones]

    @property
    def attempts(self) -> int:
        return sum(clone.attempts for clone in self.clones)

    @property
    def latency_ms(self) -> int | None:
        return max((ms for clone in self.clones if (ms := clone.latency_ms) is not None), default=None)

    @property
    def compensated(self) -> bool:
        clones = self.clones
        return any(clone.compensated for clone in clones) and not any(
            clone.status == "succeeded" and not clone.compensated for clone in clones
        )

    @property
    def compensation_result(self) -> list[Any]:
        return [clone.compensation_result for clone in self.clones]

    @property
    def compensation_error(self) -> str | None:
        return next((text for clone in self.clones if (text := clone.compensation_error) is not None), None)

    @property
    def clones(self) -> Sequence[StepResult]:
        return _Clones(self._reading, self._fan)

    def to_dict(self) -> dict[str, Any]:
        clones = [clone.to_dict() for clone in self.clones]
        results = {name: [clone[name] for clone in clones] for name in ("result", "compensation_result")}
        return {**super().to_dict(), **results}

    def _failure(self) -> e.Failure | None:
        return self._fan.failure


class Steps(Mapping[str, StepResult]):
    """The steps of an execution by id; one clone as `steps["notify#0"]`, or by its suffix."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._nodes: dict[str, Node] = {node.id: node for node in leaf_nodes(reading.state)}

    def __getitem__(self, step: "str | Callable[..., Any]") -> StepResult:
        id = step if isinstance(step, str) else step_name(step)
        name, _, clone = id.partition("#")
        node = self._nodes.get(name)
        if node is None:
            raise KeyError(id)
        found = self._result(node)
        if not clone:
            return found
        one = next((each for each in found.clones if each.id == id), None)
        if one is None and clone.isdecimal() and int(clone) < len(found.clones):
            one = found.clones[int(clone)]
        if one is None:
            raise KeyError(id)
        return one

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def _result(self, node: Node) -> StepResult:
        state = self._reading.state
        path = path_of(state, node)
        found = state.nodes.get(path) if path is not None else None
        if isinstance(found, FanState):
            return _FanResult(self._reading, node.id, found)
        return StepResult(self._reading, node.id, path or node.id, step_status(state, found))


class SagaResult(Generic[O_co]):
    """What came of an execution: when it was over, or when it could not go on without a person."""

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
        """Whether it is over. One that waits for a person has settled, and is not."""
        return self.status in ("succeeded", "failed", "canceled")

    @property
    def outcome(self) -> str:
        """Of a success: `partial` if something failed and was passed over, `skipped` if there was nothing to do."""
        return self._reading.state.outcome

    @property
    def error(self) -> ErrorDocument | None:
        """Why it failed: class, code, summary and step."""
        return error_document(self._reading.state.failure)

    @property
    def output(self) -> O_co:
        """The saga's output; `ExecutionFailed` if it has none, because it did not succeed."""
        self.raise_for_status()
        reading = self._reading
        program = reading.program
        if reading.state.plan.output is None:
            return _last_result(self)  # type: ignore[no-any-return]  # a definition without an output has no type for it
        return program.decode_output(stored_output(reading.state, reading.history))  # type: ignore[return-value]

    def raise_for_status(self) -> Self:
        """Itself, if it succeeded; otherwise `ExecutionFailed`, saying where and why."""
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
        """What came of each step, by its id."""
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
        """A step's result, decoded; None if it has none: it was skipped, or did not succeed."""
        return self._find(step).result

    @overload
    def results_of(self, step: Callable[..., Awaitable[R]]) -> Sequence[R | None]: ...
    @overload
    def results_of(self, step: Callable[..., R]) -> Sequence[R | None]: ...
    @overload
    def results_of(self, step: str) -> Sequence[Any]: ...
    def results_of(self, step: str | Callable[..., Any]) -> Sequence[Any]:
        """The results of a fan-out in the order of its items, None where a clone has none."""
        found = self._find(step)
        if isinstance(found, _FanResult):
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
        """What was undone, in the order in which it was."""
        undone = [step for step in self._leaves() if step.compensated]
        return [step.id for step in sorted(undone, key=lambda step: step._undo_seq())]

    def _leaves(self) -> Iterator[StepResult]:
        for step in self.steps.values():
            yield from step.clones if isinstance(step, _FanResult) else (step,)

    def report(self) -> "SagaReport":
        """The same for reading: `print(result.report())`."""
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
    """Of a definition that names no output: the result of the step that was completed last."""
    reading = result._reading
    last = last_completed(reading.state)
    if last is None:
        return None
    decode: Decode = reading.program.decode_result.get(last.node.id, _plain)
    seqs = result_seqs(reading.state, last.path)
    results = [
        decode(result_of(reading.history[seq - 1].event)) if seq else None
        for seq in (seqs if isinstance(seqs, list) else [seqs])
    ]
    return results if isinstance(seqs, list) else results[0]


def _plain(raw: Raw | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)


class SagaReport:
    """A result for reading: `str()` for people, `to_dict()` for programs."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a batch is. `waiting` are those that wait for a person; `total` is None until all have been started."""

    started: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    waiting: int = 0
    canceled: int = 0
    total: int | None = None
