"""The functions of a step: what it does, what probes it, what undoes it; and whether each fits the step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from .gather import Material, Piece
from .markers import Input, Result, StepRef
from .matching import accepts_none, describe, fits, is_unknown, members, same
from .outcome import Done, NotDone, Pending, Unknown
from .problems import Problems
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
    """`input` is the type that the step takes as its input, the saga's if it takes none."""

    forward: Signature
    guard: Signature | None
    reconcile: Signature | None
    compensation: Signature | None
    input: Any

    @property
    def result(self) -> Any:
        return self.forward.result

    def readers(self) -> list[tuple[str, Signature]]:
        """Those whose `FromStep` must be there before the step begins: an undo takes what there is by then."""
        named = [("", self.forward), (", guard", self.guard), (", reconcile", self.reconcile)]
        return [(role, signature) for role, signature in named if signature is not None]


def read_functions(piece: Piece, material: Material, problems: Problems) -> StepFunctions:
    settings, where = piece.settings, f"step {piece.id!r}"
    assert isinstance(settings, StepSettings)
    assert piece.function is not None
    forward = settle(read_signature(piece.function, piece.names, where, problems), "step", where, problems)
    check_result(forward.result, where, problems)
    taken = next((p.annotation for p in forward.marked(Input) if _is_whole(p)), material.input)
    return StepFunctions(
        forward=forward,
        guard=_read_probe(settings.guard, "guard", forward, material, where, problems),
        reconcile=_read_probe(settings.reconcile, "reconcile", forward, material, where, problems),
        compensation=_read_compensation(piece, forward, taken, material, problems),
        input=taken,
    )


def _is_whole(parameter: Parameter) -> bool:
    return isinstance(parameter.source, Input) and parameter.source.key is None


def _find(
    ref: StepRef, role: str, material: Material, where: str, problems: Problems
) -> tuple[Function, Mapping[str, object]] | None:
    found = material.function(ref)
    if found is None:
        owner = f"{type(material.instance).__qualname__} has" if material.instance is not None else "a builder has"
        problems.add(f"{where}, {role}", "unknown_function", f"{owner} no method {ref!r}: name one, or give a function")
    return found


# -- Guards and reconciles ---------------------------------------------------------------------------------------------


def _read_probe(
    ref: StepRef | None, role: str, forward: Signature, material: Material, where: str, problems: Problems
) -> Signature | None:
    found = _find(ref, role, material, where, problems) if ref is not None else None
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
        problems.add(where, "type", f"it returns {describe(returned)}, and must return {forms}")
    for part in outcomes:
        if get_origin(part) is Done and not fits(get_args(part)[0], result):
            found = describe(get_args(part)[0])
            text = f"it returns Done[{found}], and the step's result is {describe(result)}"
            problems.add(where, "type", text)


# -- Compensations -----------------------------------------------------------------------------------------------------


def _read_compensation(
    piece: Piece, forward: Signature, taken: Any, material: Material, problems: Problems
) -> Signature | None:
    found = _compensation_of(piece, material, problems)
    if found is None:
        return None
    where = f"step {piece.id!r}, compensation"
    rule = _Rule(piece, forward, taken, where, problems)
    signature = read_signature(*found, where, problems)
    signature = settle_compensation(signature, rule.choose, where, problems)
    check_result(signature.result, where, problems)
    for parameter in signature.parameters:
        rule.check(parameter)
    return signature


def _compensation_of(
    piece: Piece, material: Material, problems: Problems
) -> tuple[Function, Mapping[str, object]] | None:
    outside = material.compensations.get(piece.id)
    if outside is not None:
        return outside, {}
    assert isinstance(piece.settings, StepSettings)
    ref = piece.settings.compensate
    return None if ref is None else _find(ref, "compensate", material, f"step {piece.id!r}", problems)


class _Rule:
    """What a compensation's argument is: the input if its type is the input's, the result if it is the result's."""

    def __init__(self, piece: Piece, forward: Signature, taken: Any, where: str, problems: Problems) -> None:
        settings = piece.settings
        assert isinstance(settings, StepSettings)
        self.input = taken
        self.takes_input = any(_is_whole(p) for p in forward.parameters)  # else only a run can tell
        self.result = forward.result
        self.lacks_result = settings.partial_effect or settings.safety == "not_safe_to_retry"
        self.where = where
        self.problems = problems

    def choose(self, parameter: Parameter) -> Source:
        annotation = parameter.annotation
        unknown = any(is_unknown(member) for member in members(annotation))
        if unknown and not members(self.result):  # a step without a result: there is nothing else
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
            text = "this step may be undone without ever having had a result: annotate it `… | None`"
            self._add(parameter, "optional", text)

    def _refuse_type(self, parameter: Parameter, what: str, given: Any) -> None:
        text = f"the step's {what} is {describe(given)}, and this is annotated {describe(parameter.annotation)}"
        self._add(parameter, "type", text)

    def _refuse_ambiguous(self, parameter: Parameter) -> None:
        text = "it could be the step's input or its result: say which, with Annotated[T, Input] or Annotated[T, Result]"
        self._add(parameter, "ambiguous", text)

    def _refuse_neither(self, parameter: Parameter) -> None:
        text = (
            f"it is {describe(parameter.annotation)}, which is neither the step's input ({describe(self.input)}) "
            f"nor its result ({describe(self.result)}), so it would always be None: "
            "change its type, mark it, or make it Optional"
        )
        self._add(parameter, "unresolved", text)

    def _add(self, parameter: Parameter, code: str, text: str) -> None:
        self.problems.add(f"{self.where}, parameter {parameter.name!r}", code, text)
