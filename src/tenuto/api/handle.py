"""`Handle`: reads one execution and sends it commands."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, Literal, TypeVar

import msgspec

from tenuto.access.permission import Permission
from tenuto.authoring.context import step_name
from tenuto.authoring.markers import StepRef
from tenuto.errors import InvalidInput, NotFound, StepError
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref, lease_id, step_id
from tenuto.kernel.decide.open_reviews import not_waiting
from tenuto.kernel.decide.people import refused_signal
from tenuto.kernel.definition import CancelMode, ErrorClass, Step
from tenuto.kernel.events import NULL, Resolution
from tenuto.kernel.evolve import find_step, fold
from tenuto.kernel.state import Execution, Review
from tenuto.runtime.executor import Parked, answered, failed
from tenuto.values.codec import encode
from tenuto.values.durations import Duration, milliseconds, patience
from tenuto.values.names import check_name, check_one_of
from tenuto.values.redaction import summary
from tenuto.views import (
    AttemptRow,
    EventDocument,
    ExecutionDocument,
    Until,
    attempt_rows,
    execution_document,
    find_path,
)
from tenuto.views.graph import GraphDocument, graph_document
from tenuto.views.reading import Reading
from tenuto.views.results import SagaResult

from .context import EngineContext, check_again, check_reason, check_signal, refusal

O_co = TypeVar("O_co", covariant=True)

Answered = Literal["applied", "duplicate", "stale_attempt", "stale_lease", "terminal", "unknown"]


def _document(reading: Reading) -> ExecutionDocument:
    key = reading.idempotency_key
    return execution_document(reading.state, reading.history, reading.activity, idempotency_key=key)


def step_text(step: StepRef) -> str:
    return step if isinstance(step, str) else step_name(step)


class Handle(Generic[O_co]):
    """One execution, by its id. The first call checks that the execution exists.

    `created` is False if `start` found an execution that the same idempotency key had started before.
    """

    def __init__(
        self,
        context: EngineContext,
        id: str,
        *,
        created: bool = True,
        as_started: Callable[[], Awaitable[Reading]] | None = None,
    ) -> None:
        self._context = context
        self._as_started = as_started
        self.id = id
        self.created = created

    # Reading

    async def result(
        self,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109  (in the engine's time, which tests control)
        return_when: Until = "settled",
    ) -> SagaResult[O_co]:
        """Waits until the execution finishes or waits for a person. Raises `ResultTimeout` after `timeout`."""
        timeout_ms = None if timeout is None else patience(timeout)
        check_one_of(return_when, Until, "/return_when")
        context = self._context
        context.scope.require("executions:read")
        return SagaResult(await context.backend.executions.wait(context.scope.tenant, self.id, return_when, timeout_ms))

    async def output(self, *, timeout: Duration | None = None) -> O_co:  # noqa: ASYNC109  (as above)
        """Waits like `result` and returns the output. Raises `ExecutionFailed` if there is none."""
        return (await self.result(timeout=timeout)).output

    async def status(self) -> ExecutionDocument:
        """Returns the current state, and why it is blocked: the fields of `GET /v1/executions/{id}`."""
        self._context.scope.require("executions:read")
        return await self._context.backend.executions.document(self._context.scope.tenant, self.id)

    async def first_status(self) -> ExecutionDocument:
        """Returns the state as `start` recorded it if that is still in memory, or else the current state."""
        self._context.scope.require("executions:read")
        return await self.status() if self._as_started is None else _document(await self._as_started())

    async def history(self) -> list[AttemptRow]:
        """Returns all attempts so far."""
        self._context.scope.require("executions:read")
        reading = await self._context.read(self.id)
        return attempt_rows(reading.state, reading.history, reading.activity)

    async def graph(self, *, at: int | None = None) -> GraphDocument:
        """Returns the steps and scopes as a graph: what follows what, and how far each has come.

        `at` is the number of an event: the graph is then the one after that event.
        """
        self._context.scope.require("executions:read")
        reading = await self._context.read(self.id)
        if at is None or at == reading.length:
            return graph_document(reading.state, reading.history, reading.activity)
        if not 1 <= at <= reading.length:
            raise InvalidInput.at("/at", "out_of_range", f"must be the number of an event, from 1 to {reading.length}")
        history = list(reading.history[:at])
        return graph_document(fold(Execution(reading.program.plan), history), history)

    async def events(self, *, after: int = 0, every: Duration = "200ms") -> AsyncIterator[EventDocument]:
        """Yields events after number `after` as they are recorded, until the execution ends. Polls at `every`."""
        context = self._context
        context.scope.require("executions:read")
        async for event in context.backend.executions.follow(context.scope.tenant, self.id, after, milliseconds(every)):
            yield event

    # Commands

    async def pause(self, *, reason: str = "") -> None:
        """Pauses the execution. Running attempts finish and are recorded; no new ones start."""
        await self._command(f.Pause(at=self._context.now, actor=self._actor, reason=reason))

    async def resume(self) -> None:
        """Resumes a paused execution. Deadlines move by the length of the pause."""
        await self._command(f.Resume(at=self._context.now, actor=self._actor))

    async def cancel(self, mode: CancelMode | None = None, *, reason: str = "") -> None:
        """Cancels the execution. `drain` waits for running attempts, `terminate` does not, `compensate` rolls back.

        Default: the mode of the definition.
        """
        if mode is not None:
            check_one_of(mode, CancelMode, "/mode")
        await self._command(f.Cancel(at=self._context.now, actor=self._actor, mode=mode, reason=reason))

    async def retry(self, *, from_step: StepRef | None = None, again: bool = False, reason: str) -> None:
        """Starts the next run of a failed execution, from `from_step` if given.

        `again` repeats the completed effects from that step on, with new idempotency keys.
        """
        context = self._context
        context.scope.require("executions:write")
        check_reason(reason)
        if again:
            context.scope.require("effects:again")
        start = None if from_step is None else step_text(from_step)
        check_again(again=again, start=start)
        run = 0
        if context.scope.is_bounded or (start is not None and "#" in start):
            reading = await context.read_state(self.id)
            start = None if start is None else _known_clone(reading.state, start)
            await context.check_retry(reading, start, again=again, reason=reason)
            run = reading.state.run  # the run that was checked: a later one may have failed at another step
        fact = f.Retry(at=context.now, actor=self._actor, reason=reason, start=start, again=again, run=run)
        await self._command(fact)

    async def approve(self, step: StepRef, *, comment: str = "", data: object = None, actor: str | None = None) -> None:
        """Approves a step that waits for a person. `data` becomes the result of an approval step.

        `actor` is the person who decides, for the history and the audit log. A scoped engine knows it already, and a
        service takes it from the credential, so both refuse another one.
        """
        await self._decide(step, "approved", comment, data, actor)

    async def reject(self, step: StepRef, *, comment: str = "", data: object = None, actor: str | None = None) -> None:
        """Rejects a step that waits for a person. The step fails. `actor` is as in `approve`."""
        await self._decide(step, "rejected", comment, data, actor)

    async def signal(self, name: str, payload: object = None, *, id: str | None = None) -> None:
        """Sends a signal to a step that waits for it now or later. Signals with the same `id` count once."""
        context = self._context
        context.scope.require("executions:write")
        check_name(name, "name")
        check_name(id or None, "id")
        raw = encode(payload, where=f"signal {name!r}")
        reading = await context.read_state(self.id)
        check_signal(reading.program, name, raw)
        id = id or context.environment.new_id()
        fact = f.Signal(at=context.now, actor=self._actor, name=name, id=id, payload=raw)
        if (refused := refused_signal(reading.state, fact)) is not None:  # refuse before it takes space in a mailbox
            raise refusal(refused)
        await self._command(fact)

    async def acknowledge(self, step: StepRef, *, attempt: int, lease: str, workspace: str = "") -> Answered:
        """Records that an external worker accepted a callback step. Returns whether this was applied, or why not."""
        context = self._context
        context.scope.require("callbacks:write")
        ref = await self._ref(step, attempt, lease)
        fact = f.Acked(at=context.now, actor=self._actor, ref=ref, lease=lease, workspace=workspace)
        return _answered(await context.tell(self.id, fact))

    async def answer(
        self,
        step: StepRef,
        *,
        attempt: int,
        lease: str,
        result: object = None,
        error: str | StepError | None = None,
        error_class: ErrorClass = "RETRYABLE",
        error_code: str = "callback_failed",
        usage: int = 0,
        workspace: str = "",
    ) -> Answered:
        """Reports the result or error of a callback step. Returns whether this was applied, or why not."""
        check_one_of(error_class, ErrorClass, "/error_class")
        context = self._context
        context.scope.require("callbacks:write")
        ref = await self._ref(step, attempt, lease)
        found = find_step((await context.read_state(self.id)).state, ref.path)
        if error is None:
            spec = found.node.step if found is not None else Step(id="callback")
            outcome = answered(encode(result, where=f"result of step {step_text(step)!r}"), spec)
        else:
            outcome = _failure(error, error_class, error_code)
        outcome = msgspec.structs.replace(outcome, usage=usage)
        started_at = found.open.dispatched_at if found is not None and found.open is not None else 0
        fact = f.Reported(
            at=context.now,
            actor=self._actor,
            ref=ref,
            outcome=outcome,
            started_at=started_at,
            lease=lease,
            workspace=workspace,
        )
        return _answered(await context.tell(self.id, fact))

    def __repr__(self) -> str:
        return f"<Handle {self.id}>"

    @property
    def _actor(self) -> str | None:
        return self._context.scope.actor

    async def _command(self, fact: f.Fact, permission: Permission = "executions:write") -> None:
        self._context.scope.require(permission)
        await self._context.command(self.id, fact)

    async def _decide(
        self, step: StepRef, resolution: Resolution, comment: str, data: object, actor: str | None
    ) -> None:
        context = self._context.acting_as(actor)
        context.scope.require("approvals:write")
        reading = await context.read_state(self.id)
        result = NULL if data is None else encode(data, where="data")
        name = step_text(step)
        review = _review_of(reading.state, name)
        if review is None:
            raise refusal(not_waiting(reading.state, name, find_path(reading.state, name)))
        await context.decide(reading, review, resolution, comment, result)

    async def _ref(self, step: StepRef, attempt: int, lease: str) -> Ref:
        name = step_text(step)
        spelled = Ref(name, "forward", attempt)
        if lease == lease_id(self.id, spelled):  # the path of a clone, which another clone's label may equal
            return spelled
        state = (await self._context.read_state(self.id)).state
        path = _path_dispatched(state, name) or find_path(state, name)
        if path is None:
            raise NotFound(f"Execution {self.id} has no step {name!r}.")
        return Ref(path, "forward", attempt)


def _review_of(state: Execution, name: str) -> Review | None:
    """Returns the open review of a step. The name of a clone means only that clone."""
    paths = [] if "#" in name else [review.path for review in state.reviews.values() if _review_at(state, review.path)]
    path = next((path for path in paths if name in (path, step_id(path))), None) or find_path(state, name)
    return None if path is None else _review_at(state, path)


def _review_at(state: Execution, path: str) -> Review | None:
    """Returns the review that a step waits for. No step waits for dead letters and escalations."""
    step = find_step(state, path)
    return state.reviews.get(step.review) if step is not None and step.review is not None else None


def _known_clone(state: Execution, name: str) -> str:
    """Returns the path of a named clone. Other names are returned unchanged, for the kernel to check."""
    if "#" not in name:
        return name
    path = find_path(state, name)
    if path is None:
        raise NotFound(f"Execution {state.id} has no step {name!r}.", hint="see its history for the names of clones")
    return path


def _path_dispatched(state: Execution, name: str) -> str | None:
    if "#" in name:
        return None
    refs = [key for key in state.agenda if isinstance(key, Ref) and key.phase == "forward"]
    return next((ref.path for ref in refs if name in (ref.path, step_id(ref.path))), None)


def _failure(error: str | StepError, error_class: ErrorClass, code: str) -> f.Failed:
    if isinstance(error, str):
        return f.Failed(error_class=error_class, code=code, summary=summary(error))
    failure = failed(error, Step(id="callback"), {})
    assert not isinstance(failure, Parked)
    return failure


def _answered(answer: f.Answer) -> Answered:
    if isinstance(answer, f.Refused):
        raise refusal(answer)
    return answer.why if isinstance(answer, f.Ignored) else "applied"
