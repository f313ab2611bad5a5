"""What steps read of one another, and whether the types on both sides agree."""

from dataclasses import dataclass
from types import GenericAlias
from typing import Any

from .markers import FromCompensationError, FromCompensationResult, FromStep
from .matching import accepts_none, describe, elements, fits, is_unknown, members
from .signature import Parameter


@dataclass(frozen=True, slots=True)
class Offer:
    """What a step has to give to those who read it."""

    result: Any
    is_fan_out: bool = False
    may_skip: bool = False  # a clone that failed leaves None in the list
    is_group: bool = False
    is_compensated: bool = False
    undone_result: Any = Any


def why_unfit(parameter: Parameter, offer: Offer, clone: bool) -> str | None:
    """What is wrong with reading this step by that parameter; None if nothing is."""
    if isinstance(parameter.source, FromStep):
        return _why_unfit_result(parameter, offer, clone)
    if not offer.is_compensated:
        return "that step has no compensation"
    if isinstance(parameter.source, FromCompensationResult) and not fits(offer.undone_result, parameter.annotation):
        return f"that compensation returns {describe(offer.undone_result)}, {_annotated(parameter)}"
    assert isinstance(parameter.source, FromCompensationResult | FromCompensationError)
    return None


def _why_unfit_result(parameter: Parameter, offer: Offer, clone: bool) -> str | None:
    if offer.is_group:
        return "that is a group, and has no result: name one of its steps"
    wanted = parameter.annotation
    many = GenericAlias(list, (offer.result,))
    if clone or not offer.is_fan_out:
        # Inputs given by step may fan any step out when it is started.
        if fits(offer.result, wanted) or (not clone and fits(many, wanted)):
            return None
        return f"that step returns {describe(offer.result)}, {_annotated(parameter)}"
    if not fits(many, wanted):
        return f"that step is a fan-out of {describe(offer.result)}, {_annotated(parameter)}: use list[…]"
    return _why_too_strict(wanted) if offer.may_skip else None


def _why_too_strict(wanted: Any) -> str | None:
    held = [elements(member) for member in members(wanted) if not is_unknown(member)]
    if held and not any(accepts_none(element) for element in held):
        return 'with failure_mode="continue" a failed clone leaves None in the list: annotate it list[… | None]'
    return None


def _annotated(parameter: Parameter) -> str:
    return f"and this is annotated {describe(parameter.annotation)}"
