"""A hold on one execution: `Handle`."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from tenuto.access.confirmation import confirm
from tenuto.access.permission import Permission
from tenuto.access.scope import Scope
from tenuto.authoring.context import step_name
from tenuto.authoring.markers import StepRef
from tenuto.authoring.program import Program
from tenuto.errors import InvalidInput, InvalidTransition, NotFound, NotPermitted, PayloadError, StepError
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref, lease_id, step_id
from tenuto.kernel.decide.authority import denied
from tenuto.kernel.decide.people import NOT_WAITING, refused_signal
from tenuto.kernel.decide.runs import refused_unless_failed
from tenuto.kernel.decide.unsafe import unsafe_again
from tenuto.kernel.definition import CancelMode, ErrorClass, Step
from tenuto.kernel.events import NULL, Resolution
from tenuto.kernel.evolve import find_step
from tenuto.kernel.state import Execution, Review
from tenuto.runtime.clock import Environment
from tenuto.runtime.executor import Parked, answered, failed
from tenuto.runtime.port import Runtime, Until
from tenuto.settings import FourEyes
from tenuto.values import encode
from tenuto.values.durations import Duration, milliseconds, patience
from tenuto.values.names import check_name, check_one_of, check_text
from tenuto.values.redaction import summary
from tenuto.views import AttemptRow, EventDocument, ExecutionDocument, attempt_rows, execution_document, find_path
from tenuto.views.reading import Reading
from tenuto.views.results import SagaResult

O_co = TypeVar("O_co", covariant=True)

Answered = Literal["applied", "duplicate", "stale_attempt", "stale_lease", "terminal", "unknown"]


class Link(NamedTuple):
    """What a handle needs of its engine."""

    runtime: Runtime
    environment: Environment
    scope: Scope

    @property
    def now(self) -> int:
        return self.environment.now_ms()

    async def tell(self, execution_id: str, fact: f.Fact) -> f.Answer:
        for field in fact.__struct_fields__:
            if isinstance(text := getattr(fact, field), str):
                check_text(text, field)
        return await self.runtime.tell(self.scope.tenant, execution_id, fact)

    async def command(self, execution_id: str, fact: f.Fact) -> None:
        """Brings a command, and raises if it is refused."""
        answer = await self.tell(execution_id, fact)
        if isinstance(answer, f.Refused):
            raise refusal(answer)

    async def read(self, execution_id: str) -> Reading:
        return await self.runtime.read(self.scope.tenant, execution_id)

    async def look(self, execution_id: str) -> Reading:
        """For commands: a long history is not read for each of them."""
        return await self.runtime.look(self.scope.tenant, execution_id)

    async def check_retry(self, reading: Reading, start: str | None, *, again: bool, reason: str) -> None:
        """Of a new run, which tries everything again that is not done, wherever it begins."""
        if not self.scope.is_bounded:  # the program that embeds the engine answers for it
            return
        if (refused := refused_unless_failed(reading.state)) is not None:  # what it will try again is not known yet
            raise refusal(refused)
        unsafe = again or bool(unsafe_again(reading.state, start))
        if again or unsafe:
            why = reason if start is None else f"from {start!r}: {reason}"  # whoever asks for the same needs to know
            letter = next((each for each in reading.state.reviews.values() if each.kind == "dead_letter"), None)
            about = ("execution", reading.state.id) if letter is None else ("review", letter.id)
            await self._check_repetition(about, why, start or "", str(reading.state.run), again=again)

    async def decide(
        self, reading: Reading, review: Review, resolution: Resolution, reason: str, result: Raw, *, again: bool = False
    ) -> None:
        """Decides a review that is open in `reading`, and no other one that may be open by the time it arrives."""
        fact = f.Decide(
            at=self.now,
            actor=self.scope.actor,
            resolution=resolution,
            review=review.id,
            reason=reason,
            result=result,
            again=again,
            authority=self.scope.authority(),
        )
        if (refused := denied(reading.state, review, fact)) is not None:
            raise refusal(refused)
        check_word(reading, review, resolution, result)
        if again or resolution == "retry":
            await self._check_step_retry(reading, review, again=again, reason=reason)
        await self.command(reading.state.id, fact)

    async def _check_step_retry(self, reading: Reading, review: Review, *, again: bool, reason: str) -> None:
        step = find_step(reading.state, review.path)
        if again or (step is not None and step.node.step.safety == "NOT_SAFE_TO_RETRY"):
            await self._check_repetition(("review", review.id), reason, again=again)

    async def _check_repetition(self, about: tuple[str, str], reason: str, *what: str, again: bool) -> None:
        """Making an effect anew, and trying again what is not safe to try again, are for few, and for two of them."""
        self.scope.require("effects:again")
        kind: FourEyes = "again" if again else "unsafe_retry"
        if kind in self.scope.four_eyes:
            await confirm(self.runtime.registry, self.scope, self.now, kind, about, reason, *what)


def refusal(answer: f.Refused) -> InvalidTransition | NotFound | NotPermitted:
    message = f"{answer.message[:1].upper()}{answer.message[1:]}."
    hint = answer.hint or None
    if answer.code == "not_found":
        return NotFound(message, hint=hint)
    if answer.code in ("forbidden", "four_eyes"):
        return NotPermitted(message, code=answer.code, hint=hint)
    return InvalidTransition(message, code=answer.code, hint=hint)


def check_again(*, again: bool, start: str | None) -> None:
    """What is completed is made once more from a step on: without one, `again` would say much and do nothing."""
    if again and start is None:
        text = "which effects to make once more is said by the step to begin with (`from`)"
        raise InvalidInput.at("/again", "without_step", text)


def check_reason(reason: str) -> None:
    """Of what cannot be taken back: whoever reads the audit later is told why."""
    if not reason.strip():
        raise InvalidInput.at("/reason", "no_reason", "it cannot be taken back, so it takes a reason")


def _document(reading: Reading) -> ExecutionDocument:
    key = reading.idempotency_key
    return execution_document(reading.state, reading.history, reading.activity, idempotency_key=key)


def step_text(step: StepRef) -> str:
    return step if isinstance(step, str) else step_name(step)


class Handle(Generic[O_co]):
    """One execution, by its id. Making one asks nobody: what is not there is found out by the first question.

    `created` is False where `start` found that its key had started the execution before.
    """

    def __init__(
        self, link: Link, id: str, *, created: bool = True, as_started: Callable[[], Awaitable[Reading]] | None = None
    ) -> None:
        self._link = link
        self._as_started = as_started
        self.id = id
        self.created = created

    # Asking

    async def result(
        self,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109  (in the engine's own time, which tests bend)
        return_when: Until = "settled",
    ) -> SagaResult[O_co]:
        """Waits until it has settled: it is over, or waits for a person. `ResultTimeout` after `timeout`."""
        timeout_ms = None if timeout is None else patience(timeout)
        check_one_of(return_when, Until, "/return_when")
        link = self._link
        link.scope.require("executions:read")
        return SagaResult(await link.runtime.wait(link.scope.tenant, self.id, return_when, timeout_ms))

    async def output(self, *, timeout: Duration | None = None) -> O_co:  # noqa: ASYNC109  (as above)
        """Waits until it has settled, and gives its output; `ExecutionFailed` if it has none, or waits for a person."""
        return (await self.result(timeout=timeout)).output

    async def status(self) -> ExecutionDocument:
        """Where it stands, and why it is blocked if it is: the fields of `GET /v1/executions/{id}`."""
        self._link.scope.require("executions:read")
        return await self._link.runtime.document(self._link.scope.tenant, self.id)

    async def first_status(self) -> ExecutionDocument:
        """As it stood when `start` had recorded it, if that is known without asking; else as it stands."""
        self._link.scope.require("executions:read")
        return await self.status() if self._as_started is None else _document(await self._as_started())

    async def history(self) -> list[AttemptRow]:
        """All attempts so far."""
        self._link.scope.require("executions:read")
        reading = await self._link.read(self.id)
        return attempt_rows(reading.state, reading.history, reading.activity)

    async def events(self, *, after: int = 0, every: Duration = "200ms") -> AsyncIterator[EventDocument]:
        """What is recorded, as it happens, from that number on; ends with the execution. Looks every so often."""
        link = self._link
        link.scope.require("executions:read")
        async for event in link.runtime.follow(link.scope.tenant, self.id, after, milliseconds(every)):
            yield event

    # Telling

    async def pause(self, *, reason: str = "") -> None:
        """Starts nothing more; what runs finishes and is recorded."""
        await self._command(f.Pause(at=self._link.now, actor=self._actor, reason=reason))

    async def resume(self) -> None:
        """Goes on with what was paused. Deadlines are later by as long as the pause was."""
        await self._command(f.Resume(at=self._link.now, actor=self._actor))

    async def cancel(self, mode: CancelMode | None = None, *, reason: str = "") -> None:
        """`drain` awaits what runs, `terminate` awaits nothing, `compensate` undoes what was done. None: as defined."""
        if mode is not None:
            check_one_of(mode, CancelMode, "/mode")
        await self._command(f.Cancel(at=self._link.now, actor=self._actor, mode=mode, reason=reason))

    async def retry(self, *, from_step: StepRef | None = None, again: bool = False, reason: str) -> None:
        """Opens the next run of a failed execution, from a step on if one is named.

        `again` makes the completed effects from that step on once more, under new keys.
        """
        link = self._link
        link.scope.require("executions:write")
        check_reason(reason)
        if again:
            link.scope.require("effects:again")
        start = None if from_step is None else step_text(from_step)
        check_again(again=again, start=start)
        run = 0
        if link.scope.is_bounded or (start is not None and "#" in start):
            reading = await link.look(self.id)
            start = None if start is None else _known_clone(reading.state, start)
            await link.check_retry(reading, start, again=again, reason=reason)
            run = reading.state.run  # what was checked: another run may have failed since, at another step
        fact = f.Retry(at=link.now, actor=self._actor, reason=reason, start=start, again=again, run=run)
        await self._command(fact)

    async def approve(self, step: StepRef, *, comment: str = "", data: object = None) -> None:
        """Says yes where the step waits for a person. `data` becomes the result of an approval."""
        await self._decide(step, "approved", comment, data)

    async def reject(self, step: StepRef, *, comment: str = "", data: object = None) -> None:
        """Says no where the step waits for a person: it fails."""
        await self._decide(step, "rejected", comment, data)

    async def signal(self, name: str, payload: object = None, *, id: str | None = None) -> None:
        """A message for a step that waits for it, now or later. The same `id` twice is one message."""
        link = self._link
        link.scope.require("executions:write")
        check_name(name, "name")
        check_name(id or None, "id")
        raw = encode(payload, where=f"signal {name!r}")
        reading = await link.look(self.id)
        check_signal(reading.program, name, raw)
        id = id or link.environment.new_id()
        fact = f.Signal(at=link.now, actor=self._actor, name=name, id=id, payload=raw)
        if (refused := refused_signal(reading.state, fact)) is not None:  # before a mailbox has to store it
            raise refusal(refused)
        await self._command(fact)

    async def acknowledge(self, step: StepRef, *, attempt: int, lease: str, workspace: str = "") -> Answered:
        """Whoever works on a callback step has taken it up. Says whether that changed anything, and if not why."""
        link = self._link
        link.scope.require("callbacks:write")
        ref = await self._ref(step, attempt, lease)
        fact = f.Acked(at=link.now, actor=self._actor, ref=ref, lease=lease, workspace=workspace)
        return _answered(await link.tell(self.id, fact))

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
    ) -> Answered:
        """What came of a callback step. Says whether that changed anything, and if not why."""
        check_one_of(error_class, ErrorClass, "/error_class")
        link = self._link
        link.scope.require("callbacks:write")
        ref = await self._ref(step, attempt, lease)
        found = find_step((await link.look(self.id)).state, ref.path)
        if error is None:
            spec = found.node.step if found is not None else Step(id="callback")
            outcome = answered(encode(result, where=f"result of step {step_text(step)!r}"), spec)
        else:
            outcome = _failure(error, error_class, error_code)
        outcome = msgspec.structs.replace(outcome, usage=usage)
        started_at = found.open.dispatched_at if found is not None and found.open is not None else 0
        fact = f.Reported(at=link.now, actor=self._actor, ref=ref, outcome=outcome, started_at=started_at, lease=lease)
        return _answered(await link.tell(self.id, fact))

    def __repr__(self) -> str:
        return f"<Handle {self.id}>"

    @property
    def _actor(self) -> str | None:
        return self._link.scope.actor

    async def _command(self, fact: f.Fact, permission: Permission = "executions:write") -> None:
        self._link.scope.require(permission)
        await self._link.command(self.id, fact)

    async def _decide(self, step: StepRef, resolution: Resolution, comment: str, data: object) -> None:
        link = self._link
        link.scope.require("approvals:write")
        reading = await link.look(self.id)
        result = NULL if data is None else encode(data, where="data")
        review = _review_of(reading.state, step_text(step))
        if review is None:
            raise refusal(NOT_WAITING)
        await link.decide(reading, review, resolution, comment, result)

    async def _ref(self, step: StepRef, attempt: int, lease: str) -> Ref:
        name = step_text(step)
        spelled = Ref(name, "forward", attempt)
        if lease == lease_id(self.id, spelled):  # a clone's path, which its label may hide, also when it is closed
            return spelled
        state = (await self._link.look(self.id)).state
        path = _path_dispatched(state, name) or find_path(state, name)
        if path is None:
            raise NotFound(f"Execution {self.id} has no step {name!r}.")
        return Ref(path, "forward", attempt)


# What people and strangers bring becomes a step's result: it is read as that before it is taken.


def check_signal(program: Program, name: str, payload: Raw) -> None:
    for node in program.plan.root.walk():
        if not node.is_scope and isinstance(node.step.with_, dict) and node.step.with_.get("signal") == name:
            _check_result(program, node.step, payload, "/payload")


def check_word(reading: Reading, review: Review, resolution: Resolution, result: Raw) -> None:
    step = find_step(reading.state, review.path)
    if step is None or step.undo in ("awaiting_approval", "failed"):
        return
    spec = step.node.step
    if review.kind == "approval" and resolution in ("approved", "completed"):
        given = _JUST_APPROVED if result == NULL else result
        _check_result(reading.program, spec, given, "/data")
    elif resolution == "completed" and review.kind in ("compensation", "indeterminate"):
        _check_result(reading.program, spec, result, "/result")


_JUST_APPROVED = encode({"approved": True, "by": None, "comment": ""})


def _check_result(program: Program, step: Step, value: Raw, where: str) -> None:
    if isinstance(invalid := answered(value, step), f.Failed):
        raise InvalidInput.at(where, invalid.code, invalid.summary)
    decode = program.decode_result.get(step.id)
    try:
        if decode is not None:
            decode(value)
    except PayloadError as error:
        raise InvalidInput.at(where, "type", error.message) from None


def _review_of(state: Execution, name: str) -> Review | None:
    """The open review of the step with that name. The name of a clone means that clone, and no other of its step."""
    paths = [] if "#" in name else [review.path for review in state.reviews.values() if _review_at(state, review.path)]
    path = next((path for path in paths if name in (path, step_id(path))), None) or find_path(state, name)
    return None if path is None else _review_at(state, path)


def _review_at(state: Execution, path: str) -> Review | None:
    """What a step waits for. Dead letters and escalations are about a step, and no step waits for them."""
    step = find_step(state, path)
    return state.reviews.get(step.review) if step is not None and step.review is not None else None


def _known_clone(state: Execution, name: str) -> str:
    """Of a step that is named with one of its clones, where that is; any other as it is, for the kernel to judge."""
    if "#" not in name:
        return name
    path = find_path(state, name)
    if path is None:
        raise NotFound(f"Execution {state.id} has no step {name!r}.", hint="its history names the clones of a step")
    return path


def _path_dispatched(state: Execution, name: str) -> str | None:
    if "#" in name:
        return None
    refs = [key for key in state.agenda if isinstance(key, Ref) and key.phase == "forward"]
    return next((ref.path for ref in refs if name in (ref.path, step_id(ref.path))), None)


def _failure(error: str | StepError, error_class: ErrorClass, code: str) -> f.Failed:
    if isinstance(error, str):
        return f.Failed(error_class=error_class, code=code, summary=summary(error))
    told = failed(error, Step(id="callback"), {})
    assert not isinstance(told, Parked)
    return told


def _answered(answer: f.Answer) -> Answered:
    if isinstance(answer, f.Refused):
        raise refusal(answer)
    return answer.why if isinstance(answer, f.Ignored) else "applied"
