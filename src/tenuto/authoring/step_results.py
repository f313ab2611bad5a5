"""The results that steps read from one another, and whether the types on both sides agree."""

from dataclasses import dataclass
from types import GenericAlias
from typing import Any

from .annotations import accepts_none, describe, elements, fits, is_unknown, members
from .markers import FromCompensationError, FromCompensationResult, FromStep
from .signature import Parameter


@dataclass(frozen=True, slots=True)
class Offer:
    """What other steps can read from a step."""

    result: Any
    is_fan_out: bool = False
    may_skip: bool = False  # a failed clone is None in the list
    is_group: bool = False
    is_compensated: bool = False
    undone_result: Any = Any


def read_problem(parameter: Parameter, offer: Offer, clone: bool) -> str | None:
    """Returns why the parameter cannot read this step, or None if it can."""
    if isinstance(parameter.source, FromStep):
        return _result_problem(parameter, offer, clone)
    if not offer.is_compensated:
        return "it has no compensation to read from"
    if isinstance(parameter.source, FromCompensationResult) and not fits(offer.undone_result, parameter.annotation):
        return f"its compensation returns {describe(offer.undone_result)}, {_annotated(parameter)}"
    assert isinstance(parameter.source, FromCompensationResult | FromCompensationError)
    return None


def _result_problem(parameter: Parameter, offer: Offer, clone: bool) -> str | None:
    if offer.is_group:
        return "it is a group, which has no result: name one of its steps"
    wanted = parameter.annotation
    many = GenericAlias(list, (offer.result,))
    if clone or not offer.is_fan_out:
        # StepInputs can fan out any step at start.
        if fits(offer.result, wanted) or (not clone and fits(many, wanted)):
            return None
        return f"it returns {describe(offer.result)}, {_annotated(parameter)}"
    if not fits(many, wanted):
        return f"it is a fan-out of {describe(offer.result)}, {_annotated(parameter)}: use list[…]"
    return _none_problem(wanted) if offer.may_skip else None


def _none_problem(wanted: Any) -> str | None:
    held = [elements(member) for member in members(wanted) if not is_unknown(member)]
    if held and not any(accepts_none(element) for element in held):
        return 'with failure_mode="continue" a failed clone is None in the list: annotate the parameter list[… | None]'
    return None


def _annotated(parameter: Parameter) -> str:
    return f"but the parameter is annotated {describe(parameter.annotation)}"
