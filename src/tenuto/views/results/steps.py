"""Results of steps and of the clones of a fan-out. Values are decoded on access."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, overload

import msgspec
from msgspec import Raw

from tenuto.authoring.context import step_name
from tenuto.kernel import events as e
from tenuto.kernel.address import clone_path, step_id
from tenuto.kernel.evolve import find_step
from tenuto.kernel.naming import clone_name, labels_of
from tenuto.kernel.plan import Node
from tenuto.kernel.state import CLONE_SUCCEEDED, CLONE_UNDONE, FanState, StepState, StepStatus
from tenuto.views import clone_status, leaf_nodes, path_of, result_of, step_status
from tenuto.views.reading import Reading

Decode: TypeAlias = Callable[[Raw | None], object]


class StepResult:
    """The result of one step, or of one clone of a fan-out."""

    __slots__ = ("_path", "_reading", "id", "status")

    def __init__(self, reading: Reading, id: str, path: str, status: StepStatus) -> None:
        self._reading = reading
        self._path = path
        self.id = id
        self.status = status

    @property
    def result(self) -> Any:
        """The step's result, decoded as the return type of its handler; None if there is none."""
        decode: Decode = self._reading.program.decode_result.get(step_id(self._path), plain)
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
        """The number of attempts, over all rounds and runs."""
        step = self._step()
        return step.number if step is not None else 0

    @property
    def latency_ms(self) -> int | None:
        """The duration of the attempt that settled the step."""
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
        decode: Decode = self._reading.program.decode_compensation.get(step_id(self._path), plain)
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
        """The clones of a fan-out, in the order of the items."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "step_id": self.id,
            "status": self.status,
            "attempts": self.attempts,
            "latency_ms": self.latency_ms,
            "error_class": self.error_class,
            "error": self.error,
            "result": self._plain(self._done_seq()),
            "compensated": self.compensated,
            "compensation_result": self._plain(self._undo_seq()),
            "compensation_error": self.compensation_error,
        }

    def _plain(self, seq: int) -> Any:
        """Returns a result as plain JSON, because its type may be unknown here."""
        entry = self._entry(seq)
        return None if entry is None else plain(result_of(entry.event))

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
    """A finished clone. Its fan-out keeps only one byte and one number for it."""

    __slots__ = ("_fan", "_index")

    def __init__(self, reading: Reading, fan: FanState, index: int, name: str) -> None:
        path = clone_path(fan.path, index)
        super().__init__(reading, name, path, clone_status(reading.state, fan, index))
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
        self.labels = labels_of(reading.state, fan.path)

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
        name = clone_name(self._fan.path, position, self.labels)
        return _CloneResult(self._reading, self._fan, position, name)


class FanResult(StepResult):
    """A fan-out. Its result is the list of its clones' results."""

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
    """The steps of an execution by id. `steps["notify#0"]` is one clone; its label works, too."""

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
            return FanResult(self._reading, node.id, found)
        return StepResult(self._reading, node.id, path or node.id, step_status(state, found))


def plain(raw: Raw | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)
