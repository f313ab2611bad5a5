"""The functions of a step: handler, guard, reconcile and compensation, and whether their types fit the step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from .annotations import accepts_none, describe, fits, is_unknown, members, same
from .markers import Input, Result, StepRef
from .outcome import Done, NotDone, Pending, Unknown
from .problems import Problems
from .saga_source import SagaSource, StepSource
from .settings import StepSettings
from .signature import (
    EMPTY,
    Function,
    Nothing,
    Parameter,
    Signature,
    Source,
    check_result,
    read_signature,
    settle,
    settle_compensation,
)


@dataclass(frozen=True, slots=True)
class StepFunctions:
    """The signatures of a step's functions. `input` is its input type; if it takes none, the saga's."""

    forward: Signature
    guard: Signature | None
    reconcile: Signature | None
    compensation: Signature | None
    input: Any

    @property
    def result(self) -> Any:
        return self.forward.result

    def readers(self) -> list[tuple[str, Signature]]:
        """Returns the functions whose `FromStep` results must exist before the step starts.

        A compensation is not among them: it reads what exists when it runs.
        """
        named = [("", self.forward), (", guard", self.guard), (", reconcile", self.reconcile)]
        return [(role, signature) for role, signature in named if signature is not None]


def read_functions(step: StepSource, source: SagaSource, problems: Problems) -> StepFunctions:
    settings, where = step.settings, f"step {step.id!r}"
    assert isinstance(settings, StepSettings)
    assert step.function is not None
    forward = settle(read_signature(step.function, step.names, where, problems), "step", where, problems)
    check_result(forward.result, where, problems)
    taken = next((p.annotation for p in forward.marked(Input) if _is_whole(p)), source.input)
    return StepFunctions(
        forward=forward,
        guard=_read_probe(settings.guard, "guard", forward, source, where, problems),
        reconcile=_read_probe(settings.reconcile, "reconcile", forward, source, where, problems),
        compensation=_read_compensation(step, forward, taken, source, problems),
        input=taken,
    )


def _is_whole(parameter: Parameter) -> bool:
    return isinstance(parameter.source, Input) and parameter.source.key is None


def _find(
    ref: StepRef, role: str, source: SagaSource, where: str, problems: Problems
) -> tuple[Function, Mapping[str, object]] | None:
    found = source.function(ref)
    if found is None:
        owner = type(source.instance).__qualname__ if source.instance is not None else "the builder"
        problems.add(
            f"{where}, {role}",
            "unknown_function",
            f"{owner} has no method {ref!r}: name an existing method, or pass a function",
        )
    return found


# -- Guards and reconciles ---------------------------------------------------------------------------------------------


def _read_probe(
    ref: StepRef | None, role: str, forward: Signature, source: SagaSource, where: str, problems: Problems
) -> Signature | None:
    found = _find(ref, role, source, where, problems) if ref is not None else None
    if found is None:
        return None
    where = f"{where}, {role}"
    signature = settle(read_signature(*found, where, problems), "probe", where, problems)
    _check_outcome(signature.result, forward.result, where, problems)
    return signature


def _check_outcome(returned: Any, result: Any, where: str, problems: Problems) -> None:
    parts = members(returned)
    if any(is_unknown(part) for part in parts):
        return
    outcomes = [part for part in parts if (get_origin(part) or part) in (Done, NotDone, Pending, Unknown)]
    if len(outcomes) < len(parts) or not parts:
        forms = "Outcome[T]: Done(result), NotDone(), Pending() or Unknown(why)"
        problems.add(where, "type", f"it returns {describe(returned)}, but must return {forms}")
    for part in outcomes:
        if get_origin(part) is Done and not fits(get_args(part)[0], result):
            found = describe(get_args(part)[0])
            text = f"it returns Done[{found}], but the step's result is {describe(result)}"
            problems.add(where, "type", text)


# -- Compensations -----------------------------------------------------------------------------------------------------


def _read_compensation(
    step: StepSource, forward: Signature, taken: Any, source: SagaSource, problems: Problems
) -> Signature | None:
    found = _compensation_of(step, source, problems)
    if found is None:
        return None
    where = f"step {step.id!r}, compensation"
    rule = _CompensationParameters(step, forward, taken, where, problems)
    signature = read_signature(*found, where, problems)
    signature = settle_compensation(signature, rule.choose, where, problems)
    check_result(signature.result, where, problems)
    for parameter in signature.parameters:
        rule.check(parameter)
    return signature


def _compensation_of(
    step: StepSource, source: SagaSource, problems: Problems
) -> tuple[Function, Mapping[str, object]] | None:
    outside = source.compensations.get(step.id)
    if outside is not None:
        return outside, {}
    assert isinstance(step.settings, StepSettings)
    ref = step.settings.compensate
    return None if ref is None else _find(ref, "compensate", source, f"step {step.id!r}", problems)


class _CompensationParameters:
    """Decides by type whether a compensation's unmarked parameter is the step's input or its result."""

    def __init__(self, step: StepSource, forward: Signature, taken: Any, where: str, problems: Problems) -> None:
        settings = step.settings
        assert isinstance(settings, StepSettings)
        self.input = taken
        self.takes_input = any(_is_whole(p) for p in forward.parameters)  # otherwise its type is known only at run time
        self.result = forward.result
        self.lacks_result = settings.partial_effect or settings.safety == "not_safe_to_retry"
        self.where = where
        self.problems = problems

    def choose(self, parameter: Parameter) -> Source:
        annotation = parameter.annotation
        unknown = any(is_unknown(member) for member in members(annotation))
        if unknown and not members(self.result):  # the step has no result, so it can only be the input
            return Input()
        is_input, is_result = same(annotation, self.input), same(annotation, self.result)
        if unknown or (is_input and is_result):
            self._refuse_ambiguous(parameter)
            return Nothing()
        if is_input or is_result:
            return Input() if is_input else Result()
        if not accepts_none(annotation) and parameter.default is EMPTY:
            self._refuse_neither(parameter)
        return Nothing()

    def check(self, parameter: Parameter) -> None:
        is_result = isinstance(parameter.source, Result)
        if is_result and not fits(self.result, parameter.annotation):
            self._refuse_type(parameter, "result", self.result)
        if _is_whole(parameter) and self.takes_input and not fits(self.input, parameter.annotation):
            self._refuse_type(parameter, "input", self.input)
        if is_result and self.lacks_result and not accepts_none(parameter.annotation) and parameter.default is EMPTY:
            text = "this step may be compensated without a result: annotate the parameter `… | None`"
            self._add(parameter, "optional", text)

    def _refuse_type(self, parameter: Parameter, what: str, given: Any) -> None:
        text = (
            f"the step's {what} is {describe(given)}, but the parameter is annotated {describe(parameter.annotation)}"
        )
        self._add(parameter, "type", text)

    def _refuse_ambiguous(self, parameter: Parameter) -> None:
        text = "it could be the step's input or its result: mark it Annotated[T, Input] or Annotated[T, Result]"
        self._add(parameter, "ambiguous", text)

    def _refuse_neither(self, parameter: Parameter) -> None:
        text = (
            f"its type {describe(parameter.annotation)} is neither the step's input ({describe(self.input)}) "
            f"nor its result ({describe(self.result)}), so it would always be None: "
            "change its type, mark it, or make it Optional"
        )
        self._add(parameter, "unresolved", text)

    def _add(self, parameter: Parameter, code: str, text: str) -> None:
        self.problems.add(f"{self.where}, parameter {parameter.name!r}", code, text)
