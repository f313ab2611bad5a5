"""Rows derived from a history, for external tools: runs, steps, attempts, timers, status changes."""

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref, fan_of, idempotency_key, lease_id, parent_of, step_id
from tenuto.storage.shared.records import ExecutionRecord

from .history import Follower
from .model import Model, refs_of
from .order import layers_in


class RunRow(Struct, frozen=True, kw_only=True):
    execution: str
    run: int
    status: str
    started_at: int
    ended_at: int | None


class TransitionRow(Struct, frozen=True, kw_only=True):
    """A status change of the execution, with the entry that caused it. Before its start there is no status."""

    execution: str
    run: int
    seq: int
    at: int
    event: str
    before: str
    after: str
    cause: str | None
    actor: str | None


class StepRow(Struct, frozen=True, kw_only=True):
    """A step at the end of its run, or its current state in the last run.

    `policy` is the compensation policy of its execution; `layer` is None if steps have no layers.
    """

    execution: str
    run: int
    path: str
    safety: str
    compensable: bool
    policy: str
    layer: int | None
    generation: int
    status: str
    done_seq: int
    undo: str


class AttemptRow(Struct, frozen=True, kw_only=True):
    """One attempt in any phase: forward, compensate, guard, reconcile or plan. `epoch` fences off older owners.

    `until` is when the lease of an open attempt expires. The lease belongs to the process, so only the current one is
    known.
    """

    execution: str
    run: int
    path: str
    phase: str
    number: int
    lease: str
    epoch: int
    key: str
    worker: str
    state: str
    error_class: str
    granted_seq: int
    granted_at: int
    until: int | None
    ended_seq: int | None
    ended_at: int | None
    cause: str | None


class TimerRow(Struct, frozen=True, kw_only=True):
    """A timer that is set, or due and not handled yet. Timers that fired are in the history."""

    execution: str
    id: str
    kind: str
    path: str
    due_at: int
    state: Literal["set", "due"]


class _Granted(Struct):
    run: int
    epoch: int
    key: str
    seq: int
    at: int


class Deriver:
    """Derives rows from one history. Attempts are reported when they end, open ones at the end of the history."""

    def __init__(self, follower: Follower, row: ExecutionRecord, now: int) -> None:
        self._follower = follower
        self._now = now
        self._owned_until = row.owner_expires_at
        self._taken_until: dict[tuple[str, str, int], int | None] = {}
        self._open: dict[Ref, _Granted] = {}
        self._run_began = 0
        self._status = ""

    def entry(self, entry: e.Entry) -> Iterator[Struct]:
        """Applies an entry and yields the rows derived from it."""
        event = entry.event
        if isinstance(event, e.RunOpened):
            yield from self._steps()
        self._follower.follow(entry)
        if self._follower.state.status != self._status:
            yield self._transition(entry)
        if isinstance(event, e.ExecutionStarted | e.RunOpened):
            self._run_began = entry.at
        elif isinstance(event, e.ExecutionFinished):
            yield self._run(event.status, entry.at)
        for ref in [ref for ref in self._open if ref not in self._follower.model.open_refs]:
            yield self._attempt(ref, self._open.pop(ref), entry)
        for ref in (ref for grant in entry.grants for ref in refs_of(grant)):
            self._grant(ref, entry)

    def taken(self, path: str, phase: str, number: int, until: int | None) -> None:
        """Records until when the lease of a queue's task is valid."""
        self._taken_until[path, phase, number] = until

    def end(self) -> Iterator[Struct]:
        state = self._follower.state
        for ref, granted in self._open.items():
            yield self._attempt(ref, granted, None)
        if state.finished is None and state.seq:
            yield self._run(state.status, None)
        yield from self._steps()
        for (kind, path), due in sorted(state.timers.items()):
            at: Literal["set", "due"] = "due" if due <= self._now else "set"
            yield TimerRow(execution=state.id, id=f"{kind}:{path}", kind=kind, path=path, due_at=due, state=at)

    def _transition(self, entry: e.Entry) -> TransitionRow:
        state = self._follower.state
        before, self._status = self._status, state.status
        return TransitionRow(
            execution=state.id,
            run=state.run,
            seq=entry.seq,
            at=entry.at,
            event=str(entry.event.__struct_config__.tag),
            before=before,
            after=self._status,
            cause=entry.cause,
            actor=entry.actor,
        )

    def _run(self, status: str, ended_at: int | None) -> RunRow:
        state = self._follower.state
        return RunRow(execution=state.id, run=state.run, status=status, started_at=self._run_began, ended_at=ended_at)

    def _grant(self, ref: Ref, entry: e.Entry) -> None:
        state, model = self._follower.state, self._follower.model
        generation = 1 if ref.phase == "plan" else model.step(ref.path).generation
        key = idempotency_key(state.tenant, state.id, ref.path, ref.phase, generation)
        self._open[ref] = _Granted(state.run, entry.epoch, key, entry.seq, entry.at)

    def _attempt(self, ref: Ref, granted: _Granted, entry: e.Entry | None) -> AttemptRow:
        state, error_class, worker = ("open", "", "") if entry is None else _how_it_ended(ref, entry.event)
        id = self._follower.state.id
        return AttemptRow(
            execution=id,
            run=granted.run,
            path=ref.path,
            phase=ref.phase,
            number=ref.number,
            lease=lease_id(id, ref),
            epoch=granted.epoch,
            key=granted.key,
            worker=worker,
            state=state,
            error_class=error_class,
            granted_seq=granted.seq,
            granted_at=granted.at,
            until=None if entry is not None else self._taken_until.get(ref.parts, self._owned_until),
            ended_seq=None if entry is None else entry.seq,
            ended_at=None if entry is None else entry.at,
            cause=None if entry is None else entry.cause,
        )

    def _steps(self) -> Iterator[StepRow]:
        model, execution = self._follower.model, self._follower.state.id
        policy = model.plan.definition.policies.compensation
        for path, step in model.steps.items():
            yield StepRow(
                execution=execution,
                run=model.run,
                path=path,
                safety=step.node.step.safety,
                compensable=step.node.compensable,
                policy=policy,
                layer=_layer(model, path),
                generation=step.generation,
                status=model.status_of(path),
                done_seq=step.made_seq,
                undo=step.undo,
            )


def _layer(model: Model, path: str) -> int | None:
    clone = fan_of(path)
    at = clone[0] if clone is not None else path
    scope, id = parent_of(at), step_id(at)
    spec = model.scopes[scope].node.scope
    layered = spec.mode == "dag" and spec.scheduling == "layered" and (scope, id) not in model.batches
    return layers_in(model, scope)[id] if layered else None


def _how_it_ended(ref: Ref, event: e.Event) -> tuple[str, str, str]:
    """Returns the outcome, the error class and the worker."""
    match event:
        case e.AttemptSucceeded(worker=worker):
            return "succeeded", "", worker
        case e.ChildrenAdded(worker=worker):
            return "succeeded", "", worker
        case e.AttemptFailed(worker=worker, failure=failure):
            return "failed", failure.error_class, worker
        case e.AttemptTimedOut(worker=worker, failure=failure):
            return "timed_out", failure.error_class, worker
        case e.ProbeAnswered(worker=worker, answer=answer):
            return answer, "", worker
        case e.AttemptLost():
            return "lost", "", ""
        case e.DispatchFailed(failure=failure):
            return "undispatched", failure.error_class, ""
        case _:
            return "abandoned", "", ""
