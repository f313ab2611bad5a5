"""`EngineContext`: the backend, clock and scope that handles and commands share, and the checks of their commands."""

from dataclasses import replace
from typing import NamedTuple

from msgspec import Raw

from tenuto.access.confirmation import confirm
from tenuto.access.scope import Scope
from tenuto.authoring.program import Program
from tenuto.errors import (
    AttemptsSpent,
    InsufficientCredits,
    InvalidInput,
    InvalidTransition,
    NotFound,
    NotPermitted,
    PayloadError,
    TenutoError,
)
from tenuto.kernel import facts as f
from tenuto.kernel.decide.authority import denied
from tenuto.kernel.decide.runs import refused_unless_failed, unsafe_again
from tenuto.kernel.definition import Step
from tenuto.kernel.events import NULL, Resolution
from tenuto.kernel.evolve import find_step
from tenuto.kernel.state import Review
from tenuto.runtime.clock import Environment
from tenuto.runtime.executor import answered
from tenuto.settings import FourEyes
from tenuto.values.codec import encode
from tenuto.values.names import MAX_ACTOR, check_name, check_text
from tenuto.views.reading import Reading

from .backend import Backend


class EngineContext(NamedTuple):
    """What handles, lists and bulk commands need of their engine."""

    backend: Backend
    environment: Environment
    scope: Scope

    @property
    def now(self) -> int:
        return self.environment.now_ms()

    def acting_as(self, actor: str | None) -> "EngineContext":
        """Returns this context in the name of `actor`. A scoped engine already acts for one."""
        if actor is None or actor == self.scope.actor:
            return self
        check_name(actor, "actor", MAX_ACTOR)
        if self.scope.actor is not None:
            text = f"this engine acts for {self.scope.actor!r}: leave `actor` out, or use an engine that is not scoped"
            raise InvalidInput.at("/actor", "other_actor", text)
        return self._replace(scope=replace(self.scope, actor=actor))

    async def tell(self, execution_id: str, fact: f.Fact) -> f.Answer:
        for field in fact.__struct_fields__:
            if isinstance(text := getattr(fact, field), str):
                check_text(text, field)
        return await self.backend.commands.tell(self.scope.tenant, execution_id, fact)

    async def command(self, execution_id: str, fact: f.Fact) -> None:
        """Sends a command to an execution, and raises if it is refused."""
        answer = await self.tell(execution_id, fact)
        if isinstance(answer, f.Refused):
            raise refusal(answer)

    async def read(self, execution_id: str) -> Reading:
        return await self.backend.executions.read(self.scope.tenant, execution_id)

    async def read_state(self, execution_id: str) -> Reading:
        """Reads the current state without the whole history, which commands do not need."""
        return await self.backend.executions.read_state(self.scope.tenant, execution_id)

    async def check_retry(self, reading: Reading, start: str | None, *, again: bool, reason: str) -> None:
        """Checks a new run, which retries every step that is not completed, wherever it starts."""
        if not self.scope.is_bounded:  # an unbounded scope belongs to the embedding program, which does its own checks
            return
        if (refused := refused_unless_failed(reading.state)) is not None:  # nothing to check yet
            raise refusal(refused)
        unsafe = again or bool(unsafe_again(reading.state, start))
        if again or unsafe:
            why = reason if start is None else f"from {start!r}: {reason}"  # shown to the second person
            dead_letter = next((each for each in reading.state.reviews.values() if each.kind == "dead_letter"), None)
            about = ("execution", reading.state.id) if dead_letter is None else ("review", dead_letter.id)
            await self._check_repetition(about, why, start or "", str(reading.state.run), again=again)

    async def decide(
        self, reading: Reading, review: Review, resolution: Resolution, reason: str, result: Raw, *, again: bool = False
    ) -> None:
        """Resolves a review that is open in `reading`. A review opened later is not affected."""
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
        check_resolution(reading, review, resolution, result)
        if again or resolution == "retry":
            await self._check_step_retry(reading, review, again=again, reason=reason)
        await self.command(reading.state.id, fact)

    async def _check_step_retry(self, reading: Reading, review: Review, *, again: bool, reason: str) -> None:
        step = find_step(reading.state, review.path)
        if again or (step is not None and step.node.step.safety == "NOT_SAFE_TO_RETRY"):
            await self._check_repetition(("review", review.id), reason, again=again)

    async def _check_repetition(self, about: tuple[str, str], reason: str, *what: str, again: bool) -> None:
        """Repeating an effect, or retrying an unsafe step, needs a permission and may need a second person."""
        self.scope.require("effects:again")
        kind: FourEyes = "again" if again else "unsafe_retry"
        if kind in self.scope.four_eyes:
            await confirm(self.backend.operations.registry, self.scope, self.now, kind, about, reason, *what)


def refusal(answer: f.Refused) -> TenutoError:
    message = f"{answer.message[:1].upper()}{answer.message[1:]}."
    hint = answer.hint or None
    if answer.code == "not_found":
        return NotFound(message, hint=hint)
    if answer.code in ("forbidden", "four_eyes"):
        return NotPermitted(message, code=answer.code, hint=hint)
    if answer.code == "attempts_spent":
        return AttemptsSpent(message, hint=hint)
    if answer.code == "insufficient_credits":
        return InsufficientCredits(message, hint=hint)
    return InvalidTransition(message, code=answer.code, hint=hint)


def check_again(*, again: bool, start: str | None) -> None:
    """`again` repeats completed effects from a step on, so it needs that step."""
    if again and start is None:
        text = "`again` repeats effects from a step on: name that step with `from`"
        raise InvalidInput.at("/again", "without_step", text)


def check_reason(reason: str) -> None:
    """Commands that cannot be undone need a reason, which the audit log records."""
    if not reason.strip():
        raise InvalidInput.at("/reason", "no_reason", "this command cannot be undone: give a reason")


# Payloads of signals and reviews become step results, so they are decoded as that before they are accepted.


def check_signal(program: Program, name: str, payload: Raw) -> None:
    for node in program.plan.root.walk():
        if not node.is_scope and isinstance(node.step.with_, dict) and node.step.with_.get("signal") == name:
            _check_result(program, node.step, payload, "/payload")


def check_resolution(reading: Reading, review: Review, resolution: Resolution, result: Raw) -> None:
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
