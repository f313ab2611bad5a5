"""The credits that an execution may still spend of its hold."""

from typing import Literal

from tenuto.kernel.events import Failure
from tenuto.kernel.plan import Node
from tenuto.kernel.state import Execution, StepState

from .turn import refusal

Affordable = Literal["now", "later", "never"]


def affordable(state: Execution, node: Node) -> Affordable:
    """Returns whether the hold covers the estimate of one more attempt of this step.

    `later`: it would, if open attempts cost less than is set aside for them.
    """
    estimate = node.step.estimate
    if not estimate or not state.hold:
        return "now"
    left = state.hold - state.charged
    if estimate > left:
        return "never"
    return "now" if estimate <= left - state.set_aside else "later"


def waits_for_credits(state: Execution, step: StepState) -> bool:
    """Returns whether only the credits that are set aside for other attempts keep this step from an attempt."""
    return step.open is None and affordable(state, step.node) == "later"


def out_of_credits(path: str) -> Failure:
    return refusal(path, "credits_exhausted", "what is left of the hold is less than this step is estimated to cost")


def charge(state: Execution, usage: int) -> tuple[int, bool]:
    """Returns the part of this usage that the hold covers, and whether the hold is exhausted."""
    left = state.hold - state.charged
    return min(usage, left), state.hold > 0 and usage > left
