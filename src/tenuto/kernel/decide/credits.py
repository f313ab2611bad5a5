"""What an execution may still spend of the credits that were reserved for it."""

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
    """What of this usage the hold still covers, and whether it was overrun."""
    left = state.hold - state.charged
    return min(usage, left), state.hold > 0 and usage > left
