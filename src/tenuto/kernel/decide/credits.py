"""The credits that an execution may still spend of its hold."""

from tenuto.kernel.events import Failure
from tenuto.kernel.plan import Node
from tenuto.kernel.state import Execution

from .turn import refusal


def can_afford(state: Execution, node: Node) -> bool:
    estimate = node.step.estimate
    return not estimate or not state.hold or state.hold - state.charged >= estimate


def out_of_credits(path: str) -> Failure:
    return refusal(path, "credits_exhausted", "what is left of the hold is less than this step is estimated to cost")


def charge(state: Execution, usage: int) -> tuple[int, bool]:
    """Returns the part of this usage that the hold covers, and whether the hold is exhausted."""
    left = state.hold - state.charged
    return min(usage, left), state.hold > 0 and usage > left
